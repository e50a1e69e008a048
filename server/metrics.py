"""Figures of a running server. They are counted as plain numbers, on one thread; Prometheus reads them when it asks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opslog.server.protocol.storage import Usage

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """How many observations were at most so large."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(_SECONDS, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each counts what the ones before it count, too."""
        total, found = 0, []
        for bound, count in zip((*map(str, _SECONDS), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class StoreFigures(NamedTuple):
    """A served store now, as far as this process knows it.

    :ivar name: under which it is served.
    :ivar documents: how many there are.
    :ivar commits: how many were ever made.
    :ivar tail_commits: how many of them are not compacted.
    :ivar compaction_fails: whether the last automatic compaction failed.
    :ivar storage_requests: how many its storage was sent; 0 for directories.
    """

    name: str
    documents: int
    commits: int
    tail_commits: int
    compaction_fails: bool
    storage_requests: int


class Metrics:
    """:ivar requests: by method and status.
    :ivar appends: seconds that clients waited for one.
    :ivar commits: seconds that one took.
    :ivar changes: how many requests were committed, several at once.
    :ivar store_requests: by store, operation and status.
    :ivar store_seconds: by store, what clients waited for.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.appends = Histogram()
        self.commits = Histogram()
        self.changes = 0
        self.appended_bytes = 0
        self.failed_commits = 0
        self.store_requests: Counter[tuple[str, str, int]] = Counter()
        self.store_seconds: defaultdict[str, Histogram] = defaultdict(Histogram)


class Gauges:
    """What is measured when somebody asks.

    :param usage: of the storage.
    :param followers: how many wait.
    :param waiting: how many changes wait.
    :param buffered: bytes of requests under way.
    :param stores: those that are served.
    """

    def __init__(
        self,
        usage: Callable[[], Usage],
        followers: Callable[[], int],
        waiting: Callable[[], int],
        buffered: Callable[[], int],
        stores: Sequence[StoreFigures] = (),
    ) -> None:
        self.stores = stores
        self.usage = usage
        self.buffered = buffered
        self.followers = followers
        self.waiting = waiting


class Collector:
    """What `prometheus_client` asks for the figures."""

    def __init__(self, metrics: Metrics, gauges: Gauges) -> None:
        self._metrics = metrics
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        def counter(name: str, text: str, value: float) -> Metric:
            return CounterMetricFamily(f"opslog_server_{name}", text, value=value)

        def gauge(name: str, text: str, value: float) -> Metric:
            return GaugeMetricFamily(f"opslog_server_{name}", text, value=value)

        def histogram(name: str, text: str, found: Histogram) -> Metric:
            return HistogramMetricFamily(f"opslog_server_{name}", text, buckets=found.buckets(), sum_value=found.sum)

        metrics, usage = self._metrics, self._gauges.usage()
        requests: Any = CounterMetricFamily("opslog_server_requests", "Answered requests.", labels=["method", "status"])
        for (method, status), count in sorted(metrics.requests.items()):
            requests.add_metric([method, str(status)], count)
        yield requests
        yield counter("appended_bytes", "Bytes of content that were appended.", metrics.appended_bytes)
        yield counter("committed_changes", "Changes that were committed.", metrics.changes)
        yield counter("failed_commits", "Commits that did not succeed.", metrics.failed_commits)
        yield histogram("append_seconds", "From the whole request to the answer of an append.", metrics.appends)
        yield histogram("commit_seconds", "From the beginning of a commit until it is durable.", metrics.commits)
        yield gauge("followers", "Live reads that wait for more.", self._gauges.followers())
        yield gauge("waiting_changes", "Changes that wait for a commit to begin.", self._gauges.waiting())
        yield gauge("buffered_bytes", "Bytes of requests that are not answered yet.", self._gauges.buffered())
        yield gauge("streams", "Streams that are stored.", usage.streams)
        yield gauge("content_bytes", "Bytes of content that are stored.", usage.bytes)
        yield gauge("stored_bytes", "What the storage takes.", usage.stored_bytes)
        yield from self._stores()

    def _stores(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        labels = ["store", "operation", "status"]
        requests: Any = CounterMetricFamily("opslog_store_requests", "Answered requests for stores.", labels=labels)
        for (store, operation, status), count in sorted(self._metrics.store_requests.items()):
            requests.add_metric([store, operation, str(status)], count)
        yield requests
        seconds: Any = HistogramMetricFamily("opslog_store_seconds", "What clients waited for.", labels=["store"])
        for store, found in sorted(self._metrics.store_seconds.items()):
            seconds.add_metric([store], buckets=found.buckets(), sum_value=found.sum)
        yield seconds
        figures = {
            "documents": "Documents that there are.",
            "commits": "Commits that were ever made, as far as is known here.",
            "tail_commits": "Those of them that are not compacted.",
            "compaction_fails": "1 if the last automatic compaction failed.",
            "storage_requests": "Requests that were sent to the storage.",
        }
        for name, text in figures.items():
            family: Any = GaugeMetricFamily(f"opslog_store_{name}", text, labels=["store"])
            for each in self._gauges.stores:
                family.add_metric([each.name], float(getattr(each, name)))
            yield family


def exposition(metrics: Metrics, gauges: Gauges) -> bytes:
    """All figures in the text format of Prometheus."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(Collector(metrics, gauges))
    return generate_latest(registry)
