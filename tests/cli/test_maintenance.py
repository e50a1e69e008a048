"""compact, archive, stats, verify."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import opslog as library
from opslog.backends import open_backend
from opslog.cli.values import duration, keep
from tests.cli.conftest import Opslog


def fill(root: Path, count: int = 40) -> None:
    with library.open(root, agent="filler", compact_after=None) as store:
        for number in range(count):
            store[f"{number:03}"] = {"number": number, "even": number % 2 == 0}


def test_compact(opslog: Opslog, root: Path) -> None:
    fill(root)
    (result,) = opslog("compact", "--json").values
    assert result == {
        "manifest": 2,
        "commits": 8,
        "records": 8,
        "bytes": result["bytes"],
        "runs_merged": 0,
        "sealed": [],
        "garbage_files": 0,
        "garbage_bytes": 0,
        "garbage_error": None,
        "locked": False,
    }
    assert opslog("compact").out == "nothing to do\n"
    assert opslog("compact", "--json").values[0]["manifest"] is None
    assert opslog("compact", "--keep-history", "forever").out.startswith("nothing to compact; wrote manifest 3")
    assert opslog("compact", "--keep-history", "forever", "--full").out == "nothing to do\n"


def test_a_compaction_beside_another_has_nothing_to_do(opslog: Opslog, root: Path) -> None:
    fill(root)
    backend = open_backend(str(root))
    with backend.lock("compaction"):
        answer = opslog("compact")
        assert (answer.code, answer.out) == (0, "nothing to do\n")
        assert "another compaction is running" in answer.err
        assert opslog("--json", "compact").values[0]["locked"]
    backend.close()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90s", timedelta(seconds=90)),
        ("1.5h", timedelta(minutes=90)),
        ("2w", timedelta(days=14)),
        ("15m", timedelta(minutes=15)),
    ],
)
def test_durations(text: str, value: timedelta) -> None:
    assert duration(text) == value
    assert keep(text) == value
    assert keep("forever") == "forever"


@pytest.mark.parametrize("text", ["", "3", "d", "3 d", "3x", "-3d", "forever!", "9999999999w", "٣d"])
def test_invalid_durations_are_refused(opslog: Opslog, text: str) -> None:
    answer = opslog("compact", "--keep-history", text)
    assert answer.code == 2
    assert "is no duration" in answer.err or "too long" in answer.err


def test_archive(opslog: Opslog, root: Path) -> None:
    fill(root, 6)
    assert opslog("archive").code == 2
    assert opslog("archive", "--list") == (0, "", "")
    assert opslog("archive", "--where", "even=true", "--period", "p").out == "archived 3 documents\n"
    assert opslog("archive", "--older-than", "1d", "--json").values == [{"archived": 0}]
    assert opslog("archive", "--older-than", "0s", "--where", "number=1", "--period", "q", "--json").values == [
        {"archived": 1}
    ]
    assert opslog("ls", "--ids").out.split() == ["003", "005"]
    assert opslog("archive", "--list").out.split() == ["p", "q"]
    assert opslog("archive", "--list", "--json").values == [{"period": "p"}, {"period": "q"}]
    assert [line["id"] for line in opslog("archive", "--load", "p", "--json").values] == ["000", "002", "004"]
    assert opslog("archive", "--load", "q").out == '001\t{"number":1,"even":false}\n'
    answer = opslog("archive", "--load", "r")
    assert (answer.code, answer.out) == (1, "")
    assert "the periods are: p, q" in answer.err
    assert opslog("archive", "--period", "a/b", "--older-than", "1s").code == 2


def test_stats(opslog: Opslog, root: Path) -> None:
    fill(root)
    (result,) = opslog("stats", "--json").values
    of_the_process = ("compaction_error", "requests", "kernel", "cached_documents", "cached_bytes")
    documented = [name for name in library.Stats.__struct_fields__ if name not in of_the_process]
    assert list(result) == documented
    assert (result["documents"], result["agents"], result["clock"], result["commits"]) == (40, 1, 40, 40)
    assert "documents\t40" in opslog("stats").out.split("\n")[:-1]


def test_verify(opslog: Opslog, root: Path) -> None:
    fill(root)
    opslog("compact")
    answer = opslog("verify", str(root))
    assert answer.code == 0
    assert answer.out.startswith(
        "ok: checked 1 segment with 40 commits, 2 manifests, 1 part and 0 archives with 8 records, "
    )
    (part,) = root.glob("snapshots/*/*.jsonl")
    index = part.with_suffix(".index")
    index.unlink()
    answer = opslog("verify")
    assert answer.code == 3
    assert f"error: {index.relative_to(root)}: it is not there" in answer.out
    assert "DAMAGED" in answer.out
    (result,) = opslog("verify", "--json").values
    assert result["ok"] is False
    assert [set(problem) for problem in result["problems"]] == [{"severity", "path", "offset", "message"}]
    answer = opslog("verify", "--repair")
    assert answer.code == 0
    assert "repaired: made" in answer.out
    part.write_bytes(part.read_bytes().replace(b"number", b"numbed", 1))
    answer = opslog("verify", "--json")
    assert answer.code == 3
    assert answer.values[0]["problems"][0]["offset"] == 0
