"""A request for a store works in a thread, so that other requests are answered meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from opslog.server.http.rest import serving
from tests.support.rest import Rest, problem


def test_bodies_are_decoded_and_answers_encoded_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[threading.Thread] = []
    for name in ("_body", "_encoded_answer"):
        real = getattr(serving, name)

        def noted(*given: Any, real: Any = real) -> Any:
            seen.append(threading.current_thread())
            return real(*given)

        monkeypatch.setattr(serving, name, noted)
    rest = Rest(str(tmp_path / "tasks"))
    assert rest.ask("POST", "/batch", {"ops": [{"op": "set", "id": "a", "data": {}}]}).status_code == 200
    assert len(seen) == 2
    assert threading.main_thread() not in seen
    ops = [{"op": "delete", "id": "a"}] * 100_001
    problem(rest.ask("POST", "/batch", {"ops": ops}), 400, "invalid")
    rest.close()
