"""`opslog verify` finds every kind of damage, with file and byte offset, and accepts what is normal."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import Backend, open_backend
from opslog.format.layout import manifest_path, segment_path
from opslog.format.manifest import Cut, Manifest
from opslog.snapshot.manifests import ManifestStore
from opslog.verify.verify import Problem, Report, verify
from tests.support.files import files


def build(url: str) -> None:
    """A store with everything in it."""
    settings = opslog.Settings(undo_window=4)
    with opslog.open(url, agent="a", settings=settings, compact_after=None) as a:
        for number in range(12):
            a[f"a-{number}"] = {"number": number, "text": "x" * number}
        with a.batch():
            a["é 😀\u2028"] = {"nested": [{"deep": None}, 2**64 - 1]}
            del a["a-1"]
        a["gone"] = {}
        a.undo()
        a.compact()
    with opslog.open(url, agent="b", compact_after=None) as b:
        for number in range(12):
            b[f"b-{number}"] = {"number": number}
        del b["a-2"]
        b.compact()
        b.archive(lambda document: document.get("number") == 7, "old")
        b.undo()
        b.archive(lambda document: document.get("number") == 8, "old")
        b.compact()
        b["tail"] = {}
    with opslog.open(url, agent="a", compact_after=None) as a:
        a["again"] = {}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template") / "store"
    build(str(root))
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "store")


def check(root: Path | str, **options: Any) -> Report:
    backend = open_backend(str(root), create=False)
    try:
        return verify(backend, **options)
    finally:
        backend.close()


def content(root: Path) -> dict[str, Any]:
    with opslog.open(root, read_only=True) as store:
        return dict(store.items())


def first(root: Path, pattern: str) -> str:
    """The path of the first matching file, relative to the store."""
    return min(path.relative_to(root).as_posix() for path in root.glob(pattern))


def found(report: Report, path: str) -> list[Problem]:
    """The errors of one file. There must be some."""
    errors = [problem for problem in report.problems if problem.severity == "error" and problem.path == path]
    assert errors, f"nothing was found in {path}: {report.problems}"
    assert not report.ok
    return errors


def bytes_of(root: Path, skip: str = "") -> dict[str, bytes]:
    return {path: (root / path).read_bytes() for path in files(root) if not (skip and path.startswith(skip))}


# -- nothing is wrong


def test_a_sound_store_has_no_problems(root: Path) -> None:
    report = check(root)
    assert report.problems == []
    assert report.ok
    assert (report.manifests, report.archives, report.segments) == (4, 2, 3)
    assert report.commits == 15 + 16 + 1 + 1  # of a; of b, and its tail; of a again
    assert report.runs >= 2
    assert report.parts >= 2
    assert report.records > 20
    assert report.bytes >= sum(len(data) for data in bytes_of(root).values())


def test_a_sound_store_in_memory_has_no_problems() -> None:
    build("memory://verified")
    report = check("memory://verified")
    assert report.problems == []
    assert report.commits == 33


def test_verifying_writes_nothing_but_the_clock(root: Path) -> None:
    before = bytes_of(root)
    check(root)
    check(root, repair=True)
    assert bytes_of(root) == before


def test_there_must_be_a_store(tmp_path: Path) -> None:
    with pytest.raises(opslog.NotFoundError):
        check(tmp_path / "nowhere")
    with pytest.raises(opslog.NotFoundError, match="no store at"):
        check(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_newer_format_is_not_judged(root: Path) -> None:
    from opslog.format.checksum import encode_checked
    from opslog.format.manifest import decode_manifest

    path = root / manifest_path(4)
    newer = decode_manifest(path.read_bytes(), "", 4)
    path.write_bytes(
        encode_checked(type(newer)(**{**{name: getattr(newer, name) for name in newer.__struct_fields__}, "format": 2}))
    )
    with pytest.raises(opslog.FormatVersionError, match="upgrade"):
        check(root)


def test_progress_ends_at_the_total(root: Path) -> None:
    calls: list[tuple[int, int]] = []
    report = check(root, progress=lambda done, total: calls.append((done, total)))
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert all(done <= total for done, total in calls)
    assert calls[-1][0] == report.bytes


# -- every byte of every checked file


@pytest.mark.parametrize(
    "pattern", ["snapshots/*/*.jsonl", "snapshots/*/*.index", "manifests/*", "archive/*/*.jsonl", "archive/*/*.index"]
)
def test_every_changed_byte_is_found(root: Path, pattern: str) -> None:
    path = first(root, pattern)
    data = (root / path).read_bytes()
    for offset in range(0, len(data), max(1, len(data) // 150)):
        (root / path).write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        errors = found(check(root), path)
        assert min(error.offset or 0 for error in errors) <= offset
    (root / path).write_bytes(data)
    assert check(root).problems == []


@pytest.mark.parametrize(
    "pattern", ["snapshots/*/*.jsonl", "snapshots/*/*.index", "manifests/*", "archive/*/*.jsonl", "archive/*/*.index"]
)
def test_every_other_length_is_found(root: Path, pattern: str) -> None:
    path = first(root, pattern)
    data = (root / path).read_bytes()
    for length in [*range(0, len(data), max(1, len(data) // 80)), len(data) - 1]:
        (root / path).write_bytes(data[:length])
        found(check(root), path)
    (root / path).write_bytes(data + b"\n")
    found(check(root), path)


@pytest.mark.parametrize(
    "pattern", ["snapshots/*/*.jsonl", "snapshots/*/*.index", "archive/*/*.jsonl", "ops/a/*1.jsonl", "ops/b/*1.jsonl"]
)
def test_every_missing_file_is_found(root: Path, pattern: str) -> None:
    path = first(root, pattern)
    (root / path).unlink()
    (error,) = found(check(root), path)
    assert "it is not there" in error.message


def test_a_missing_log_is_found(root: Path) -> None:
    shutil.rmtree(root / "ops" / "b")
    found(check(root), segment_path("b", 1))


def test_lost_manifests_are_found(root: Path) -> None:
    (root / manifest_path(3)).unlink()
    report = check(root)
    assert report.ok, "the newest is the truth, and it is there"
    (note, *_) = report.problems
    assert (note.path, note.severity) == (manifest_path(3), "note")
    shutil.rmtree(root / "manifests")
    (error,) = found(check(root), "manifests/")
    assert "logs but no manifest" in error.message


# -- logs


def lines_of(root: Path, path: str) -> list[bytes]:
    return (root / path).read_bytes().splitlines(keepends=True)


def offset_of(lines: list[bytes], number: int) -> int:
    return sum(map(len, lines[:number]))


EDITS: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int, str]] = {
    "swapped": (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], 4, "clocks must increase"),
    "doubled": (lambda lines: [*lines[:4], lines[3], *lines[4:]], 4, "clocks must increase"),
    "no JSON": (lambda lines: [*lines[:3], b"\x00" * (len(lines[3]) - 1) + b"\n", *lines[4:]], 3, "cannot be read"),
    "another agent's": (
        lambda lines: [*lines[:3], lines[3].replace(b'"agent":"b"', b'"agent":"z"'), *lines[4:]],
        3,
        "agent 'z'",
    ),
    "an unknown op": (
        lambda lines: [*lines[:3], lines[3].replace(b'"op":"set"', b'"op":"put"'), *lines[4:]],
        3,
        "cannot be read",
    ),
    "no time": (lambda lines: [*lines[:3], lines[3].replace(b'{"ts":"20', b'{"ts":"xx'), *lines[4:]], 3, "ts is"),
    "no document": (
        lambda lines: [*lines[:3], lines[3].replace(b'{"number":3}', b'["number",3]'), *lines[4:]],
        3,
        "not a JSON object",
    ),
    "joined": (lambda lines: [*lines[:3], lines[3][:-1] + b" ", *lines[4:]], 3, "cannot be read"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edited_logs_are_found_at_the_line(root: Path, edit: str) -> None:
    path = segment_path("b", 1)
    lines = lines_of(root, path)
    change, number, text = EDITS[edit]
    changed = change(lines)
    (root / path).write_bytes(b"".join(changed))
    error = found(check(root), path)[0]
    assert error.offset == offset_of(changed if edit == "doubled" else lines, number)
    assert text in error.message


def test_a_lost_line_is_found_by_the_cut(root: Path) -> None:
    path = segment_path("b", 1)
    lines = lines_of(root, path)
    (root / path).write_bytes(b"".join(lines[:3] + lines[4:]))
    report = check(root)
    assert not report.ok
    assert any(
        "says that one does" in problem.message or "commits of 'b' lie before" in problem.message
        for problem in report.problems
    )


def test_an_undo_of_nothing_is_found(root: Path) -> None:
    path = segment_path("a", 1)
    lines = lines_of(root, path)
    (undo,) = (number for number, line in enumerate(lines) if b'"op":"undo"' in line)
    clock = json.loads(lines[undo])["clock"]
    lines[undo] = lines[undo].replace(b'"target":%d' % (clock - 1), b'"target":%d' % (clock + 1))
    (root / path).write_bytes(b"".join(lines))
    error = found(check(root), path)[0]
    assert error.offset == offset_of(lines, undo)
    assert "it undoes clock" in error.message


def commit(clock: int, op: str, **fields: Any) -> bytes:
    return json.dumps({"ts": "2026-11-24T12:00:00.000000Z", "clock": clock, "agent": "a", "op": op, **fields}).encode()


def put(clock: int) -> bytes:
    return commit(clock, "set", id=f"id-{clock}", data={})


def undo(clock: int, target: int) -> bytes:
    return commit(clock, "undo", target=target)


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([put(1), undo(2, 1)], None),
        ([put(1), put(2), undo(3, 2), undo(4, 1)], None),
        ([put(1), put(2), undo(3, 1)], None),  # another implementation may undo what is not the newest
        ([undo(2, 1)], "no commit of 'a' that may still be undone"),
        ([put(1), undo(2, 1), undo(3, 1)], "undone already"),
        ([put(1), undo(2, 1), undo(3, 2)], "a commit that changed nothing"),
        ([put(1), commit(2, "seal"), undo(3, 1)], "no commit of 'a' that may still be undone"),
        ([put(1), commit(2, "seal"), undo(3, 2)], "no commit of 'a' that may still be undone"),
        ([put(1), put(2), put(3), put(4), undo(5, 1)], None),
        ([put(1), put(2), put(3), put(4), put(5), undo(6, 1)], "no commit of 'a' that may still be undone"),
        ([put(1), put(2), b"{", undo(9, 2)], "cannot be read"),  # and no error about the undo
    ],
)
def test_each_undo_cancels_something(tmp_path: Path, lines: list[bytes], wrong: str | None) -> None:
    with opslog.open(tmp_path, agent="b", settings=opslog.Settings(undo_window=4)) as store:
        store["b"] = {}
    path = tmp_path / segment_path("a", 1)
    path.parent.mkdir()
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    report = check(tmp_path)
    if wrong is None:
        assert report.ok
    else:
        (error,) = found(report, segment_path("a", 1))
        assert wrong in error.message


def test_a_torn_tail_is_normal(root: Path) -> None:
    last = first(root, "ops/a/*2.jsonl")
    whole = (root / last).read_bytes()
    for torn in (b"{", whole[:-1], whole[:50]):
        (root / last).write_bytes(whole + torn)
        report = check(root)
        assert report.ok
        (note,) = report.problems
        assert (note.severity, note.path, note.offset) == ("note", last, len(whole))
        assert "Normal after a crash" in note.message
    assert (root / last).read_bytes() == whole + torn


# -- manifests that contradict what is there


def rewrite(root: Path, number: int, **changes: Any) -> None:
    """Give a manifest another content, with a checksum that fits it."""
    import msgspec

    from opslog.format.manifest import decode_manifest, encode_manifest

    path = root / manifest_path(number)
    manifest = decode_manifest(path.read_bytes(), "", number)
    path.write_bytes(encode_manifest(msgspec.structs.replace(manifest, **changes)))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"documents": 3}, "says that its snapshot shows 3 documents"),
        ({"clock": 5}, "its clock is 5"),
        ({"ts": "2000-01-01T00:00:00.000000Z"}, "its ts is"),
        ({"cut": {}}, "has no cut of"),
        ({"settings": opslog.Settings(undo_window=9)}, "another undo window"),
    ],
)
def test_a_manifest_that_contradicts_the_rest_is_found(root: Path, changes: dict[str, Any], text: str) -> None:
    rewrite(root, 4, **changes)
    assert any(text in error.message for error in found(check(root), manifest_path(4)))


def test_a_cut_inside_a_line_is_found(root: Path) -> None:
    from opslog.format.manifest import Cut, decode_manifest

    cut = decode_manifest((root / manifest_path(4)).read_bytes(), "", 4).cut
    rewrite(root, 4, cut={**cut, "b": Cut(1, cut["b"].offset + 3, cut["b"].commits)})
    (error,) = found(check(root), segment_path("b", 1))
    assert error.offset == cut["b"].offset + 3


# -- beside writers and compactions


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Path]:
    """A store that two threads write to and a third one compacts, with garbage collected at once."""
    root = tmp_path / "busy"
    stop = threading.Event()
    failures: list[BaseException] = []
    settings = opslog.Settings(undo_window=3, grace_seconds=0)
    stores = [opslog.open(root, agent=name, settings=settings, compact_after=None) for name in ("a", "b", "c")]

    def write(store: opslog.Store[Any]) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with store.batch():
                store[f"doc-{number % 50}"] = {"number": number}
                store[f"{store.stats().agents}-{number % 7}"] = {"number": number}
            if number % 9 == 0:
                store.undo()

    def compact() -> None:
        while not stop.is_set():
            stores[2].compact()

    def guarded(work: Callable[..., None], *arguments: Any) -> Callable[[], None]:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:
                failures.append(error)
                raise

        return run

    threads = [threading.Thread(target=guarded(write, store)) for store in stores[:2]]
    threads.append(threading.Thread(target=guarded(compact)))
    for thread in threads:
        thread.start()
    yield root
    stop.set()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert not failures


def test_no_false_alarm_beside_writers_and_compactions(busy: Path) -> None:
    backend: Backend = open_backend(str(busy))
    numbers: set[str] = set()
    checks = 0
    while checks < 30 or len(numbers) < 2:  # so that compactions happened meanwhile
        report = verify(backend)
        assert [str(problem) for problem in report.problems if problem.severity == "error"] == []
        numbers.add(files(busy)[0])
        checks += 1
    backend.close()


INEXACT = {
    "an integer beyond 64 bits": b'{"n":18446744073709551616}',
    "a name twice in a document": b'{"n":1,"n":2}',
    "255 levels": b'{"n":' * 254 + b"{}" + b"}" * 254,
}


@pytest.mark.parametrize("text", INEXACT.values(), ids=INEXACT)
def test_a_document_that_decoders_could_read_differently_is_reported(tmp_path: Path, text: bytes) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {"n": 1}
    log = tmp_path / segment_path("a", 1)
    log.write_bytes(log.read_bytes().replace(b'{"n":1}', text))
    assert [(problem.path, problem.offset) for problem in verify(open_backend(tmp_path)).problems] == [
        (segment_path("a", 1), 0)
    ]


def test_a_line_with_a_field_twice_is_reported(tmp_path: Path) -> None:
    """Readers take the last one, and cannot afford to check. Another program may take the first one."""
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {"n": 1}
    log = tmp_path / segment_path("a", 1)
    log.write_bytes(log.read_bytes().replace(b'"clock":1', b'"clock":7,"clock":1'))
    (problem,) = verify(open_backend(tmp_path)).problems
    assert (problem.severity, problem.path, problem.offset) == ("error", segment_path("a", 1), 0)
    assert "'clock' twice" in problem.message


def test_only_some_of_many_missing_segments_are_named(tmp_path: Path) -> None:
    """A manifest may say that very many are missing. Memory and time must not grow with that number."""
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {}
    backend = open_backend(tmp_path)
    cut = {"a": Cut(2**53, 10, 1), "gone": Cut(5, 10, 9)}
    ManifestStore(backend).create(Manifest(number=2, created="", clock=1, cut=cut))
    missing = [problem.path for problem in verify(backend).problems if "it is not there" in problem.message]
    assert missing == [
        *(segment_path("a", number) for number in range(2, 102)),
        *(segment_path("gone", number) for number in range(1, 6)),
    ]


def test_two_commits_on_a_line_and_one_on_two_are_reported(tmp_path: Path) -> None:
    """The decoder of many lines at once only counts lines, so readers accept these."""
    with opslog.open(tmp_path, agent="a") as store:
        for number in range(4):
            store["x"] = {"n": number}
    log = tmp_path / segment_path("a", 1)
    first, second, third, fourth = log.read_bytes().splitlines()
    log.write_bytes(b"\n".join([first + second, third.replace(b',"op"', b'\n,"op"'), fourth, b""]))
    problems = [(problem.path, problem.offset) for problem in verify(open_backend(tmp_path)).problems]
    offset = len(first + second) + 1
    assert problems[:3] == [(segment_path("a", 1), place) for place in (0, offset, offset + third.index(b',"op"') + 1)]
