"""The command that serves language-model agents: mcp."""

from __future__ import annotations

import os
from pathlib import Path

import click

from opslog.cli.options import WRITES, StoreCommand, log_level_option
from opslog.cli.session import Session


@click.command(
    "mcp",
    cls=StoreCommand,
    options=WRITES,
    agent="How the names of its sessions begin; any number of servers may have the same. [OPSLOG_AGENT; mcp]",
)
@click.option("--read-only", is_flag=True, help="Offer only tools that change nothing; the store must exist.")
@click.option("--tools", metavar="NAMES", help="Offer only these tools: find,get,claim,release. Default: all.")
@click.option("--memory", is_flag=True, help="Offer the tools of the reference memory server instead.")
@click.option(
    "--memory-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The file of a memory server, to import once, if the store has no memory yet. [MEMORY_FILE_PATH]",
)
@click.option("--http", metavar="HOST:PORT", help="Serve at http://HOST:PORT/mcp instead of stdin and stdout.")
@click.option(
    "--tokens",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --http: TOML file of the bearer tokens that may read and write, as for `opslog serve`.",
)
@click.option("--anyone", is_flag=True, help="With --http: accept any host name, and without --tokens everyone.")
@log_level_option
@click.pass_obj
def mcp_command(
    session: Session,
    *,
    read_only: bool,
    tools: str | None,
    memory: bool,
    memory_file: Path | None,
    http: str | None,
    tokens: Path | None,
    anyone: bool,
    log_level: str,
) -> None:
    """Serve the store to a language-model agent by the Model Context Protocol, on stdin and stdout.

    Each session writes under a name of its own: that of --agent, those of this machine and process, and a random part.
    Any number of servers may serve one store at once.
    """
    try:
        from opslog.doors.logs import configure
        from opslog.doors.tokens import Tokens
        from opslog.mcp.running import Offer, serve_http, serve_stdio
    except ImportError as error:
        raise click.UsageError(f"MCP is an extra: pip install 'opslog[mcp]' ({error})") from error
    if http is None and (anyone or tokens is not None):
        raise click.UsageError(f"{'--anyone' if anyone else '--tokens'} goes with --http")
    if memory_file is not None and not memory:
        raise click.UsageError("--memory-file goes with --memory")
    offer = Offer(
        url=session.url,
        agent="mcp" if session.agent is None else session.agent,
        read_only=read_only,
        tools=None if tools is None else [name.strip() for name in tools.split(",") if name.strip()],
        memory=memory,
        memory_file=(memory_file or _kept_so_far()) if memory else None,
    )
    configure(log_level, json=session.json)
    if http is None:
        serve_stdio(offer)
    else:
        known = None if tokens is None else Tokens.load(tokens)
        serve_http(offer, *_address(http), tokens=known, anyone=anyone)


def _kept_so_far() -> Path | None:
    """The file in the configuration of a reference server; None if that server has not written it yet."""
    named = os.environ.get("MEMORY_FILE_PATH")
    return Path(named) if named and Path(named).exists() else None


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not (separator and port.isascii() and port.isdigit() and int(port) < 65_536):
        raise click.UsageError(f"--http is an address and a port, as in 127.0.0.1:8765, not {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)
