"""The main job, live: several processes write to one store at once, one of them is killed, and nothing is lost.

`opslog demo` runs it. The parts: `run` conducts, `workers` starts and kills processes, `agent` and `compactor` are
what runs in them, `journal` is what an agent noted beside the store, `check` holds the journals against the store,
`display` shows it.
"""

from opslog.demo.run import main

__all__ = ["main"]
