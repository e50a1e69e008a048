"""The client is a small thing: httpx is all it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

from opslog.server import client


def test_importing_it_loads_nothing_of_the_server() -> None:
    code = "import json, sys, opslog.server.client; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert "httpx" in loaded
    assert not loaded & {"cryptography", "lmdb", "prometheus_client", "starlette", "uvicorn"}


def test_all_is_the_public_namespace() -> None:
    names = {name for name, value in vars(client).items() if not isinstance(value, ModuleType)}
    public = {name for name in names if not name.startswith("_")} - {"annotations"}
    assert public == set(client.__all__)
