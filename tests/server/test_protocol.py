"""Requirements of the protocol that the official suite does not check, on each storage."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import httpx
import pytest

from opslog.server.protocol.storage import Storage
from tests.server.conftest import Clock, Make
from tests.support.asgi import Caller

TEXT = {"content-type": "text/plain"}
JSON = {"content-type": "application/json"}
ZERO = f"{0:016}_{0:016}"


def test_a_body_that_is_not_json_leaves_no_stream(client: Caller) -> None:
    for body in (b'{"a":', b'"\xff"', b"[1,]", b"NaN", b'"\\ud800"', b"[" * 100_000):
        assert client.put("a", content=body, headers=JSON).status_code == 400
    assert client.head("a").status_code == 404
    assert client.put("a", headers=JSON).status_code == 201
    assert client.put("a", content=b"{", headers=JSON).status_code == 200, (
        "the body of a stream that is there is not read"
    )


def test_numbers_and_spaces_stay_as_they_were_written(client: Caller) -> None:
    client.put("a", headers=JSON)
    exact = b'{"n": 12345678901234567890123, "f":1.0,"e":1E400 ,\t"z":-0}'
    client.post("a", content=b" [ " + exact + b" , [1,[2]],\n0.10]\r\n", headers=JSON)
    client.post("a", content=b"\n1.50 ", headers=JSON)
    assert client.get("a").content == b"[" + exact + b",[1,[2]],0.10,1.50]"


def test_events_of_the_state_protocol_stay_as_they_were_written(client: Caller) -> None:
    client.put("a", headers=JSON)
    change = b'{"type":"user","key":"1","value":{},"headers":{"operation":"insert"}}'
    control = b'{"headers":{"control":"reset","offset":"0000000000000000_0000000000000000"}}'
    client.post("a", content=b"[%s,%s]" % (change, control), headers=JSON)
    assert client.get("a").content == b"[%s,%s]" % (change, control)


def test_a_stream_that_expires_at_once_is_gone_at_once(client: Caller) -> None:
    for headers in ({"stream-ttl": "0"}, {"stream-expires-at": "2001-01-01T00:00:00Z"}):
        assert client.put("a", headers=TEXT | headers).status_code == 201
        assert client.get("a").status_code == 404
        assert client.post("a", content=b"x", headers=TEXT).status_code == 404


@pytest.mark.parametrize("value", ["true", "TRUE", "True"])
def test_closing_in_any_case(client: Caller, value: str) -> None:
    assert client.put("a", headers=TEXT | {"stream-closed": value}).headers["stream-closed"] == "true"
    client.put("b", headers=TEXT)
    assert client.post("b", headers={"stream-closed": value}).status_code == 204
    assert client.head("b").headers["stream-closed"] == "true"


@pytest.mark.parametrize("value", ["false", "yes", "1", ""])
def test_other_values_do_not_close(client: Caller, value: str) -> None:
    assert "stream-closed" not in client.put("a", headers=TEXT | {"stream-closed": value}).headers
    assert client.post("a", content=b"x", headers=TEXT | {"stream-closed": value}).status_code == 204
    assert client.post("a", headers={"stream-closed": value}).status_code == 400


def test_reserved_and_impossible_paths(client: Caller) -> None:
    assert client.put("__ds/anything", headers=TEXT).status_code == 404
    for path in ("", "a/%2E/b", "a/%2e%2e/b", "%2E%2E", "a%00b", "a%0Ab", "%FF", "x" * 501):
        url = httpx.URL("http://test").copy_with(raw_path=f"/v1/stream/{path}".encode())
        assert client.put(url, headers=TEXT).status_code == 400, path
    assert client.put("x" * 500, headers=TEXT).status_code == 201
    assert client.get("http://test/elsewhere").status_code == 404


def test_other_methods_say_which_there_are(client: Caller) -> None:
    answer = client.request("PATCH", "a")
    assert answer.status_code == 405
    assert "POST" in answer.headers["allow"]
    assert client.post("http://test/healthz").status_code == 405


def test_a_large_body_is_refused_before_and_while_it_arrives(make: Make) -> None:
    client = make(max_body_bytes=10)
    client.put("a", headers=TEXT)
    assert client.post("a", content=b"x" * 11, headers=TEXT).status_code == 413
    assert client.post("a", content=([b"x" * 6, b"x" * 5]), headers=TEXT).status_code == 413
    assert client.post("a", content=([b"x" * 6, b"y" * 4]), headers=TEXT).status_code == 204
    assert client.get("a").content == b"xxxxxxyyyy"


@pytest.mark.parametrize("content", [b"packed", [b"pack", b"ed"]])
def test_a_compressed_body_is_refused(client: Caller, content: bytes | list[bytes]) -> None:
    """It would be stored as it came, and readers would not know that it is compressed."""
    client.put("a", headers=TEXT)
    for path, send in (("a", client.post), ("b", client.put), ("__ds/subscriptions/s", client.put)):
        refused = send(path, content=content, headers={**TEXT, "content-encoding": "gzip"})
        assert (refused.status_code, "Content-Encoding" in refused.text) == (415, True)
    refused = client.post("a", content=content, headers=[*TEXT.items(), *[("content-encoding", "identity")] * 2])
    assert (refused.status_code, refused.headers["accept-encoding"]) == (415, "identity")
    assert client.get("a").content == b""
    assert client.get("b").status_code == 404
    assert client.post("a", content=content, headers={**TEXT, "content-encoding": "Identity"}).status_code == 204
    assert client.put("c", headers={**TEXT, "content-encoding": "gzip"}).status_code == 201, "there is no body"


def test_too_many_requests(make: Make, clock: Clock) -> None:
    client = make(rate=2.0)
    statuses = [client.put("a", headers=TEXT).status_code for _ in range(5)]
    assert statuses == [201, 200, 200, 200, 429]
    answer = client.get("a")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    clock.now += 0.5
    assert client.get("a").status_code == 200
    assert client.get("a").status_code == 429


def test_producer_numbers_have_a_greatest(client: Caller) -> None:
    client.put("a", headers=TEXT)

    def post(epoch: str, seq: str) -> int:
        headers = TEXT | {"producer-id": "p", "producer-epoch": epoch, "producer-seq": seq}
        return client.post("a", content=b"x", headers=headers).status_code

    assert post(str(2**53), "0") == 400
    assert post("9" * 5000, "0") == 400
    assert post("-1", "0") == 400
    assert post("1", "1e0") == 400
    assert post(str(2**53 - 1), "0") == 200


def test_a_late_append_of_a_producer_finds_its_answer(client: Caller) -> None:
    """Each refusal has what the client needs to continue."""
    client.put("a", headers=TEXT)

    def post(epoch: int, seq: int) -> tuple[int, dict[str, str]]:
        headers = TEXT | {"producer-id": "p", "producer-epoch": str(epoch), "producer-seq": str(seq)}
        answer = client.post("a", content=b"x", headers=headers)
        refusal = {name: value for name, value in answer.headers.items() if name.startswith("producer-")}
        return answer.status_code, refusal

    assert post(0, 1) == (409, {"producer-expected-seq": "0", "producer-received-seq": "1"})
    assert post(0, 0) == (200, {"producer-epoch": "0", "producer-seq": "0"})
    assert post(0, 2) == (409, {"producer-expected-seq": "1", "producer-received-seq": "2"})
    assert post(2, 1)[0] == 400
    assert post(2, 0)[0] == 200
    assert post(1, 0) == (403, {"producer-epoch": "2"})
    assert client.get("a").content == b"xx"


def test_refusals_come_in_their_order(client: Caller) -> None:
    client.put("a", headers=JSON)
    first = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0", "stream-seq": "b"}
    assert client.post("a", content=b"1", headers=JSON | first).status_code == 200
    wrong_type = client.post("a", content=b"{", headers=TEXT | first)
    assert (wrong_type.status_code, "content type" in wrong_type.text) == (409, True)
    duplicate = client.post("a", content=b"{", headers=JSON | first | {"stream-seq": "a"})
    assert duplicate.status_code == 204, "a duplicate needs neither a good Stream-Seq nor a good body"
    regressed = client.post("a", content=b"{", headers=JSON | {"stream-seq": "a"})
    assert (regressed.status_code, "Stream-Seq" in regressed.text) == (409, True)
    assert client.post("a", content=b"{", headers=JSON | {"stream-seq": "c"}).status_code == 400
    client.post("a", headers={"stream-closed": "true"})
    closed = client.post("a", content=b"{", headers=TEXT | {"stream-seq": "a"})
    assert (closed.status_code, closed.headers["stream-closed"]) == (409, "true")
    assert client.get("a").content == b"[1]"


def test_a_refused_append_changes_nothing(client: Caller) -> None:
    """A body that cannot be accepted does not use up a producer's number."""
    client.put("a", headers=JSON)
    headers = JSON | {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0", "stream-seq": "1"}
    assert client.post("a", content=b"{", headers=headers).status_code == 400
    assert client.post("a", content=b"[]", headers=headers).status_code == 400
    assert client.post("a", content=b"{}", headers=headers).status_code == 200


def test_reads_come_in_chunks(make: Make) -> None:
    client = make(chunk_bytes=10)
    client.put("text", content=b"abcdefghijklmnopqrstuvwxyz", headers=TEXT)
    client.put("json", content=b'["abcdefgh","ijk"]', headers=JSON)
    for number in range(5):
        client.post("json", content=b"%d" % number, headers=JSON)
    client.post("text", headers={"stream-closed": "true"})
    for path, expected in {
        "text": [b"abcdefghij", b"klmnopqrst", b"uvwxyz"],
        "json": [b'["abcdefgh","ijk"]', b"[0,1,2,3,4]"],
    }.items():
        found, offset = [], "-1"
        while True:
            answer = client.get(path, params={"offset": offset})
            found.append(answer.content)
            assert answer.headers["stream-next-offset"] > offset
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                break
            assert "stream-closed" not in answer.headers
        assert found == expected
        assert ("stream-closed" in answer.headers) is (path == "text")


def test_retention_lets_old_data_go(make: Make, storage: Storage) -> None:
    client = make(retain_bytes=40, long_poll_seconds=0.05)
    client.put("a", headers=JSON)
    first = client.post("a", content=b'"0000"', headers=JSON).headers["stream-next-offset"]
    for number in range(1, 30):
        client.post("a", content=b'"%04d"' % number, headers=JSON)
    kept = client.get("a").json()
    assert kept[-1] == "0029"
    assert 6 <= len(kept) <= 9
    assert kept == [f"{number:04}" for number in range(30 - len(kept), 30)]
    earliest = client.head("a").headers["stream-earliest-offset"]
    for params in ({"offset": first}, {"offset": first, "live": "long-poll"}, {"offset": first, "live": "sse"}):
        answer = client.get("a", params=params)
        assert (answer.status_code, answer.headers["stream-earliest-offset"]) == (410, earliest)
    assert client.get("a", params={"offset": earliest}).json() == kept
    fork = {"stream-forked-from": "/v1/stream/a"}
    assert client.put("early", headers=fork | {"stream-fork-offset": first}).status_code == 410
    assert client.put("fork", headers=fork).status_code == 201
    for number in range(30, 60):
        client.post("a", content=b'"%04d"' % number, headers=JSON)
    assert len(client.get("a").json()) == len(kept) + 30, "what a fork reads stays"
    assert client.get("fork").json() == kept
    client.run(client.application.streams.sweep())
    assert client.application.streams.usage().bytes == 7 * (len(kept) + 30)


@pytest.mark.parametrize("path", ["__registry__", "stores/tasks"])
def test_retention_never_applies_to_the_registry_and_to_feeds(make: Make, path: str) -> None:
    client = make(retain_bytes=40)
    client.put(path, headers=JSON)
    for number in range(30):
        client.post(path, content=b'"%04d"' % number, headers=JSON)
    assert len(client.get(path).json()) == 30
    assert "stream-earliest-offset" not in client.head(path).headers


def test_a_message_with_as_many_levels_as_are_accepted_is_read_at_every_offset(client: Caller) -> None:
    def nested(levels: int) -> bytes:
        return b'{"a,\\"[":' * levels + b"1" + b"}" * levels

    deepest = nested(500)
    answer = client.put("deeper", content=nested(501), headers=JSON)
    problem = "a message has more than 500 arrays and objects inside each other\n"
    assert (answer.status_code, answer.text) == (400, problem)
    assert client.put("a", content=deepest, headers=JSON).status_code == 201
    answer = client.get("a", params={"offset": f"{0:016}_{5:016}"})
    assert (answer.status_code, answer.text) == (
        400,
        "the offset lies inside a message: it was not given out by this stream\n",
    )
    assert client.put("many", content=b"[%b,2]" % deepest, headers=JSON).status_code == 201
    assert client.get("many", params={"offset": f"{0:016}_{len(deepest) + 1:016}"}).json() == [2]
    fork = {"stream-forked-from": "/v1/stream/many", "stream-fork-offset": "-1", "stream-fork-sub-offset": "1"}
    assert client.put("fork", headers=fork).status_code == 201
    assert client.get("fork").content == client.get("a").content == b"[%b]" % deepest


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("written", [[4], [1, 3], [2, 2], [1, 1, 1, 1]], ids=str)
def test_an_event_never_ends_within_a_character(client: Caller, cut: int, written: list[int]) -> None:
    """:param cut: how many bytes of a character are before the end of an event.
    :param written: how many bytes of the character each append has.
    """
    start, character, left = b"a" * (256 * 1024 - cut), "😀".encode(), b"b" * 1000
    client.put("text", content=start, headers=TEXT)
    for size in written:
        sent, character = character[:size], character[size:]
        client.post("text", content=sent, headers=TEXT)
    client.post("text", content=left, headers=TEXT | {"stream-closed": "true"})
    answer = client.get("text", params={"offset": "-1", "live": "sse"})
    events = [line for line in answer.content.split(b"\n") if line.startswith(b"data:") and b"stream" not in line]
    assert [event.removeprefix(b"data:").decode() for event in events] == [start.decode(), "😀" + left.decode()]


@pytest.mark.parametrize("query", ["", "?path=", "?path=nothing"])
def test_the_page_finds_no_stream_where_there_is_none(client: Caller, query: str) -> None:
    assert client.get(f"http://test/page/stream{query}").status_code == 404


def test_refused_requests_are_not_counted_as_changes(client: Caller) -> None:
    metrics = client.application.metrics
    client.put("a", headers=TEXT)
    client.post("a", content=b"x", headers=TEXT)
    changes, commits = metrics.changes, sum(metrics.commits.counts)
    for _ in range(5):
        assert client.post("none", content=b"x", headers=TEXT).status_code == 404
    assert (metrics.changes, sum(metrics.commits.counts)) == (changes, commits)
    client.post("a", content=b"x", headers=TEXT)
    assert metrics.changes == changes + 1


def test_offsets_that_were_never_given_out(client: Caller) -> None:
    client.put("a", content=b"[1,22]", headers=JSON)
    offsets = ["-2", "0", ZERO + "x", f"{0:016}_{1:016}", f"{0:016}_{99:016}", f"{1:016}_{2:016}", "9" * 33, "NOW"]
    for offset in offsets:
        assert client.get("a", params={"offset": offset}).status_code == 400, offset
        assert client.get("a", params={"offset": offset, "live": "long-poll"}).status_code == 400, offset
    assert client.get("a", params={"offset": "-1", "live": "often"}).status_code == 400
    between = client.get("a", params={"offset": f"{0:016}_{2:016}"})
    assert between.content == b"[22]", "a place between two messages of one append is one"


class TestConditional:
    def test_every_form_of_a_match(self, client: Caller) -> None:
        client.put("a", content=b"x", headers=TEXT)
        tag = client.get("a").headers["etag"]
        for value in (tag, f"W/{tag}", f'"other", {tag}', "*", f' W/"o" ,{tag} '):
            answer = client.get("a", headers={"if-none-match": value})
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag), value
        for value in ('"other"', tag.strip('"'), tag[:-2] + '"'):
            assert client.get("a", headers={"if-none-match": value}).status_code == 200, value

    def test_closing_changes_the_tag(self, client: Caller) -> None:
        client.put("a", content=b"x", headers=TEXT)
        tag = client.get("a").headers["etag"]
        client.post("a", headers={"stream-closed": "true"})
        answer = client.get("a", headers={"if-none-match": tag})
        assert (answer.status_code, answer.headers["stream-closed"]) == (200, "true")

    def test_a_new_stream_of_the_same_path_has_other_tags(self, client: Caller) -> None:
        client.put("a", content=b"x", headers=TEXT)
        tag = client.get("a").headers["etag"]
        client.delete("a")
        client.put("a", content=b"y", headers=TEXT)
        assert client.get("a", headers={"if-none-match": tag}).content == b"y"

    def test_compressed_answers_have_their_own_tag(self, client: Caller) -> None:
        client.put("a", content=b"x" * 2000, headers=TEXT)
        plain = client.get("a", headers={"accept-encoding": "identity"}).headers["etag"]
        packed = client.get("a", headers={"accept-encoding": "gzip"}).headers["etag"]
        assert plain != packed
        for tag in (plain, packed):
            assert client.get("a", headers={"if-none-match": tag}).status_code == 304

    def test_caches_may_keep_what_never_changes(self, client: Caller, clock: Clock) -> None:
        client.put("a", content=b"x", headers=TEXT)
        tail = client.head("a").headers["stream-next-offset"]
        assert client.get("a").headers["cache-control"] == "public, max-age=60, stale-while-revalidate=300"
        assert client.get("a", params={"offset": tail}).headers["cache-control"] == "no-cache"
        assert client.get("a", params={"offset": "now"}).headers["cache-control"] == "no-store"
        client.put("b", content=b"x", headers=TEXT | {"stream-ttl": "90"})
        assert client.get("b").headers["cache-control"] == "public, max-age=60, stale-while-revalidate=30"
        assert client.get("nothing").headers["cache-control"] == "no-store"


class TestCompression:
    @pytest.mark.parametrize(
        ("accepted", "encoding"),
        [
            ("gzip, deflate, br", "gzip"),
            ("deflate", "deflate"),
            ("gzip;q=0", None),
            ("gzip;q=0, deflate;q=0.5", "deflate"),
            ("gzip;q=0.1, deflate;q=0.5", "deflate"),
            ("*", "gzip"),
            ("*;q=0", None),
            ("br", None),
            ("gzip;q=x", None),
        ],
    )
    def test_the_client_chooses(self, client: Caller, accepted: str, encoding: str | None) -> None:
        body = bytes(range(256)) * 800
        client.put("a", content=body, headers={"content-type": "application/x-thing"})
        answer, raw = client.raw("a", {"accept-encoding": accepted})
        assert answer.headers.get("content-encoding") == encoding
        assert answer.headers["vary"] == "Accept-Encoding"
        if encoding is not None:
            raw = gzip.decompress(raw) if encoding == "gzip" else zlib.decompress(raw)
        assert raw == body

    def test_small_or_packed_answers_stay_as_they_are(self, client: Caller) -> None:
        client.put("small", content=b"x" * 1023, headers=TEXT)
        client.put("image", content=b"x" * 5000, headers={"content-type": "image/png"})
        for path in ("small", "image"):
            assert "content-encoding" not in client.get(path, headers={"accept-encoding": "gzip"}).headers


class TestLifetimes:
    def test_reads_and_writes_renew_and_head_does_not(self, client: Caller, clock: Clock) -> None:
        client.put("a", content=b"x", headers=TEXT | {"stream-ttl": "10"})

        uses: list[Callable[[], httpx.Response]] = [
            lambda: client.get("a"),
            lambda: client.get("a", params={"offset": "now"}),
            lambda: client.get("a", params={"offset": "now", "live": "long-poll"}),
            lambda: client.post("a", content=b"x", headers=TEXT),
            lambda: client.post("a", headers={"stream-closed": "true"}),
        ]
        for use in uses:
            clock.now += 9
            assert use().status_code in {200, 204}
        clock.now += 9
        assert client.head("a").status_code == 200
        clock.now += 2
        assert client.head("a").status_code == 404
        assert client.put("a", headers=TEXT).status_code == 201
        assert client.get("a").content == b"", "the path is free for another stream"

    def test_a_fixed_end_is_not_moved(self, client: Caller, clock: Clock) -> None:
        end = "2027-01-15T08:00:20+00:00"
        client.put("a", headers=TEXT | {"stream-expires-at": end})
        same = "2027-01-15T09:00:20+01:00"
        assert client.put("a", headers=TEXT | {"stream-expires-at": same}).status_code == 200
        assert client.head("a").headers["stream-expires-at"] == end
        clock.now += 19
        assert client.get("a").status_code == 200
        clock.now += 1
        assert client.get("a").status_code == 404

    @pytest.mark.parametrize(
        "text",
        ["tomorrow", "2027-01-15", "2027-01-15T08:00:20", "2027-13-15T08:00:20Z", "Fri, 15 Jan 2027 08:00:20 GMT"],
    )
    def test_other_forms_of_time_are_refused(self, client: Caller, text: str) -> None:
        assert client.put("a", headers=TEXT | {"stream-expires-at": text}).status_code == 400

    def test_an_expired_source_stays_for_its_forks_alone(self, client: Caller, clock: Clock) -> None:
        client.put("source", content=b"abc", headers=TEXT | {"stream-ttl": "10"})
        client.put("fork", headers={"stream-forked-from": "/v1/stream/source", "stream-ttl": "1000"})
        clock.now += 11
        assert client.get("source").status_code == 410
        assert client.put("source", headers=TEXT).status_code == 409
        assert client.put("g", headers={"stream-forked-from": "/v1/stream/source"}).status_code == 409
        assert client.get("fork").content == b"abc"
        assert client.delete("fork").status_code == 204
        assert client.put("source", headers=TEXT).status_code == 201
        assert client.get("source").content == b""


class TestForks:
    def test_a_fork_that_inherited_its_life_is_confirmed(self, client: Caller) -> None:
        client.put("source", content=b"abc", headers=TEXT | {"stream-ttl": "100"})
        fork = {"stream-forked-from": "/v1/stream/source"}
        assert client.put("fork", headers=fork).status_code == 201
        assert client.put("fork", headers=fork).status_code == 200
        assert client.put("fork", headers=fork | {"stream-ttl": "100"}).status_code == 200
        assert client.put("fork", headers=fork | {"stream-ttl": "99"}).status_code == 409
        assert client.put("fork", headers=TEXT).status_code == 409
        client.put("own", headers=fork | {"stream-ttl": "99"})
        assert client.put("own", headers=fork).status_code == 409

    def test_places_where_no_fork_can_begin(self, client: Caller) -> None:
        client.put("json", content=b"[10,20]", headers=JSON)
        fork = {"stream-forked-from": "/v1/stream/json"}
        for offset, status in {
            "now": 400,
            "x": 400,
            f"{0:016}_{1:016}": 400,
            f"{0:016}_{7:016}": 400,
            f"{0:016}_{3:016}": 201,
            "-1": 201,
        }.items():
            path = f"fork-{status}-{len(offset)}"
            assert client.put(path, headers=fork | {"stream-fork-offset": offset}).status_code == status, offset
        assert client.put("f", headers=TEXT | {"stream-fork-offset": ZERO}).status_code == 400
        assert client.put("f", headers={"stream-forked-from": "/elsewhere/json"}).status_code == 404
        assert client.get("fork-201-33").content == b"[10]"

    def test_a_refused_fork_holds_nothing(self, client: Caller) -> None:
        client.put("source", content=b"[1]", headers=JSON)
        fork = JSON | {"stream-forked-from": "/v1/stream/source"}
        assert client.put("fork", content=b"{", headers=fork).status_code == 400
        assert client.delete("source").status_code == 204
        assert client.get("source").status_code == 404

    def test_sub_offsets_stay_within_one_append(self, client: Caller) -> None:
        client.put("source", content=b"abc", headers=TEXT)
        client.post("source", content=b"def", headers=TEXT)
        fork = {"stream-forked-from": "/v1/stream/source", "stream-fork-offset": ZERO}
        for sub_offset, status in {"2": 201, "3": 201, "4": 400, "01": 400, "-1": 400, "1.0": 400}.items():
            answer = client.put(f"fork{sub_offset}", headers=fork | {"stream-fork-sub-offset": sub_offset})
            assert answer.status_code == status, sub_offset
        client.post("fork2", content=b"X", headers=TEXT)
        assert client.get("fork2").content == b"abX"
        tail = client.head("fork2").headers["stream-next-offset"]
        again = {"stream-forked-from": "/v1/stream/fork2", "stream-fork-offset": f"{0:016}_{0:016}"}
        assert client.put("deep", headers=again | {"stream-fork-sub-offset": "3"}).status_code == 400
        assert client.put("deep", headers=again | {"stream-fork-sub-offset": "2"}).status_code == 201
        assert client.put("whole", headers={"stream-forked-from": "/v1/stream/fork2"}).status_code == 201
        assert (client.get("deep").content, client.get("whole").content) == (b"ab", b"abX")
        assert client.head("whole").headers["stream-next-offset"] == tail

    def test_a_chain_goes_when_its_last_fork_goes(self, client: Caller, storage: Storage) -> None:
        client.put("a", content=b"1", headers=TEXT)
        for parent, child in (("a", "b"), ("b", "c"), ("c", "d")):
            client.put(child, headers={"stream-forked-from": f"/v1/stream/{parent}"})
            client.post(child, content=child.encode(), headers=TEXT)
        for path in ("b", "a", "c"):
            assert client.delete(path).status_code == 204
            assert client.delete(path).status_code == 410
        assert client.get("d").content == b"1bcd"
        assert sum(1 for shard in storage.shards for _ in shard.streams()) == 4
        client.delete("d")
        assert sum(1 for shard in storage.shards for _ in shard.streams()) == 0
        for path in "abcd":
            assert client.get(path).status_code == 404

    def test_a_fork_takes_the_path_of_an_expired_stream(self, client: Caller, clock: Clock) -> None:
        """Also if that stream was in another shard, and no sweep has removed it."""
        client.put("source", content=b"abc", headers=TEXT)
        paths = [f"fork{number}" for number in range(12)]
        for path in paths:
            client.put(path, headers=TEXT | {"stream-ttl": "1"})
        clock.now += 2
        for path in paths:
            assert client.put(path, headers={"stream-forked-from": "/v1/stream/source"}).status_code == 201
        client.run(client.application.streams.sweep())
        assert [client.get(path).content for path in paths] == [b"abc"] * 12

    def test_a_fork_lives_where_its_source_lives(self, client: Caller) -> None:
        """Whatever the number of shards, each path is found again, also after it was deleted and created again."""
        client.put("source", content=b"abc", headers=TEXT)
        for number in range(12):
            path = f"fork{number}"
            assert client.put(path, headers={"stream-forked-from": "/v1/stream/source"}).status_code == 201
            client.post(path, content=b"x", headers=TEXT)
            assert client.get(path).content == b"abcx"
            client.delete(path)
            assert client.put(path, content=b"own", headers=TEXT).status_code == 201
            assert client.put(path, headers={"stream-forked-from": "/v1/stream/source"}).status_code == 409
            assert client.get(path).content == b"own"


def test_cross_origin_requests_are_allowed(client: Caller) -> None:
    answer = client.request("OPTIONS", "a", headers={"origin": "http://page", "access-control-request-method": "PUT"})
    assert answer.status_code == 204
    assert answer.headers.get_list("access-control-allow-origin") == ["*"]
    allowed = answer.headers["access-control-allow-headers"].lower()
    for name in ("if-none-match", "stream-fork-sub-offset", "producer-id", "authorization"):
        assert name in allowed
    exposed = client.get("a").headers["access-control-expose-headers"].lower()
    for name in ("stream-next-offset", "stream-sse-data-encoding", "stream-ttl", "location", "etag"):
        assert name in exposed


def test_the_head_of_a_stream_says_nothing_of_a_length(client: Caller) -> None:
    """A GET of the stream would not answer with nothing."""
    client.put("a", content=b"x", headers=TEXT)
    head = client.head("a")
    assert head.status_code == 200
    assert "content-length" not in head.headers
    assert client.head("none").headers["content-length"] != "0", "of a refusal the length is known"


def test_a_header_that_comes_twice_is_refused_unless_it_is_a_list(client: Caller) -> None:
    client.put("a", content=b"x" * 2000, headers=TEXT)
    twice = {
        "authorization": ["Bearer a", "Bearer b"],
        "content-type": ["text/plain", "text/plain"],
        "producer-id": ["p", "q"],
        "stream-closed": ["false", "true"],
        "stream-seq": ["1", "2"],
    }
    for name, values in twice.items():
        headers = [*TEXT.items(), *((name, value) for value in values)] if name != "content-type" else []
        answer = client.post("a", content=b"x", headers=headers or [(name, value) for value in values])
        assert (answer.status_code, name in answer.text) == (400, True)
    assert client.get("a").content == b"x" * 2000
    tag = client.get("a").headers["etag"]
    assert client.get("a", headers=[("if-none-match", '"x"'), ("if-none-match", tag)]).status_code == 304
    answer, _ = client.raw("a", [("accept-encoding", "br"), ("accept-encoding", "gzip")])
    assert answer.headers["content-encoding"] == "gzip"


def test_content_types_that_cannot_be_are_replaced(client: Caller) -> None:
    for value in ("", "nonsense", "text /plain", "a/b c"):
        client.delete("a")
        assert client.put("a", headers={"content-type": value}).headers["content-type"] == "application/octet-stream"
    client.put("b", headers={"content-type": "Application/JSON; charset=utf-8"})
    assert client.post("b", content=b"[1,2]", headers=JSON).status_code == 204
    assert client.get("b").content == b"[1,2]"


def test_the_registry_announces_every_stream(make: Make) -> None:
    client = make(registry=True)
    client.put("a", headers=TEXT)
    client.put("a", headers=TEXT)
    client.put("b", headers=JSON)
    client.delete("a")
    found = client.get("__registry__", params={"offset": "-1", "live": "long-poll"}).json()
    while len(found) < 3:
        found = client.get("__registry__").json()
    assert [(message["headers"]["operation"], message["key"]) for message in found] == [
        ("insert", "a"),
        ("insert", "b"),
        ("delete", "a"),
    ]
    assert found[1]["value"] == {"path": "b", "contentType": "application/json", "createdAt": 1_800_000_000_000}
    assert all(message["type"] == "stream" for message in found)
