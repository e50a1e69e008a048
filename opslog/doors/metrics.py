"""Figures of stores and doors for Prometheus, the same for every server: the requests through each door to each store,
how long they took, and the state of the stores. One thread counts them, as plain numbers. Prometheus reads them when it
asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from opslog.format.documents import Document
from opslog.replica.state import State
from opslog.store import Store, replica_of

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_GAUGES = {
    "documents": "Documents in the store.",
    "commits": "Commits ever made, as far as this process knows.",
    "tail_commits": "Commits that are not compacted yet.",
    "compaction_fails": "1 if the last automatic compaction failed.",
    "storage_requests": "Requests sent to the storage.",
}


class Histogram:
    """Counts observations by size."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(_SECONDS, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """The buckets as Prometheus takes them: each one also counts what the smaller ones count."""
        total, found = 0, []
        for bound, count in zip((*map(str, _SECONDS), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class StoreFigures(NamedTuple):
    """The state of a store, as far as this process knows it.

    :ivar name: the name that clients use.
    :ivar documents: how many it has.
    :ivar commits: how many were ever made.
    :ivar tail_commits: how many of them are not compacted yet.
    :ivar compaction_fails: whether the last automatic compaction failed.
    :ivar storage_requests: how many requests were sent to its storage; 0 for directories.
    """

    name: str
    documents: int
    commits: int
    tail_commits: int
    compaction_fails: bool
    storage_requests: int


def figures_of(name: str, store: Store[Document]) -> StoreFigures:
    """Figures of an open store, from memory."""
    replica = replica_of(store)

    def read(state: State) -> StoreFigures:
        tail = replica.compaction.tail_of(state.commits)
        fails = replica.compaction.error is not None
        return StoreFigures(name, state.documents, state.commits, tail, fails, replica.backend.requests)

    return replica.read(read)


class DoorMetrics:
    """Requests to stores.

    :ivar requests: how many, by door, store, operation and status.
    :ivar seconds: how long clients waited, by door and store.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str, str]] = Counter()
        self.seconds: defaultdict[tuple[str, str], Histogram] = defaultdict(Histogram)

    def families(self, stores: Sequence[StoreFigures]) -> Iterator[Metric]:
        """The figures as `prometheus_client` takes them.

        :param stores: the served stores, as they are now.
        """
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        labels = ["door", "store", "operation", "status"]
        requests: Any = CounterMetricFamily("opslog_store_requests", "Answered requests for stores.", labels=labels)
        for values, count in sorted(self.requests.items()):
            requests.add_metric(values, count)
        yield requests
        seconds: Any = HistogramMetricFamily("opslog_store_seconds", "How long clients waited.", labels=labels[:2])
        for names, found in sorted(self.seconds.items()):
            seconds.add_metric(names, buckets=found.buckets(), sum_value=found.sum)
        yield seconds
        for name, text in _GAUGES.items():
            family: Any = GaugeMetricFamily(f"opslog_store_{name}", text, labels=["store"])
            for each in stores:
                family.add_metric([each.name], float(getattr(each, name)))
            yield family


class Collector(Protocol):
    """What `prometheus_client` collects figures from."""

    def collect(self) -> Iterator[Metric]: ...


class Doors:
    """The collector of a server that has no other figures."""

    def __init__(self, metrics: DoorMetrics, stores: Sequence[StoreFigures]) -> None:
        self._metrics = metrics
        self._stores = stores

    def collect(self) -> Iterator[Metric]:
        return self._metrics.families(self._stores)


def exposition(collector: Collector) -> bytes:
    """All figures in the text format of Prometheus, of `CONTENT_TYPE`."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)
