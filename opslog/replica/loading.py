"""Loading: from the files of a store to its state in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from opslog.backends import Backend
from opslog.format.commits import Commit
from opslog.format.manifest import Manifest, Run
from opslog.log.reader import Chunk, read_logs
from opslog.log.survey import Survey, shared_log_first, survey
from opslog.replica.state import State
from opslog.snapshot.manifests import ManifestStore
from opslog.snapshot.runs import StoredRun, load_runs


class Loader:
    """Builds states from storage. Keeps loaded runs, which are immutable, so loading again reads only what is new.

    :param progress: called with (bytes of logs read, bytes to read).
    :param own: the agent whose plain commits are written by those who load; None: nobody writes plain commits.
    """

    def __init__(
        self, backend: Backend, progress: Callable[[int, int], None] | None = None, own: str | None = None
    ) -> None:
        self.backend = backend
        self.manifests = ManifestStore(backend)
        self._progress = progress
        self._own = own
        self._runs: dict[str, StoredRun] = {}

    def load(self) -> State:
        """The newest state.

        :raises NotFoundError: there is no store.
        :raises CorruptError: something cannot be read.
        """
        return survey(self.manifests, self._load_newest)

    def load_at(self, choose: Callable[[], Manifest], included: Callable[[Commit], bool]) -> State:
        """An earlier state: the manifest that `choose` picks, with those later commits that are `included`."""
        return survey(self.manifests, lambda found: self.load_from(found, included), choose=choose)

    def _load_newest(self, found: Survey) -> State:
        return self.load_from(found if self._own is None else shared_log_first(self.backend, found, self._own))

    def load_from(self, found: Survey, included: Callable[[Commit], bool] | None = None) -> State:
        """The state of a survey that is not accepted yet.

        :raises MissingFileError: something was collected since.
        """
        state = State(found, self._load_runs(found.manifest.runs))
        chunks = self._with_progress(
            read_logs(self.backend, found.cursors, found.segments, scans=included is None), found.log_bytes
        )
        if included is not None:
            chunks = ((agent, list(filter(included, commits))) for agent, commits in chunks)
        state.load(chunks)
        return state

    def _with_progress(self, read: Iterator[tuple[str, Chunk]], total: int) -> Iterator[tuple[str, Sequence[Commit]]]:
        done = 0
        for agent, chunk in read:
            yield agent, chunk.commits
            done += len(chunk.lines)
            if self._progress:
                self._progress(done, total)

    def _load_runs(self, runs: Sequence[Run]) -> list[StoredRun]:
        """These runs; those that were loaded last time are not loaded again."""
        known = self._runs | load_runs(self.backend, [run for run in runs if run.name not in self._runs])
        self._runs = {run.name: known[run.name] for run in runs}
        return list(self._runs.values())
