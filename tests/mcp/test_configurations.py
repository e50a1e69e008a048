"""The configurations of docs/mcp.md can be pasted: they are JSON, and the command accepts their arguments."""

from __future__ import annotations

import json

import click
import pytest

from opslog.cli.app import app
from opslog.cli.session import Session
from tests.support.documents import ROOT, blocks

CONFIGURATIONS = [block.text for block in blocks(ROOT / "docs" / "mcp.md") if block.language == "json"]


@pytest.mark.parametrize("number", range(len(CONFIGURATIONS)))
def test_configuration(number: int) -> None:
    [servers] = json.loads(CONFIGURATIONS[number]).values()
    for server in servers.values():
        if "url" in server:  # one that is run elsewhere
            assert server["headers"]["Authorization"].startswith("Bearer ")
            continue
        assert server["command"] == "opslog"
        arguments = [each.replace("/data/memory.jsonl", __file__) for each in server["args"]]
        context = click.Context(app, obj=Session())
        name, *rest = arguments
        assert name == "mcp"
        command = app.get_command(context, name)
        assert command is not None
        command.make_context(name, rest, parent=context)
