"""Background work: what it logs."""

from __future__ import annotations

import asyncio
import logging

import pytest

from opslog.doors.access import Message, Request, named, working_for
from opslog.server.background import Background

_log = logging.getLogger("opslog.server.test")


async def ignore(message: Message) -> None:
    pass


def test_what_is_logged_in_the_background_is_of_no_request(caplog: pytest.LogCaptureFixture) -> None:
    """The same holds for work that it starts later: a webhook that is delivered again for days does not belong to the
    request that appended to the stream."""
    caplog.handler.addFilter(named)

    async def fail() -> None:
        _log.warning("under way")
        raise ZeroDivisionError

    async def run() -> None:
        background = Background(_log, "it failed")
        request = Request({"type": "http", "method": "POST", "path": "/a", "headers": []}, ignore)
        with working_for(request):
            _log.warning("asked for")
            background.spawn(fail())
        await asyncio.wait(background.tasks)
        await asyncio.sleep(0)  # for callbacks that run after its end

    asyncio.run(run())
    caplog.handler.removeFilter(named)
    logged = {record.getMessage(): hasattr(record, "request_id") for record in caplog.records}
    assert logged == {"asked for": True, "under way": False, "it failed": False}
