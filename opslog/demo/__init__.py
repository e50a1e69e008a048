"""The main job, live: several processes write to one store at once and share out tasks, one of them is killed, and
nothing is lost; each task is done once.

`opslog demo` runs it. The parts: `run` conducts, `workers` starts and kills processes, `agent` and `compactor` are
what runs in them, `tasks` is how agents share out tasks, `journal` is what an agent noted beside the store, `check`
holds the journals against the store, `display` shows it.
"""

from opslog.demo.run import main

__all__ = ["main"]
