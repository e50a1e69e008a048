"""`opslog serve` as a process: clients that behave badly, access rights, and how it stops."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import pytest

from opslog.doors.tokens import Tokens
from opslog.environment import parse_ts
from opslog.errors import LockedError, UsageError
from opslog.server import app
from opslog.server.http.serving import Address, check_access, serve
from opslog.server.storage.directory import DirectoryStorage
from tests.cli.calling import call
from tests.support.servers import Follower, Server, http, serving
from tests.support.waiting import until

TEXT = {"content-type": "text/plain"}
JSON = {"content-type": "application/json"}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving("--memory") as running:
        yield running


def metric(server: Server, name: str, **headers: str) -> float:
    text = http("GET", f"{server.root}/metrics", headers=headers).text
    (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(value)


def followers(server: Server) -> float:
    return metric(server, "opslog_server_followers")


def test_a_proxy_on_this_machine_may_say_for_whom_it_asks(server: Server) -> None:
    answer = http("PUT", f"{server.url}/a", headers={**TEXT, "x-forwarded-proto": "https"})
    assert answer.headers["location"] == f"{server.url}/a".replace("http:", "https:")
    assert http("PUT", f"{server.url}/b", headers=TEXT).headers["location"] == f"{server.url}/b"
    with serving("--memory", "--rate", "2") as limited:
        clients = [{"x-forwarded-for": f"10.0.0.{number}"} for number in range(10)]
        assert {http("GET", f"{limited.url}/a", headers=client).status_code for client in clients} == {404}
        assert 429 in {http("GET", f"{limited.url}/a", headers=clients[0]).status_code for _ in range(10)}


def test_health_and_figures(server: Server) -> None:
    assert http("GET", f"{server.root}/healthz").text == "ok\n"
    assert http("GET", f"{server.root}/readyz").status_code == 200
    http("PUT", f"{server.url}/a", headers=TEXT)
    for _ in range(3):
        http("POST", f"{server.url}/a", content=b"12345", headers=TEXT)
    http("POST", f"{server.url}/none", content=b"12345", headers=TEXT)
    assert metric(server, 'opslog_server_requests_total{method="POST",status="204"}') == 3
    assert metric(server, 'opslog_server_requests_total{method="POST",status="404"}') == 1
    assert metric(server, "opslog_server_append_seconds_count") == 3
    assert metric(server, 'opslog_server_append_seconds_bucket{le="+Inf"}') == 3
    assert metric(server, "opslog_server_appended_bytes_total") == 15
    assert metric(server, "opslog_server_content_bytes") == 15
    assert metric(server, "opslog_server_streams") == 1


def test_many_followers_get_everything(server: Server) -> None:
    url = f"{server.url}/a"
    http("PUT", url, headers=JSON)
    sse = [Follower(url, offset="now", live="sse") for _ in range(20)]
    polls = [Follower(url, offset="now", live="long-poll") for _ in range(20)]
    until(lambda: followers(server) == 40)
    http("POST", url, content=b'[{"n":1},{"n":2}]', headers=JSON)
    http("POST", url, content=b"3", headers=JSON | {"stream-closed": "true"})
    for follower in [*sse, *polls]:
        follower.join()
    assert {follower.text for follower in polls} <= {'[{"n":1},{"n":2}]', '[{"n":1},{"n":2},3]'}
    for follower in sse:
        data = re.findall(r"event: data\ndata:(.*)\n", follower.text)
        assert [message for array in data for message in json.loads(array)] == [{"n": 1}, {"n": 2}, 3]
        assert follower.text.count("event: data") < follower.text.count("event: control")
        assert '"streamClosed":true' in follower.text.rpartition("event: control")[2]


def test_text_is_never_cut_within_a_character(server: Server) -> None:
    url, text = f"{server.url}/a", "é😀x" * 60_000
    http("PUT", url, content=text.encode(), headers=TEXT | {"stream-closed": "true"})
    follower = Follower(url, offset="-1", live="sse")
    follower.join()
    events = re.findall(r"event: data\ndata:(.*)\n", follower.text)
    assert len(events) > 1
    assert "".join(events) == text


def test_a_deleted_stream_ends_its_live_reads(server: Server) -> None:
    url = f"{server.url}/a"
    http("PUT", url, headers=TEXT)
    sse, poll = Follower(url, offset="-1", live="sse"), Follower(url, offset="-1", live="long-poll")
    until(lambda: followers(server) == 2)
    http("DELETE", url)
    sse.join()
    poll.join()
    assert (sse.status, poll.status) == (200, 404)


def test_a_stream_that_is_followed_does_not_expire(server: Server) -> None:
    url = f"{server.url}/a"
    http("PUT", url, headers=TEXT | {"stream-ttl": "1"})
    follower = Follower(url, offset="-1", live="long-poll")
    until(lambda: followers(server) == 1)
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 1.5)
    http("POST", url, content=b"still here", headers=TEXT)
    follower.join()
    assert follower.text == "still here"


def test_an_sse_answer_ends_after_its_time() -> None:
    with serving("--memory", "--sse-seconds", "1", "--long-poll-seconds", "0.4") as server:
        url = f"{server.url}/a"
        http("PUT", url, headers=TEXT)
        follower = Follower(url, offset="-1", live="sse")
        follower.join()
        assert follower.text.count("event: control") >= 3, "and meanwhile shows that it is still there"
        assert "event: data" not in follower.text


def test_clients_that_vanish_are_forgotten(server: Server) -> None:
    url = f"{server.url}/a"
    http("PUT", url, headers=TEXT)
    for live in ("sse", "long-poll"):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(f"GET /v1/stream/a?offset=-1&live={live} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        until(lambda: followers(server) == 1)
        connection.close()
        until(lambda: followers(server) == 0)


def test_a_client_that_does_not_read_delays_nobody(server: Server) -> None:
    """It gets what fits into the buffers between; the others get everything."""
    url, chunk = f"{server.url}/a", b"~" * 200_000
    http("PUT", url, headers=TEXT)
    with socket.create_connection(("127.0.0.1", server.port)) as lazy:
        lazy.sendall(b"GET /v1/stream/a?offset=-1&live=sse HTTP/1.1\r\nHost: x\r\n\r\n")
        eager = Follower(url, offset="-1", live="sse")
        until(lambda: followers(server) == 2)
        for _ in range(40):
            assert http("POST", url, content=chunk, headers=TEXT).status_code == 204
        http("POST", url, headers={"stream-closed": "true"})
        eager.join()
    assert eager.text.count("~") == 40 * len(chunk)


def test_threads_switch_more_often_while_a_server_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def run(_: object, sockets: list[socket.socket]) -> None:
        seen.append(sys.getswitchinterval())
        sockets[0].close()

    monkeypatch.setattr("opslog.server.http.serving._Server.run", run)
    before = sys.getswitchinterval()
    serve(app(), Address(port=0))
    assert seen == [pytest.approx(0.0005, rel=0.02)]
    assert sys.getswitchinterval() == before
    assert before > 0.001, "otherwise this test shows nothing"


def test_a_client_that_does_not_finish_its_request_is_disconnected() -> None:
    code = (
        "from opslog.server import app; from opslog.server.http.serving import Address, serve; "
        "from opslog.doors.logs import configure; configure('info', json=True); "
        "serve(app(), Address(port=0, header_seconds=0.5))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    assert process.stderr is not None
    url = json.loads(process.stderr.readline())["url"]
    port = int(url.split(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        assert connection.recv(100) == b"", "the server closed it"
    process.terminate()
    process.communicate()


def test_stopping_ends_live_reads_and_loses_nothing(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path / "data")) as server:
        url = f"{server.url}/a"
        http("PUT", url, headers=TEXT)
        sse, poll = Follower(url, offset="-1", live="sse"), Follower(url, offset="-1", live="long-poll")
        until(lambda: followers(server) == 2)
        http("POST", f"{server.url}/a", content=b"abc", headers=TEXT)
        poll.join()
        poll = Follower(url, offset="now", live="long-poll")
        until(lambda: followers(server) == 2)
        code = server.stop()
        sse.join()
        poll.join()
    assert code == -signal.SIGTERM
    assert (sse.status, poll.status) == (200, 204)
    assert "abc" in sse.text
    assert [log["message"] for log in server.logs] == ["serving", "stopping", "stopped"]
    with serving("--data", str(tmp_path / "data")) as server:
        assert http("GET", f"{server.url}/a").text == "abc"


def test_one_server_per_directory(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path / "data")), pytest.raises(LockedError, match="is locked by pid"):
        DirectoryStorage(tmp_path / "data", wait_seconds=0.1)


class TestTokens:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        def table(name: str, read: list[str], write: list[str]) -> str:
            digest = sha256(f"secret of {name}".encode()).hexdigest()
            return f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nread = {read}\nwrite = {write}\n'

        path = tmp_path / "tokens.toml"
        path.write_text(table("all", [""], [""]) + table("team", ["team"], ["team/in/"]) + table("nobody", [], []))
        return path

    def test_scopes(self, file: Path) -> None:
        with serving("--memory", "--tokens", str(file)) as server:

            def ask(method: str, path: str, who: str | None, **headers: str) -> int:
                if who is not None:
                    headers["authorization"] = f"Bearer secret of {who}"
                return http(method, f"{server.url}/{path}", headers=TEXT | headers).status_code

            assert ask("PUT", "team/in/a", None) == 401
            assert ask("PUT", "team/in/a", "stranger") == 401
            assert ask("PUT", "team/in/a", "nobody") == 403
            assert ask("PUT", "team/in/a", "team") == 201
            assert ask("PUT", "team/out", "team") == 403
            assert ask("PUT", "team/out", "all") == 201
            assert ask("GET", "team/out", "team") == 200
            assert ask("GET", "team", "team") == 404
            assert ask("GET", "teams", "team") == 403
            assert ask("PUT", "secret", "all") == 201
            source = {"stream-forked-from": "/v1/stream/secret"}
            assert ask("PUT", "team/in/fork", "team", **source) == 403, "a fork reads its source"
            assert ask("PUT", "team/in/fork", "all", **source) == 201
            assert ask("DELETE", "team/in/a", "nobody") == 403
            assert http("GET", f"{server.root}/healthz").status_code == 200
            assert http("GET", f"{server.root}/metrics").status_code == 401
            team = {"authorization": "Bearer secret of team"}
            assert http("GET", f"{server.root}/metrics", headers=team).status_code == 403
            everything = {"authorization": "Bearer secret of all"}
            assert http("GET", f"{server.root}/metrics", headers=everything).status_code == 200
            answer = http("GET", f"{server.url}/team/out", headers=everything)
            assert answer.headers["cache-control"] == "no-cache"
            http("POST", f"{server.url}/team/out", content=b"x", headers=TEXT | everything)
            assert (
                http("GET", f"{server.url}/team/out", headers=everything).headers["cache-control"].startswith("private")
            )

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "has to hold"),
            ("[[token]]\nname = 1", "cannot be read"),
            ('[[token]]\nname = "a"\nsha256 = "secret"', "64 hexadecimal digits"),
            ('[[token]]\nname = "a"\nsha256 = "' + "0" * 64 + '"\nadmin = true', "admin"),
            (('[[token]]\nname = "a"\nsha256 = "' + "0" * 64 + '"\n') * 2, "same name"),
            ("x = 1", "has to hold"),
            ("[", "cannot be read"),
        ],
    )
    def test_files_that_make_no_sense(self, tmp_path: Path, text: str, says: str) -> None:
        path = tmp_path / "tokens.toml"
        path.write_text(text)
        with pytest.raises(UsageError, match=says):
            Tokens.load(path)
        with pytest.raises(UsageError, match="cannot be read"):
            Tokens.load(tmp_path / "none.toml")


@pytest.mark.parametrize(("more", "status"), [([], 403), (["--anyone"], 200)])
def test_pages_of_other_sites_use_stores_only_where_anyone_may(tmp_path: Path, more: list[str], status: int) -> None:
    with serving("--memory", "--store", f"tasks={tmp_path / 'tasks'}", *more) as running:
        address = f"{running.root}/v1/store/tasks/documents"
        assert http("GET", address).status_code == 200
        assert http("GET", address, headers={"origin": "https://page.example"}).status_code == status


@pytest.mark.parametrize(
    ("host", "refused"),
    [("127.0.0.1", False), ("127.8.0.1", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("::", True)],
)
def test_everybody_may_only_where_nobody_else_comes(host: str, refused: bool) -> None:
    address = Address(host=host)
    check_access(address, tokens=True, anyone=False)
    check_access(address, tokens=False, anyone=True)
    if refused:
        with pytest.raises(UsageError, match=r"everybody who reaches this machine.*--tokens.*--anyone"):
            check_access(address, tokens=False, anyone=False)
    else:
        check_access(address, tokens=False, anyone=False)


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    for options in (
        ("--memory", *data),
        ("--memory", "--shards", "2"),
        ("--shards", "2"),
        ("--rotate-keys",),
        (*data, "--tls-key", "key.pem"),
        ("--memory", "--host", "0.0.0.0"),
        ("--memory", "--tokens", str(tmp_path / "none.toml")),
        ("--memory", "--port", "70000"),
        ("--memory", "--cursor-epoch", "yesterday"),
        ("--memory", "--cursor-epoch", "2020-01-01T00:00:00"),
        ("--memory", "--max-body-bytes", "1000", "--max-buffered-bytes", "999"),
    ):
        assert call(tmp_path, "serve", *options).code == 2, options
    assert not (tmp_path / "data").exists()


def test_cursors_and_compression_are_options() -> None:
    epoch = "2020-01-01T00:00:00Z"
    options = ("--no-compression", "--cursor-seconds", "3600", "--cursor-epoch", epoch)
    with serving("--memory", *options) as server:
        http("PUT", f"{server.url}/a", content=b"x" * 5000, headers=TEXT)
        before = time.time()
        answer = http("GET", f"{server.url}/a?offset=-1&live=long-poll", headers={"accept-encoding": "gzip"})
        assert "content-encoding" not in answer.headers
        hours = [int((now - parse_ts(epoch)) // 3600) for now in (before, time.time())]
        assert int(answer.headers["stream-cursor"]) in hours


def test_a_token_that_comes_with_another_one_is_refused(tmp_path: Path) -> None:
    hashed = sha256(b"secret").hexdigest()
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[token]]\nname = "me"\nsha256 = "{hashed}"\nread = [""]\nwrite = [""]\n')
    with serving("--memory", "--tokens", str(tokens)) as server:
        given = ("authorization", "Bearer secret")
        assert http("PUT", f"{server.url}/a", headers=[given]).status_code == 201
        for method, url in (
            ("HEAD", server.url + "/a"),
            ("DELETE", server.url + "/a"),
            ("GET", server.root + "/metrics"),
        ):
            for other in (given, ("authorization", "Bearer nonsense")):
                assert http(method, url, headers=[other, given]).status_code == 400
                assert http(method, url, headers=[given, other]).status_code == 400


def test_an_address_that_is_taken(server: Server, tmp_path: Path) -> None:
    result = call(tmp_path, "serve", "--memory", "--port", str(server.port))
    assert result.code == 2
    assert f"cannot listen at 127.0.0.1, port {server.port}" in result.err


def test_tls(certificate: tuple[Path, Path]) -> None:
    file, key = certificate
    with serving("--memory", "--tls-certificate", str(file), "--tls-key", str(key)) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=file)
        trusting.check_hostname = False
        assert http("PUT", f"{server.url}/a", headers=TEXT, verify=trusting).headers["location"] == f"{server.url}/a"


def test_too_many_connections(tmp_path: Path) -> None:
    with serving("--memory", "--max-connections", "3") as server:
        http("PUT", f"{server.url}/a", headers=TEXT)
        answers = []
        with ExitStack() as stack:
            for header in (b"A: b", b"A: b", b"A: b", b"X-Forwarded-For: 10.0.0.1", b"A: b"):
                # One after the other: all of them count as soon as they are there.
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                connection.sendall(b"GET /v1/stream/a?offset=-1&live=sse HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % header)
                answers.append(connection.recv(12))
        assert answers[0] == b"HTTP/1.1 200"
        assert answers[3:] == [b"HTTP/1.1 503"] * 2
