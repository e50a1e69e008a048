"""Memory that repeated calls do not give back."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable


def growth_of(work: Callable[[], object]) -> int:
    """How many bytes more are allocated after 2,000 calls than before them. 200 calls come first, to fill caches."""
    tracemalloc.start()
    try:
        for _ in range(200):
            work()
        gc.collect()
        start = tracemalloc.get_traced_memory()[0]
        for _ in range(2000):
            work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - start
    finally:
        tracemalloc.stop()
