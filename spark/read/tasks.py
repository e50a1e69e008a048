"""Reading the rows of one task, in whichever process the task runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pyarrow as pa

from opslog.backends import Backend
from opslog.errors import CorruptError, MissingFileError, RetryError
from opslog.snapshot.manifests import ManifestStore
from opslog.spark.read.views import EVERYTHING, Asked, Task, View
from opslog.spark.stores import open_store


def read_task(
    url: str, options: Mapping[str, Any], view: View, task: Task, asked: Asked = EVERYTHING
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in whichever process the task runs.

    :raises CorruptError: names the file and the offset.
    :raises RetryError: the job began so long ago that a compaction has collected a file that the task needs.
    """
    with closing(open_store(url, options)) as backend:
        try:
            yield from view.read(backend, task, asked)
        except MissingFileError as error:
            raise _gone(backend, task, error) from error


def _gone(backend: Backend, task: Task, error: MissingFileError) -> RetryError | CorruptError:
    """The error for a task that misses a file that existed when the job was planned."""
    if task.period or ManifestStore(backend).newest_number() == task.manifest:
        return CorruptError(
            f"{error}. opslog does not remove it: restore it from a copy; `opslog verify` lists all such places",
            error.path,
        )
    return RetryError(
        f"{error}: a compaction collected it while this job was reading. Run the job again; jobs that take longer than "
        "the store's grace period need a longer one, or compact with keep_history"
    )
