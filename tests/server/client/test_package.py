"""The client is small: httpx is all it needs."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from opslog.server import client
from tests.support.servers import serving

DOCUMENT = Path(__file__).parents[3] / "docs" / "server.md"


def test_importing_it_loads_nothing_of_the_server() -> None:
    code = "import json, sys, opslog.server.client; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert "httpx" in loaded
    assert not loaded & {"cryptography", "lmdb", "prometheus_client", "uvicorn"}


def test_all_is_the_public_namespace() -> None:
    names = {name for name, value in vars(client).items() if not isinstance(value, ModuleType)}
    public = {name for name in names if not name.startswith("_")} - {"annotations"}
    assert public == set(client.__all__)


EXAMPLES = [found[1] for found in re.finditer(r"```python no-run\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)]


def printed_by(example: str, capsys: pytest.CaptureFixture[str]) -> str:
    with serving("--memory") as server:
        exec(compile(example.replace("http://127.0.0.1:4437/v1/stream", server.url), str(DOCUMENT), "exec"), {})
    return capsys.readouterr().out


def test_the_first_example_in_the_documents_does_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    printed = printed_by(EXAMPLES[0], capsys)
    assert re.findall(r"{'step': (\d+)}", printed) == [str(step) for step in range(1, 1000)]


@pytest.mark.timeout(60)
def test_the_worker_in_the_documents_does_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    _, worker = EXAMPLES
    assert printed_by(worker, capsys) == "[{'built': 7}]\n"


PAIRS = [
    (client.Stream, client.AsyncStream),
    (client.Producer, client.AsyncProducer),
    (client.Subscription, client.AsyncSubscription),
    (client.Claim, client.AsyncClaim),
]


@pytest.mark.parametrize(("kind", "async_kind"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_clients_have_the_same_calls_and_describe_them(kind: type, async_kind: type) -> None:
    """Calls that are made from the core also have the signature that `help` and editors show."""
    calls = {name: call for name, call in vars(kind).items() if inspect.isfunction(call) and not name.startswith("_")}
    for name, call in calls.items():
        if (kind, name) == (client.Producer, "close"):  # for asyncio, leaving the block does it
            continue
        signature, other = inspect.signature(call), inspect.signature(vars(async_kind)[name])
        assert call.__name__ == name
        assert list(signature.parameters) == list(other.parameters)
        assert "Steps" not in str(signature)
        assert "Generator" not in str(signature)
        assert "args" not in signature.parameters


def test_calls_say_what_they_give() -> None:
    assert inspect.signature(client.Stream.append).return_annotation is client.Appended
    assert inspect.iscoroutinefunction(client.AsyncStream.append)
    assert "Durable on return" in (client.Stream.append.__doc__ or "")
