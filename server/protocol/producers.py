"""Idempotent producers: whether an append is new, a repetition, or from a producer that was replaced."""

from __future__ import annotations

import msgspec

from opslog.server.protocol.model import Producer
from opslog.server.protocol.refusals import Refused

# The greatest epoch or sequence number: the greatest integer that JavaScript's numbers represent exactly.
MAX_INTEGER = 2**53 - 1


class Stamp(msgspec.Struct, frozen=True):
    """The producer, epoch and sequence number that an append names."""

    producer: str
    epoch: int
    seq: int


def admit(known: Producer | None, stamp: Stamp) -> Producer | None:
    """The producer's state after this append; None if the append is a repetition.

    :raises Refused: 403 for an epoch that a newer one has replaced, 409 if an append in between is missing, 400 for a
        new epoch that does not begin at 0.
    """
    if known is not None and stamp.epoch < known.epoch:
        raise Refused(
            403,
            f"epoch {stamp.epoch} of this producer was replaced by epoch {known.epoch}",
            [(b"producer-epoch", b"%d" % known.epoch)],
        )
    if known is not None and stamp.epoch > known.epoch and stamp.seq != 0:
        raise Refused(400, "a new epoch must start with Producer-Seq 0")
    expected = known.seq + 1 if known is not None and stamp.epoch == known.epoch else 0
    if stamp.seq < expected:
        return None
    if stamp.seq > expected:
        raise Refused(
            409,
            f"Producer-Seq {expected} is missing",
            [(b"producer-expected-seq", b"%d" % expected), (b"producer-received-seq", b"%d" % stamp.seq)],
        )
    return Producer(stamp.epoch, stamp.seq)
