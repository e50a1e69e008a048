"""Loading with the kernel gives the same result as in Python, for any log. The kernel accepts no line that Python
refuses."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opslog
from opslog.errors import CorruptError
from opslog.format import scanned
from opslog.format.commits import (
    Batch,
    Commit,
    Delete,
    DeleteOp,
    Record,
    Seal,
    Set,
    SetOp,
    Undo,
    decode_commits,
    decode_records,
    encode_commit,
)
from opslog.format.scanned import ScannedCommits, scan_commits
from opslog.format.torn import joined
from opslog.log import reader
from opslog.merge.merge import Merge
from opslog.replica.state import State
from opslog.store import replica_of
from tests.fuzz.mutations import mutate

_kernel = pytest.importorskip("opslog.kernel._kernel", reason="the kernel was not built")


@pytest.fixture(autouse=True)
def with_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the kernel, whatever the environment says."""
    use(monkeypatch, True)


def use(monkeypatch: pytest.MonkeyPatch, used: bool) -> None:
    monkeypatch.setattr(scanned, "scan", _kernel.scan if used else None)
    monkeypatch.setattr("opslog.merge.lines.Table", _kernel.Table)


def ts(number: int) -> str:
    return f"2026-11-{number % 28 + 1:02}T12:{number % 60:02}:00.{number % 1000000:06}Z"


def set_of(clock: int, id: str, agent: str = "a", data: object = None, v: int = 1) -> Set:
    return Set(ts(clock * 7), clock, agent, id, msgspec.Raw(orjson.dumps({"n": clock} if data is None else data)), v)


def line(clock: int, id: str, **kwargs: Any) -> bytes:
    return encode_commit(set_of(clock, id, **kwargs))


def by_python(lines: bytes, agent: str) -> list[Commit] | str:
    """The result of Python for a chunk, in the order of the log."""
    try:
        commits = decode_commits(lines, "x", 0)
    except CorruptError as error:
        return str(error)
    clock = 0
    for commit in commits:
        if commit.agent != agent or commit.clock <= clock:
            return "misplaced"
        clock = commit.clock
    return commits


def check_scan(lines: bytes, agent: str = "a") -> ScannedCommits | None:
    """What the kernel accepts, Python accepts with the same result."""
    found = scan_commits(lines, agent, "x", 0)
    if found is None:
        return None
    expected = by_python(lines, agent)
    assert not isinstance(expected, str), f"taken, but {expected}"
    assert len(found) == len(expected)
    assert list(found) == expected
    assert found.clocks == (expected[0].clock, expected[-1].clock)
    assert found.ts == max(commit.ts for commit in expected)
    table = _kernel.Table()
    assert table.add(found.sets)
    others = {(commit.clock, commit.agent) for commit in found.others}
    best: dict[str, Set] = {}
    for commit in expected:
        if (commit.clock, commit.agent) not in others:
            assert isinstance(commit, (Set, Batch))
            for record in commit.records:
                assert isinstance(record, Set)
                best[record.id] = record
    assert len(table) == len(best)
    ids = sorted(best)
    assert table.ids(0, len(ids)) == ids
    assert table.lines(0, len(ids)) == b"".join(encode_commit(best[id]) for id in ids)
    for id, commit in best.items():
        assert id in table
        assert table.get(id) == (commit.ts, commit.clock, commit.agent, bytes(commit.data), commit.v)
    return found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)
# Lines as other programs write them: with or without escapes, with or without spaces, or no JSON at all.
TEXTS = st.builds(
    lambda value, ascii, spaces: json.dumps(
        value, ensure_ascii=ascii, separators=(", ", ": ") if spaces else (",", ":")
    ).encode("utf-8", "surrogatepass"),
    OBJECTS | JSON,
    st.booleans(),
    st.sampled_from([False, False, True]),
)
ASCII = st.text("abc-0", min_size=0, max_size=3)


@st.composite
def logs(draw: st.DrawFn, kinds: str = "sssssssdbBBuvjx") -> list[bytes]:
    """The lines of a log, in order."""
    lines = []
    clock = 0
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=30)):
        clock += draw(st.integers(1, 3))
        id = draw(ASCII | st.text(st.characters(codec="utf-8"), max_size=4))
        commit: Commit = set_of(clock, id)
        if kind == "d":
            commit = Delete(ts(clock), clock, "a", id)
        elif kind == "b":
            commit = Batch(ts(clock), clock, "a", [SetOp(id, msgspec.Raw(b"{}")), DeleteOp(draw(ASCII))])
        elif kind == "B":
            ids = draw(st.lists(ASCII, min_size=1, max_size=4))
            commit = Batch(ts(clock), clock, "a", [SetOp(id, draw(TEXTS.map(msgspec.Raw)), 1 + len(id)) for id in ids])
            if draw(st.booleans()):
                lines.append(joined(encode_commit(commit)))
                continue
        elif kind == "u":
            commit = Undo(ts(clock), clock, "a", max(1, clock - draw(st.integers(1, 5))))
        elif kind == "e":
            commit = Seal(ts(clock), clock, "a")
        elif kind == "v":
            commit = set_of(clock, id, v=draw(st.sampled_from([2, 4095, 4096, 2**63 - 1])))
        elif kind == "x":
            commit.data = msgspec.Raw(draw(TEXTS))  # type: ignore[union-attr]
        text = encode_commit(commit)
        lines.append(joined(text) if kind == "j" else text)
    return lines


class TestScan:
    @settings(suppress_health_check=[HealthCheck.too_slow], max_examples=300)
    @given(lines=logs())
    def test_any_log(self, lines: list[bytes]) -> None:
        check_scan(b"".join(lines))

    @settings(suppress_health_check=[HealthCheck.too_slow], max_examples=300)
    @given(text=TEXTS | st.binary(max_size=40).filter(lambda text: b"\n" not in text))
    def test_any_data(self, text: bytes) -> None:
        lines = [line(clock, "x") for clock in (1, 2, 3)]
        check_scan(lines[0] + lines[1].replace(b'{"n":2}', text) + lines[2])

    @pytest.mark.parametrize("seed", range(20))
    def test_damaged_logs(self, seed: int) -> None:
        random_ = random.Random(seed)
        lines = b"".join(
            line(clock, f"id-{clock % 7}", data={"text": 'ü\\"\n🚀', "n": [1.5e10, -0.0, {"a": [True, None, []]}]}, v=v)
            for clock, v in zip(range(1, 12), [1, 1, 2, 1, 1, 1, 7, 1, 1, 1, 1], strict=True)
        )
        for _ in range(400):
            check_scan(mutate(lines, random_, [lines]))

    def test_every_byte_anything_else(self) -> None:
        """Each byte of a line, in the middle of others, is replaced by each of these in turn."""
        first, last = line(1, "x"), line(9, "y")
        middle = line(5, "ü", data={"a": ["\\u00fc", 1.25, True, None]}).replace(b"\\\\u", b"\\u")
        taken = 0
        for place in range(len(middle)):
            for byte in b'\x00\x1f \t\r\n"\\/{}[]:,.-+0159eEtfnuabx\x7f\x80\xbf\xc0\xc3\xe0\xed\xf0\xf4\xff':
                changed = middle[:place] + bytes([byte]) + middle[place + 1 :]
                taken += check_scan(first + changed + last) is not None
        assert taken > 200

    def test_every_byte_of_a_batch_anything_else(self) -> None:
        ops = [SetOp("x", msgspec.Raw(b'{"a":[1]}')), SetOp("y", msgspec.Raw(b"{}"), 2), SetOp("x", msgspec.Raw(b"{}"))]
        first, last = line(1, "x"), line(9, "y")
        middle = encode_commit(Batch(ts(5), 5, "a", list(ops)))
        assert check_scan(first + middle + last) is not None
        taken = 0
        for place in range(len(middle)):
            for byte in b'\x00\n"\\{}[]:,0abtx\xc3\xff':
                changed = middle[:place] + bytes([byte]) + middle[place + 1 :]
                taken += check_scan(first + changed + last) is not None
            check_scan(first + middle[:place] + middle[place + 1 :] + last)
        assert taken > 100

    def test_batches_are_taken_whole_or_not_at_all(self) -> None:
        def batch(*ops: SetOp | DeleteOp) -> bytes:
            return encode_commit(Batch(ts(5), 5, "a", list(ops)))

        set_op = SetOp("x", msgspec.Raw(b"{}"))
        for text, taken in (
            (batch(set_op), True),
            (batch(set_op, SetOp("y", msgspec.Raw(b'{"a":1}'))), True),
            (batch(set_op, DeleteOp("y")), False),
            (batch(set_op, SetOp('"', msgspec.Raw(b"{}"))), False),
            (batch(), False),
        ):
            found = check_scan(line(1, "x") + text + line(9, "y"))
            assert found is not None
            assert (len(found.sets), found.sets.commits, len(found.others)) == (
                (2 + text.count(b'{"op":"set"'), 3, 0) if taken else (2, 2, 1)
            )

    @pytest.mark.parametrize(
        "number",
        [
            "0",
            "-0",
            "1",
            "-1",
            "01",
            "-01",
            "1.",
            ".5",
            "1.5",
            "1e5",
            "1E+5",
            "1e-5",
            "1e",
            "1e+",
            "-",
            "--",
            "+1",
            "0x1",
            "1.e1",
            "00",
            "1_0",
            "NaN",
            "Infinity",
            "1e999",
            "123456789012345678901",
        ],
    )
    def test_numbers(self, number: str) -> None:
        check_scan(line(1, "x") + line(2, "x").replace(b":2}", f":{number}}}".encode()) + line(3, "x"))

    @pytest.mark.parametrize("depth", [1, 253, 254, 255, 256, 1000, 100_000])
    @pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}")])
    def test_levels(self, depth: int, brackets: tuple[bytes, bytes]) -> None:
        text = brackets[0] * (depth - 1) + b"1" + brackets[1] * (depth - 1)
        check_scan(line(1, "x") + line(2, "x").replace(b":2}", b":" + text + b"}") + line(3, "x"))

    def test_the_clock_of_the_format_is_the_greatest(self) -> None:
        for clock in (2**63 - 1, 2**63, 2**64, 10**19, 10**30):
            check_scan(line(1, "x") + line(2, "x").replace(b":2,", f":{clock},".encode()))
        for text in ("0", "-1", "01", "1.0", ""):
            assert scan_commits(line(1, "x").replace(b'"clock":1', f'"clock":{text}'.encode()), "a", "x", 0) is None

    def test_lines_out_of_order_are_left_to_python(self) -> None:
        assert scan_commits(line(2, "x") + line(2, "y"), "a", "x", 0) is None
        assert scan_commits(line(2, "x") + line(1, "y"), "a", "x", 0) is None
        assert scan_commits(line(1, "x") + line(2, "y", agent="b") + line(3, "x"), "a", "x", 0) is None
        delete = encode_commit(Delete(ts(1), 1, "a", "x"))
        assert scan_commits(line(1, "x") + delete + line(3, "x"), "a", "x", 0) is None
        assert (
            scan_commits(
                line(1, "x") + line(2, "x") + encode_commit(Delete(ts(1), 9, "a", "x")) + line(9, "x"), "a", "x", 0
            )
            is None
        )

    def test_partial_lines_are_left_to_python(self) -> None:
        for lines in (b"", b"\n", line(1, "x")[:-1], line(1, "x") + b"\n", b"\n" + line(1, "x"), b"x"):
            assert scan_commits(lines, "a", "x", 0) is None

    def test_two_commits_on_one_line_and_one_on_two(self) -> None:
        """Python counts lines, and accepts these two together. The kernel does the same by leaving them to Python."""
        two = line(2, "x")[:-1] + line(3, "x")
        split = line(4, "y").replace(b',"clock"', b',\n"clock"')
        for lines in (
            line(1, "x") + two + split + line(5, "z"),
            line(1, "x") + two + line(5, "z"),
            split + line(5, "z"),
        ):
            check_scan(lines)

    def test_an_agent_that_is_no_name(self) -> None:
        for agent in ("", '"', "a\\", "a\n"):
            assert _kernel.scan(line(1, "x"), agent) is None or agent == ""

    def test_long_documents_and_ids(self) -> None:
        for size in (2**16 - 1, 2**16, 2**20 - 9, 2**20 - 8, 2**20, 2**22):
            check_scan(line(1, "x") + line(2, "x", data={"a": "b" * size}) + line(3, "y"))
            check_scan(line(1, "x") + line(2, "i" * size) + line(3, "y"))


class TestTable:
    def test_the_greatest_stamp_wins_whatever_comes_first(self) -> None:
        random_ = random.Random(5)
        for _ in range(30):
            chunks = []
            best: dict[str, Set] = {}
            for agent in ("a", "b", "ü", "z"):
                clocks = sorted(random_.sample(range(1, 60), 30))
                commits = [set_of(clock, f"id-{random_.randrange(40)}", agent) for clock in clocks]
                for commit in commits:
                    if commit.id not in best or commit.stamp > best[commit.id].stamp:
                        best[commit.id] = commit
                for some in (commits[:10], commits[10:20], commits[20:]):
                    found = _kernel.scan(b"".join(map(encode_commit, some)), agent)
                    assert found is not None
                    chunks.append(found[0])
            random_.shuffle(chunks)
            table = _kernel.Table()
            assert all(map(table.add, chunks))
            ids = sorted(best)
            assert table.ids(0, 1000) == ids
            assert table.lines(0, 1000) == b"".join(encode_commit(best[id]) for id in ids)
            assert table.lines(3, 5) == b"".join(encode_commit(best[id]) for id in ids[3:5])

    def test_many(self) -> None:
        count = 30_000
        table = _kernel.Table()
        for start in range(1, count, 1000):
            lines = b"".join(line(clock, f"{clock * 7919 % count}") for clock in range(start, start + 1000))
            sets, others = _kernel.scan(lines, "a")
            assert not others
            assert table.add(sets)
        assert len(table) == count
        assert table.ids(0, count) == sorted(str(number) for number in range(count))
        assert table.ids(5, 3 * count) == sorted(str(number) for number in range(count))[5:]

    def test_misuse(self) -> None:
        sets, _ = _kernel.scan(line(1, "x"), "a")
        table = _kernel.Table()
        assert (table.get("x"), "x" in table, table.ids(0, 5), table.lines(0, 5), len(table)) == (
            None,
            False,
            [],
            b"",
            0,
        )
        with pytest.raises(ValueError, match="nothing more"):
            table.add(sets)
        for bad in (None, 1, b"", object(), table):
            with pytest.raises(TypeError):
                _kernel.Table().add(bad)
        for start, stop in ((-1, 1), (2, 1)):
            with pytest.raises(ValueError, match="range"):
                table.lines(start, stop)
        with pytest.raises(TypeError):
            _kernel.Table(1)
        with pytest.raises(TypeError):
            type(sets)()
        assert table.get(1) is None
        assert 1 not in table
        assert table.get("\ud800") is None
        assert "\ud800" not in table

    def test_nothing_is_leaked(self) -> None:
        lines = line(1, "x") + encode_commit(Delete(ts(1), 2, "a", "x")) + line(3, "y")
        agent = "a" * 3

        def work() -> None:
            found = _kernel.scan(lines, "a")
            assert found is not None
            _kernel.scan(b"x\n" + lines, agent)
            table = _kernel.Table()
            table.add(found[0])
            table.get("x"), table.get("z"), table.ids(0, 9), table.lines(0, 9), found[0].ts, found[0].clocks
            with pytest.raises(ValueError, match="nothing more"):
                table.add(found[0])

        work()
        before = sys.getrefcount(lines), sys.getrefcount(agent), sys.getrefcount(_kernel.Table)
        for _ in range(100):
            work()
        assert (sys.getrefcount(lines), sys.getrefcount(agent), sys.getrefcount(_kernel.Table)) == before


def loaded(logs: dict[str, list[bytes]], per_chunk: int, window: int) -> Merge:
    merge = Merge(window)

    def chunks() -> Iterator[tuple[str, Any]]:
        for agent, lines in logs.items():
            for end in range(len(lines), 0, -per_chunk):
                text = b"".join(lines[max(0, end - per_chunk) : end])
                commits = scan_commits(text, agent, "x", 0)
                yield agent, decode_commits(text, "x", 0) if commits is None else commits

    merge.load(chunks())
    return merge


def winners(merge: Merge) -> dict[str, Record]:
    found = merge.winners()
    if merge.lines is not None:
        assert list(merge.lines.ids()) == [record.id for record in merge.lines.records()]
        assert [merge.lines.get(record.id) for record in merge.lines.records()] == list(merge.lines.records())
        found = {record.id: record for record in merge.lines.records()} | found
    for id, record in found.items():
        assert merge.winner(id) == record
    return found


class TestMerge:
    @settings(suppress_health_check=[HealthCheck.too_slow], max_examples=200)
    @given(
        a=logs("ssssssdbujve"),
        b=logs("sssssssd"),
        per_chunk=st.integers(1, 6),
        window=st.integers(0, 3),
        more=logs("sdbu"),
    )
    def test_a_load_with_the_kernel_equals_one_without(
        self, a: list[bytes], b: list[bytes], per_chunk: int, window: int, more: list[bytes]
    ) -> None:
        logs = {"a": a, "b": [text.replace(b'"agent":"a"', b'"agent":"b"') for text in b]}
        with pytest.MonkeyPatch.context() as monkeypatch:
            use(monkeypatch, False)
            expected = loaded(logs, per_chunk, window)
            assert expected.lines is None
            use(monkeypatch, True)
            found = loaded(logs, per_chunk, window)
        assert winners(found) == winners(expected)
        assert found.recent == expected.recent
        assert found.undone == expected.undone
        assert found.settled_by == expected.settled_by
        # And both continue in the same way.
        last = max([0, *(log[-1].commit.clock for log in expected.recent.values() if log)])
        for text in more:
            (commit,) = decode_commits(text, "x", 0)
            commit.clock += last
            if isinstance(commit, Undo):
                commit.target += last
            other = msgspec.structs.replace(commit) if not isinstance(commit, Undo) else decode_undo(commit)
            assert list(found.apply(commit)) == list(expected.apply(other))
        assert winners(found) == winners(expected)


def decode_undo(commit: Undo) -> Undo:
    return Undo(commit.ts, commit.clock, commit.agent, commit.target)


def test_a_merge_uses_lines() -> None:
    merge = loaded({"a": [line(clock, f"id-{clock % 5}") for clock in range(1, 100)]}, 10, 2)
    assert merge.lines is not None
    assert len(merge.lines) == 5
    assert len(merge.settled) == 5, "of the last ten commits, which are decoded"


class TestStore:
    """Whole stores, in small chunks."""

    @pytest.fixture(autouse=True)
    def small_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reader, "_CHUNK_BYTES", 600)
        monkeypatch.setattr(reader, "_READ_BYTES", 600)

    def fill(self, root: Path, seed: int, compacts: bool) -> None:
        random_ = random.Random(seed)
        for agent in ("a", "b"):
            with opslog.open(root, agent=agent, settings=opslog.Settings(undo_window=5)) as store:
                for number in range(150):
                    id = f"id-{random_.randrange(40):02}"
                    kind = random_.random()
                    if kind < 0.85:
                        store[id] = {"n": number, "by": agent, "text": "ü🚀"}
                    elif kind < 0.95:
                        store.pop(id, None)
                    else:
                        store.undo()
                    if compacts and number % 60 == 59:
                        store.compact()

    def view(self, root: Path) -> dict[str, Any]:
        with opslog.open(root, agent="reader") as store:
            view: dict[str, Any] = {
                "items": list(store.items()),
                "len": len(store),
                "found": store.find("n > 70"),
                "contains": [id for id in (f"id-{number:02}" for number in range(41)) if id in store],
                "gets": [store.get(f"id-{number:02}") for number in range(41)],
                "records": [store.record(f"id-{number:02}") for number in range(41)],
            }
            view["has_lines"] = replica_of(store).state.lines is not None
            store["id-03"] = {"new": True}
            store.pop("id-04", None)
            store["id-99"] = {"new": True}
            view["after"] = list(store.items())
            layers = replica_of(store).read(State.layers)
            below = {record.id: record for text in layers.lines for record in decode_records(bytes(text), "x", 0)}
            view["layers"] = sorted((id, record.stamp, record.op) for id, record in (below | layers.above).items())
            view["after_len"] = len(store)
            assert [store.undo() for _ in range(3)] == [True] * 3
            view["undone"] = list(store.items())
            view["undone_len"] = len(store)
            store.refresh()
            with store.transaction() as transaction:
                view["transaction"] = list(transaction.items())
        return view

    @pytest.mark.parametrize("compacts", [False, True])
    @pytest.mark.parametrize("seed", range(4))
    def test_a_store_is_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, compacts: bool
    ) -> None:
        self.fill(tmp_path / "one", seed, compacts)
        shutil.copytree(tmp_path / "one", tmp_path / "other")
        use(monkeypatch, False)
        expected = self.view(tmp_path / "one")
        assert not expected.pop("has_lines")
        use(monkeypatch, True)
        found = self.view(tmp_path / "other")
        assert found.pop("has_lines") or compacts
        for key, value in found.items():
            if key == "records":
                continue
            assert value == expected[key], key
        assert found["records"] == expected["records"]

    def test_a_commit_that_comes_late_does_not_outrank_a_line(self, tmp_path: Path) -> None:
        with opslog.open(tmp_path, agent="late", settings=opslog.Settings(undo_window=5)) as late:
            self.fill(tmp_path, 0, False)
            with opslog.open(tmp_path, read_only=True) as store:
                lines = replica_of(store).state.lines
                assert lines is not None
                id = next(iter(lines.ids()))
                before = store.get(id)
                late[id] = {"by": "late"}  # without having read what others wrote
                store.refresh()
                assert store.get(id) == before

    def test_damage_is_reported_alike(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fill(tmp_path, 0, False)
        path = sorted((tmp_path / "ops" / "a").glob("*.jsonl"))[0]
        data = path.read_bytes()
        random_ = random.Random(3)
        raised = 0
        for _ in range(150):
            path.write_bytes(mutate(data, random_, [data]))
            outcomes = []
            for used in (False, True):
                use(monkeypatch, used)
                try:
                    with opslog.open(tmp_path, read_only=True) as store:
                        outcomes.append(repr((len(store), [store.get(id) for id in store])))
                except opslog.OpslogError as error:
                    outcomes.append(f"{type(error).__name__}: {error}")
                    raised += used
            assert outcomes[0] == outcomes[1]
        assert raised > 20


def test_a_document_that_is_kept_as_a_line_is_kept_decoded(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="planner") as store:
        for number in range(4000):
            store[f"d{number:04}"] = {"number": number, "tags": ["a"]}
    with opslog.open(tmp_path, agent="builder") as store:
        replica = replica_of(store)
        lines = replica.state.lines
        assert lines is not None
        assert "d0007" in lines
        assert store.get("d0007") == {"number": 7, "tags": ["a"]}
        assert "d0007" in replica.decoded.by_id

        own = store["d0007"]
        own["tags"].append("the caller's")
        assert store["d0007"] == {"number": 7, "tags": ["a"]}
        store["d0007"] = {"number": -7}
        assert store["d0007"] == {"number": -7}
        store.undo()
        assert store["d0007"] == {"number": 7, "tags": ["a"]}
        del store["d0007"]
        assert "d0007" not in store
        store.undo()
        assert store["d0007"] == {"number": 7, "tags": ["a"]}
