"""Idempotent producers: which appends are new."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslog.server.protocol.model import Producer
from opslog.server.protocol.producers import Stamp, admit
from opslog.server.protocol.refusals import Refused


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=30))
def test_a_producer_is_admitted_once_per_number(stamps: list[tuple[int, int]]) -> None:
    """Checked against the rules of the protocol, as a table of what was accepted."""
    known: Producer | None = None
    taken: list[tuple[int, int]] = []
    for epoch, seq in stamps:
        newest = max((found[0] for found in taken), default=-1)
        count = sum(1 for found in taken if found[0] == epoch)
        if epoch < newest or seq > count:
            status = 403 if epoch < newest else 400 if epoch > newest >= 0 else 409
            with pytest.raises(Refused) as refused:
                admit(known, Stamp("p", epoch, seq))
            assert refused.value.status == status
            continue
        producer = admit(known, Stamp("p", epoch, seq))
        if producer is None:
            assert (epoch, seq) in taken
        else:
            assert (epoch >= newest, seq, (epoch, seq) in taken) == (True, count, False)
            taken.append((epoch, seq))
            known = producer
