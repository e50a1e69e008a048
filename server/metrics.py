"""Figures of a running server: plain numbers, counted on one thread, and collected when Prometheus requests them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from opslog.doors.metrics import DoorMetrics, Histogram, StoreFigures
from opslog.server.protocol.storage import Usage

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Metrics:
    """:ivar requests: by method and status.
    :ivar appends: seconds that clients waited for each append.
    :ivar commits: seconds that each commit took.
    :ivar changes: how many requests were committed; one commit may have several.
    :ivar doors: the figures of the served stores.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.appends = Histogram()
        self.commits = Histogram()
        self.changes = 0
        self.appended_bytes = 0
        self.failed_commits = 0
        self.doors = DoorMetrics()


class Gauges:
    """Values that are measured when the figures are requested.

    :param usage: returns the figures of the storage.
    :param followers: returns how many live reads wait.
    :param waiting: returns how many changes wait for a commit.
    :param buffered: returns the bytes of requests under way.
    :param stores: the served stores.
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
    """Called by `prometheus_client` to collect the figures."""

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
        yield from metrics.doors.families(self._gauges.stores)
