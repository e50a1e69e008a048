"""The command that serves streams and stores over HTTP: serve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opslog.cli.options import JSON, StoreCommand, log_level_option
from opslog.cli.output import say
from opslog.cli.session import Session
from opslog.cli.values import Count, Number

if TYPE_CHECKING:
    from opslog.server.protocol.cursors import Cursors

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    "serve",
    cls=StoreCommand,
    options=JSON | {"agent"},
    agent="The author of writes by clients that name none; others may use it, too. [OPSLOG_AGENT; main]",
)
@click.option(
    "--store",
    "-s",
    "stores",
    multiple=True,
    metavar="NAME=URL",
    help="Serve this store, too, below /v1/store/NAME. May be repeated.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=4437, show_default=True, help="0: any that is free.")
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Keep streams in this directory.")
@click.option("--memory", is_flag=True, help="Keep streams in memory.  [default]")
@click.option("--shards", type=click.IntRange(1, 256), help="Of a new directory: databases to divide streams into.")
@click.option("--tokens", type=_FILE, help="TOML file of the bearer tokens that may read and write.")
@click.option("--anyone", is_flag=True, help="Without tokens: let everybody who reaches this address read and write.")
@click.option("--tls-certificate", type=_FILE, help="Certificate chain in PEM; needs --tls-key.")
@click.option("--tls-key", type=_FILE, help="Private key in PEM.")
@click.option("--max-body-bytes", type=Count(1), default=16 * 1024**2, show_default=True, help="Of an append.")
@click.option(
    "--max-buffered-bytes",
    type=Count(1),
    default=256 * 1024**2,
    show_default=True,
    help="Of all requests that are not answered yet.",
)
@click.option("--max-connections", type=Count(1), default=10_000, show_default=True, help="More get 503.")
@click.option("--rate", type=Number(0.001, 1_000_000), help="Requests a second that one client may make.")
@click.option("--long-poll-seconds", type=Number(0.1, 600), default=30, show_default=True, help="How long one waits.")
@click.option("--sse-seconds", type=Number(1, 86_400), default=60, show_default=True, help="How long one lasts.")
@click.option("--retain-bytes", type=Count(1), help="Keep so much of each stream; older data is deleted.")
@click.option("--compression/--no-compression", default=True, show_default=True, help="For clients that accept it.")
@click.option(
    "--cursor-seconds",
    type=Number(0.1, 86_400),
    default=20,
    show_default=True,
    help="How long the cursor of live reads stays the same.",
)
@click.option("--cursor-epoch", metavar="TIME", help="When cursors begin.  [default: 2024-10-09T00:00:00Z]")
@click.option("--registry", is_flag=True, help="Announce created and deleted streams in the stream __registry__.")
@click.option("--public-url", help="Where clients reach this server, for addresses in webhooks: https://host")
@click.option("--webhook-loopback", is_flag=True, help="For development: webhooks may go to this machine, and by http.")
@click.option("--rotate-keys", is_flag=True, help="Replace the key that signs webhooks; the old one stays published.")
@click.option(
    "--feed-seconds",
    type=Number(0.01, 3600),
    default=0.5,
    show_default=True,
    help="How often stores are asked for what other processes wrote, for their feeds.",
)
@click.option(
    "--feed-snapshot-bytes",
    type=Count(1),
    default=4 * 1024**2,
    show_default=True,
    help="How much a feed grows, at the least, before it begins with a new snapshot.",
)
@click.option("--faults", is_flag=True, help="For tests of clients: let them ask for answers that fail.")
@log_level_option
@click.pass_obj
def serve_command(session: Session, /, **given: Any) -> None:
    """Serve streams over HTTP by the Durable Streams protocol, and stores, until Ctrl-C or SIGTERM.

    A store that is served as NAME is at /v1/store/NAME, and its feed is the stream stores/NAME.
    """
    _check(given)
    stores = _stores(given["stores"])
    try:
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise click.UsageError(f"the server is an extra: pip install 'opslog[server]' ({error})") from error
    from opslog.doors.logs import configure
    from opslog.doors.tokens import Tokens
    from opslog.server import Options, app
    from opslog.server.http.serving import Address, check_access, serve

    address = Address(
        host=given["host"],
        port=given["port"],
        certificate=given["tls_certificate"],
        key=given["tls_key"],
        max_connections=given["max_connections"],
    )
    check_access(address, tokens=given["tokens"] is not None, anyone=given["anyone"])
    configure(given["log_level"], json=session.json)
    if given["data"] is None and not given["memory"]:
        say("streams are in memory, and gone when the server stops; --data DIRECTORY keeps them")
    options = Options(
        max_body_bytes=given["max_body_bytes"],
        max_buffered_bytes=given["max_buffered_bytes"],
        long_poll_seconds=given["long_poll_seconds"],
        sse_seconds=given["sse_seconds"],
        rate=given["rate"],
        retain_bytes=given["retain_bytes"],
        registry=given["registry"],
        compression=given["compression"],
        cursors=_cursors(given),
        public_url=given["public_url"],
        webhook_loopback=given["webhook_loopback"],
        rotate_keys=given["rotate_keys"],
        feed_seconds=given["feed_seconds"],
        feed_snapshot_bytes=given["feed_snapshot_bytes"],
        local_stores=given["tokens"] is None and not given["anyone"],
    )
    tokens = None if given["tokens"] is None else Tokens.load(given["tokens"])
    application = app(
        given["data"], shards=given["shards"], tokens=tokens, options=options, stores=stores, agent=session.author
    )
    serve(application, address, faults=given["faults"])


def _stores(given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, separator, url = text.partition("=")
        if not (name and separator and url):
            raise click.UsageError(f"--store {text!r}: give the store a name, as in --store tasks=./tasks")
        if name in found:
            raise click.UsageError(f"--store: two stores are called {name!r}")
        found[name] = url
    return found


def _cursors(given: dict[str, Any]) -> Cursors:
    from opslog.environment import parse_ts
    from opslog.server.protocol.cursors import Cursors

    cursors = Cursors(interval_seconds=given["cursor_seconds"])
    if given["cursor_epoch"] is None:
        return cursors
    try:
        return replace(cursors, epoch=parse_ts(given["cursor_epoch"]))
    except (ValueError, OverflowError) as error:
        raise click.UsageError(f"--cursor-epoch is a time as in 2024-10-09T00:00:00Z: {error}") from error


def _check(given: dict[str, Any]) -> None:
    if given["memory"] and (given["data"] is not None or given["shards"] is not None):
        raise click.UsageError("--memory goes with neither --data nor --shards")
    if given["shards"] is not None and given["data"] is None:
        raise click.UsageError("--shards needs --data")
    if given["rotate_keys"] and given["data"] is None:
        raise click.UsageError("--rotate-keys needs --data: in memory, keys are new at each start")
    if (given["tls_certificate"] is None) != (given["tls_key"] is None):
        raise click.UsageError("--tls-certificate and --tls-key go together")
