"""The main job, live: several processes write to one store at once and share out tasks. One of them is killed. Nothing
is lost, and each task is done once.

`opslog demo` runs it. The parts: `run` conducts, `workers` starts and kills processes, `agent` and `compactor` run in
them, `tasks` lets agents share out tasks, `journal` records an agent's calls beside the store, `check` compares the
journals with the store, and `display` shows the progress.
"""

from opslog.demo.run import main

__all__ = ["main"]
