"""The manifest format, and manifests on storage."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from msgspec.structs import replace

import opslog
from opslog.backends import Backend, open_backend
from opslog.environment import REAL
from opslog.errors import (
    AlreadyExistsError,
    CorruptError,
    FormatVersionError,
    MissingFileError,
    NotFoundError,
    RetryError,
)
from opslog.format import checksum
from opslog.format.checksum import crc32, decode_checked, encode_checked, sha256
from opslog.format.layout import manifest_path, part_path, part_paths
from opslog.format.manifest import FORMAT, Cut, Manifest, Part, Run, Settings, decode_manifest, encode_manifest
from opslog.snapshot.manifests import ManifestStore, first_retained

_numbers = itertools.count()
MANIFEST = Manifest(
    number=7,
    created="2026-11-20T12:00:00.123456Z",
    clock=2**63 - 1,
    ts="2026-11-20T11:00:00.000000Z",
    documents=3,
    cut={"a": Cut(2, 100, 7), "b": Cut(1, 0, 1)},
    runs=[
        Run("00000000000000000007-ab", [Part(part_path("00000000000000000007-ab", 0), 4, 3, 400, "é", "😀", "00")]),
        Run("00000000000000000002-cd", [Part(part_path("00000000000000000002-cd", 0), 1, 1, 90, "a", "a", "00")]),
    ],
    settings=Settings(undo_window=5, keep_history_seconds=None),
)


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 100_000])
def test_a_checksum_is_the_same_whoever_computes_it(length: int) -> None:
    data = bytes(range(256)) * (length // 256 + 1)
    assert sha256(data[:length]) == sha256(memoryview(data)[:length]) == hashlib.sha256(data[:length]).hexdigest()


def test_it_comes_back() -> None:
    data = encode_manifest(MANIFEST)
    assert data.count(b"\n") == 1
    assert decode_manifest(data, "m", 7) == MANIFEST
    assert MANIFEST.commits == 8
    assert MANIFEST.runs[0].records == 4
    assert MANIFEST.runs[0].bytes == 400


def test_default_settings_take_no_room() -> None:
    assert b'"settings":{}' in encode_manifest(Manifest(number=1, created=""))


def test_every_flipped_bit_and_every_length_is_found() -> None:
    data = encode_manifest(MANIFEST)
    for place in range(len(data)):
        for bit in range(8):
            with pytest.raises(CorruptError, match="checksum does not fit"):
                decode_manifest(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :], "m", 7)
        with pytest.raises(CorruptError) as caught:
            decode_manifest(data[:place], "manifests/7", 7)
        assert (caught.value.path, caught.value.offset) == ("manifests/7", 0)


class Future(msgspec.Struct):
    format: int
    unknown: dict[str, int]
    number: int = 7


def test_a_newer_format_says_what_is_needed() -> None:
    with pytest.raises(FormatVersionError, match="upgrade opslog") as caught:
        decode_manifest(encode_checked(Future(FORMAT + 4, {"x": 1})), "m", 7)
    assert caught.value.needed == FORMAT + 4


class OtherForm(msgspec.Struct):
    format: int
    runs: str = "elsewhere"


def test_a_newer_format_may_have_another_form() -> None:
    with pytest.raises(FormatVersionError, match="upgrade opslog"):
        decode_manifest(encode_checked(OtherForm(FORMAT + 1)), "m", 7)
    with pytest.raises(CorruptError, match="the form is not"):
        decode_manifest(encode_checked(OtherForm(FORMAT)), "m", 7)


def test_the_checksum_is_computed_once() -> None:
    """Opening a large store waits for this, because the manifest names very many parts."""
    data = encode_manifest(MANIFEST)
    with patch.object(checksum, "sha256", wraps=sha256) as computed:
        decode_manifest(data, "m", 7)
    assert computed.call_count == 1


def test_a_wrong_form_under_a_right_checksum_is_an_error() -> None:
    with pytest.raises(CorruptError, match="the form is not"):
        decode_manifest(encode_checked(Future(FORMAT, {})), "m", 7)


def test_a_renamed_manifest_is_an_error() -> None:
    with pytest.raises(CorruptError, match="holds manifest number 7"):
        decode_manifest(encode_manifest(MANIFEST), manifest_path(8), 8)


RUN = MANIFEST.runs[0]
PART = RUN.parts[0]
HOSTILE: dict[str, dict[str, Any]] = {
    "a part above the root": {"runs": [Run(RUN.name, [replace(PART, path="snapshots/../../etc/passwd")])]},
    "an absolute part": {"runs": [Run(RUN.name, [replace(PART, path="/etc/passwd")])]},
    "a part in a log": {"runs": [Run(RUN.name, [replace(PART, path="ops/a/00000000000000000001.jsonl")])]},
    "a part with a NUL": {"runs": [Run(RUN.name, [replace(PART, path=PART.path + "\0")])]},
    "a run above the root": {"runs": [Run("../../x", [replace(PART, path="snapshots/../../x/part-00000.jsonl")])]},
    "a run of a later manifest": {"runs": [Run("00000000000000000008-ab", [PART])]},
    "a run twice": {"runs": [RUN, RUN]},
    "a run of nothing": {"runs": [Run(RUN.name, [])]},
    "an agent above the root": {"cut": {"../../x": Cut(1, 0, 1)}},
    "an agent of nothing": {"cut": {"": Cut(1, 0, 1)}},
    "a segment below the first": {"cut": {"a": Cut(0, 0, 1)}},
    "an offset before the file": {"cut": {"a": Cut(1, -1, 1)}},
    "an offset beyond all files": {"cut": {"a": Cut(1, 2**64, 1)}},
    "a negative undo window": {"settings": Settings(undo_window=-1)},
    "an undo window as large as memory": {"settings": Settings(undo_window=2**70)},
    "a negative grace": {"settings": Settings(grace_seconds=-1)},
    "a clock that no commit can follow": {"clock": 2**63},
    "an oldest manifest before all": {"oldest": -1},
    "an oldest manifest after itself": {"oldest": 8},
    "fewer documents than none": {"documents": -1},
    "more documents than records": {"documents": 5},
}


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_a_manifest_with_a_right_checksum_is_not_believed_everything(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptError, match=r"the checksum is right, but .* opslog did not write it") as caught:
        decode_manifest(encode_manifest(replace(MANIFEST, **changes)), "m", 7)
    assert (caught.value.path, caught.value.offset) == ("m", 0)


def parts_of(count: int) -> list[Part]:
    return [Part(part_path(RUN.name, n), 4, 3, 400, f"{n:03}", f"{n:03}-z", "00", b"") for n in range(count)]


HOSTILE_PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "the name of another one": ({"path": part_path(RUN.name, 7)}, "it names 'snapshots/.*' in place of '{path}'"),
    "a name with a line end": ({"path": part_path(RUN.name, 0) + "\n"}, "it names 'snapshots/.*' in place of '{path}'"),
    "fewer documents than none": ({"live": -1}, "it says of {path} what cannot be"),
    "more documents than records": ({"live": 5}, "it says of {path} what cannot be"),
    "no records": ({"live": 0, "records": 0}, "it says of {path} what cannot be"),
    "more records than bytes": ({"bytes": 3}, "it says of {path} what cannot be"),
    "an end before its beginning": ({"last": ""}, "it says of {path} what cannot be"),
    "a beginning before the end of the part before it": ({"first": "", "last": "x"}, "it says that {path} begins with"),
    "half a hash": ({"shared": b"123"}, "it lists ids of {path} .* as nobody can: .* cut short"),
    "more hashes than records": ({"shared": bytes(range(20))}, "it lists ids of {path} .* as nobody can: there are 5"),
    "hashes in no order": ({"shared": b"00020001"}, "it lists ids of {path} .* as nobody can: its hashes"),
}


@pytest.mark.parametrize("number", [1, 298, 299])
@pytest.mark.parametrize(("changes", "expected"), HOSTILE_PARTS.values(), ids=HOSTILE_PARTS)
def test_no_part_is_believed_everything(changes: dict[str, Any], expected: str, number: int) -> None:
    parts = parts_of(300)
    assert (
        decode_manifest(encode_manifest(replace(MANIFEST, runs=[Run(RUN.name, parts)])), "m", 7).runs[0].parts == parts
    )
    was = parts[number]
    parts[number] = replace(was, **changes)
    data = encode_manifest(replace(MANIFEST, runs=[Run(RUN.name, parts)]))
    path = re.escape(was.path if "place" in expected else parts[number].path)
    with pytest.raises(CorruptError, match=f"the checksum is right, but {expected.format(path=path)}"):
        decode_manifest(data, "m", 7)


def test_the_paths_of_parts() -> None:
    """Also when others were asked for before."""
    for count in (3, 0, 2, 10, 7):
        assert part_paths("r", count) == [part_path("r", number) for number in range(count)]
    assert part_path("r", 123456) == "snapshots/r/part-123456.jsonl"


@pytest.mark.parametrize("body", [b'{"format":' + b"[" * 5000, b'{"x":' + b"[" * 5000, b'{"x":"\xff"'])
def test_a_manifest_that_no_decoder_takes(body: bytes) -> None:
    data = body + b',"checksum":"' + sha256(body).encode() + b'"}\n'
    with pytest.raises(CorruptError, match="the checksum is right but the form is not"):
        decode_manifest(data, "m", 7)


@pytest.mark.parametrize(
    "settings",
    [
        {"undo_window": -1},
        {"undo_window": 2.0},
        {"undo_window": True},
        {"undo_window": None},
        {"undo_window": "60"},
        {"grace_seconds": math.nan},
        {"grace_seconds": None},
        {"grace_seconds": True},
        {"grace_seconds": "60"},
        {"tombstone_ttl_seconds": None},
        {"undo_ttl_seconds": math.inf},
        {"keep_history_seconds": 10**400},
        {"keep_history_seconds": 10**300},  # another number would be read, the nearest float
        {"undo_ttl_seconds": 2**53 + 1},
    ],
    ids=lambda given: repr(given)[:40],
)
def test_no_store_is_made_with_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    """Otherwise its first manifest could not be read, and nobody could open it."""
    with pytest.raises(opslog.UsageError, match="cannot have these settings"):
        opslog.open(f"memory://settings-{next(_numbers)}", settings=Settings(**settings))


def test_the_last_clock_is_not_passed() -> None:
    """Nobody could read a line with a greater clock again."""
    url = f"memory://last-{next(_numbers)}"
    backend = open_backend(url)
    ManifestStore(backend).create(Manifest(number=1, created="", clock=2**63 - 2))
    with opslog.open(url) as store:
        store["last"] = {}
        with pytest.raises(CorruptError, match="no commit can follow clock 9223372036854775807"):
            store["one more"] = {}
    with opslog.open(url) as store:
        assert list(store) == ["last"]


def test_checksums_are_the_standard_ones() -> None:
    assert crc32(b"123456789") == "cbf43926"
    assert sha256(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert decode_checked(encode_checked(MANIFEST), Manifest, "m") == MANIFEST


# -- on storage


@pytest.fixture
def backend() -> Iterator[Backend]:
    backend = open_backend(f"memory://manifest-{next(_numbers)}")
    yield backend
    backend.close()


def manifest(number: int, **fields: Any) -> Manifest:
    return Manifest(number=number, created="", **fields)


def test_the_manifest_with_the_greatest_number_counts(backend: Backend) -> None:
    store = ManifestStore(backend)
    assert store.newest_number() == 0
    for number in (1, 9, 10, 2):
        store.create(manifest(number))
    backend.create("manifests/99.json", b"not a name")
    assert [number for number, _ in store.entries()] == [1, 2, 9, 10]
    assert store.newest().number == 10
    assert store.read(2).number == 2
    with pytest.raises(MissingFileError):
        store.read(3)
    with pytest.raises(AlreadyExistsError):
        store.create(manifest(9))


def test_there_is_no_store_or_it_lost_its_manifests(backend: Backend) -> None:
    with pytest.raises(NotFoundError, match="no store at memory://"):
        ManifestStore(backend).newest()
    backend.create("ops/a/notes", b"no log")
    with pytest.raises(NotFoundError):
        ManifestStore(backend).newest()
    backend.create("ops/a/00000000000000000001.jsonl", b"")
    with pytest.raises(CorruptError, match="there are logs but no manifest"):
        ManifestStore(backend).newest()


def test_racing_creators_of_the_first_agree(backend: Backend) -> None:
    barrier = threading.Barrier(8)
    seen: list[int] = []

    def create(window: int) -> None:
        store = ManifestStore(backend)
        barrier.wait()
        store.create_first(Settings(undo_window=window), REAL)
        seen.append(store.newest().settings.undo_window)

    threads = [threading.Thread(target=create, args=(window,)) for window in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 1
    assert len(seen) == 8


def test_a_read_starts_again_after_a_newer_manifest(backend: Backend) -> None:
    store = ManifestStore(backend)
    store.create(manifest(1))
    seen: list[int] = []

    def read(manifest_: Manifest) -> int:
        seen.append(manifest_.number)
        if manifest_.number < 4:
            ManifestStore(backend).create(manifest(manifest_.number + 1))
        return manifest_.number

    assert store.read_consistently(store.newest, read) == 4
    assert seen == [1, 2, 3, 4]


def test_a_file_that_was_collected_means_again_and_a_lost_one_an_error(backend: Backend) -> None:
    store = ManifestStore(backend)
    store.create(manifest(1))
    attempts = 0

    def read(manifest_: Manifest) -> str:
        nonlocal attempts
        attempts += 1
        if manifest_.number == 1:
            ManifestStore(backend).create(manifest(2))
            raise MissingFileError("ops/a/1 is missing", "ops/a/1")
        return "read"

    assert store.read_consistently(store.newest, read) == "read"
    assert attempts == 2

    def lost(manifest_: Manifest) -> str:
        raise MissingFileError("ops/a/1 is missing", "ops/a/1")

    with pytest.raises(CorruptError, match="manifest 2 needs a file that was lost: ops/a/1 is missing") as caught:
        store.read_consistently(store.newest, lost)
    assert caught.value.path == "ops/a/1"


def test_a_store_that_keeps_changing_is_not_waited_for_for_ever(backend: Backend) -> None:
    store = ManifestStore(backend)
    store.create(manifest(1))

    def read(manifest_: Manifest) -> None:
        ManifestStore(backend).create(manifest(manifest_.number + 1))

    with pytest.raises(RetryError, match="faster than the store can be read"):
        store.read_consistently(store.newest, read)


def test_settings_are_those_of_the_creator() -> None:
    url = f"memory://manifest-{next(_numbers)}"
    with opslog.open(url, agent="a", settings=Settings(undo_window=3)):
        with pytest.raises(opslog.UsageError, match="undo_window is 3, not 9"):
            opslog.open(url, agent="b", settings=Settings(undo_window=9))
        opslog.open(url, agent="b").close()
        assert ManifestStore(open_backend(url)).newest().settings.undo_window == 3


@pytest.mark.parametrize(
    ("numbers", "oldest", "retained"),
    [
        ([], 1, []),
        ([1], 1, [1]),
        ([1, 2, 3], 1, [1, 2, 3]),
        ([1, 2, 3], 2, [2, 3]),
        ([1, 2, 3], 3, [3]),
        ([1, 2, 3], 0, [1, 2, 3]),  # by an older program, which does not name the oldest
        ([1, 4, 5], 1, [4, 5]),  # 1 came back after it was collected
        ([3, 5], 1, [5]),
        ([5], 9, [5]),  # always the newest one
    ],
)
def test_manifests_are_retained_back_to_the_oldest_or_to_a_gap(
    numbers: list[int], oldest: int, retained: list[int]
) -> None:
    assert numbers[first_retained(numbers, oldest) :] == retained
