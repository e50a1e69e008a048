"""Progress of long work, for a person at a terminal: one line on stderr, in units that people know.

Every command that may take long shows the same line:

    exporting  ━━━━━━━━━━╺━━━━━━━━━   52%  104,000 of 200,000 documents, 81,000 a second, 2 s left
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from opslog.cli.session import Session

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Unit = Literal["documents", "commits", "bytes"]

# Called with how much is done, and how much there is; 0: not known.
Advance = Callable[[int, int], None]

# The width of the bar, in characters.
_BAR = 20

_SCALES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


class Steps:
    """The steps of a command. The line shows the step that was advanced last.

    :param display: draws the line; None: nobody watches.
    """

    def __init__(self, display: Progress | None) -> None:
        self._display = display
        self._shown: TaskID | None = None

    @property
    def are_watched(self) -> bool:
        """Whether anybody watches."""
        return self._display is not None

    def step(self, label: str, unit: Unit) -> Advance | None:
        """Add a step of this name. Returns the function that advances it; None: nobody watches. The first step is shown
        at once, each other step from its first advance on.
        """
        display = self._display
        if display is None:
            return None
        task = display.add_task(label, total=None, visible=self._shown is None, unit=unit)
        if self._shown is None:
            self._shown = task

        def advance(done: int, total: int) -> None:
            if self._shown != task:
                if self._shown is not None:
                    display.update(self._shown, visible=False)
                display.reset(task, visible=True, total=None)
                self._shown = task
            display.update(task, completed=done, total=total or None)

        return advance


@contextmanager
def progress(session: Session) -> Iterator[Steps]:
    """Show the progress of the work in this block, if a person watches. The line disappears at the end of the block."""
    if session.json or not sys.stderr.isatty():
        yield Steps(None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Amounts(ProgressColumn):
        def render(self, task: Task) -> Text:
            total = None if task.total is None else int(task.total)
            return Text(amounts(task.fields["unit"], int(task.completed), total, task.speed))

    one_line = Column(no_wrap=True)
    label = TextColumn("{task.description}", table_column=one_line, markup=False)
    bar = BarColumn(_BAR)
    columns = (label, bar, Amounts(table_column=one_line))
    # The line has a stream of its own, because stderr may be redirected meanwhile. Rows and documents go to stdout
    # unchanged.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding) as stream:
        console = Console(file=stream)
        with Progress(*columns, console=console, transient=True, redirect_stdout=False) as display:
            yield Steps(display)


def amounts(unit: Unit, done: int, total: int | None, rate: float | None) -> str:
    """The text after the bar: how much is done, how fast, and how long the rest will take.

    :param total: None: not known.
    :param rate: units per second; None: it is too early to say.
    """
    if not done and not total:
        return ""
    text = _of(unit, done, total)
    if not rate:
        return text
    per_second = size_text(rate) + "/s" if unit == "bytes" else f"{_rounded(rate):,} a second"
    text += f", {per_second}"
    return text if total is None or total <= done else f"{text}, {time_text((total - done) / rate)} left"


def _of(unit: Unit, done: int, total: int | None) -> str:
    if unit == "bytes":
        if total is None:
            return size_text(done)
        scale, name = _scale(total)
        amount = f"{done / scale:,.1f} of {total / scale:,.1f} {name}" if scale > 1 else f"{done} of {total} bytes"
    else:
        if total is None:
            return f"{done:,} {unit}"
        amount = f"{done:,} of {total:,} {unit}"
    return f"{100 * done // total:3}%  {amount}"


def _scale(size: float) -> tuple[float, str]:
    return next(((scale, name) for scale, name in _SCALES if size >= scale), (1, "bytes"))


def size_text(size: float) -> str:
    """A number of bytes for a person: ``1.5 MB``."""
    scale, name = _scale(size)
    if scale > 1:
        return f"{size / scale:,.1f} {name}"
    return f"{size:.0f} byte{'' if round(size) == 1 else 's'}"


def time_text(seconds: float) -> str:
    """A length of time for a person."""
    whole = max(1, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _rounded(rate: float) -> int:
    """A rate with its first two digits; the others are 0, because they would change all the time."""
    digits = max(0, len(str(int(rate))) - 2)
    return int(round(rate, -digits))
