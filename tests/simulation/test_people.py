"""Changes that people make to the directory of a store in use: they move it and put a copy in its place, or remove
`locks/`."""

from __future__ import annotations

import os

import pytest

from opslog.errors import AgentFencedError, ReopenError
from opslog.testing import Fault, Process, Simulation, all_commits, make_storage, open_store
from opslog.testing.disk import Directory, Disk, File
from opslog.testing.system import ROOT, System


@pytest.mark.parametrize(("amount", "is_shared"), [(0.0, True), (0.9, False)], ids=["links", "a copy"])
def test_a_process_with_an_open_directory_stays_in_the_moved_one(amount: float, is_shared: bool) -> None:
    simulation = Simulation(0, [Fault(0, "moved", amount, "open /store")])
    system = System(simulation)
    path = f"{ROOT}/store"

    def agent(process: Process) -> None:
        system.mkdir(path)
        at = system.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_PATH)
        file = system.open("f", os.O_RDWR | os.O_CREAT, dir_fd=at)
        system.write(file, b"before")
        before = system.fstat(at)
        system.open(path, os.O_RDONLY | os.O_DIRECTORY)  # just before this call, the directory is moved
        assert not os.path.samestat(before, system.stat(path))
        system.write(file, b" and after")
        assert system.stat("f", dir_fd=at).st_size == 16
        assert system.stat(f"{path}/f").st_size == (16 if is_shared else 6)
        system.open("g", os.O_RDWR | os.O_CREAT, dir_fd=at)
        with pytest.raises(FileNotFoundError):
            system.stat(f"{path}/g")

    simulation.start("a", agent)
    simulation.run()
    assert simulation.injected == {"moved": 1}
    former = system.disk.directory(f"{ROOT}/former-1")
    assert sorted(former.entries) == ["f", "g"]


def test_a_copy_is_durable_and_a_directory_that_was_removed_takes_nothing_new() -> None:
    disk = Disk(lambda: 0.0)
    disk.make_directory("/store")
    disk.make_directory("/store/locks")
    disk.write(disk.make_file("/store/locks/a"), b"x")
    removed = disk.directory("/store/locks")
    disk.replace_by_copy("/store", "/former", of_links=False)
    copied = disk.find("/store/locks/a")
    assert isinstance(copied, File)
    assert copied.synced == 1
    assert disk.root.durable["store"] is disk.find("/store")
    assert disk.find("/former/locks") is removed
    disk.remove_tree("/former/locks")
    assert isinstance(removed, Directory)
    assert not removed.links
    with pytest.raises(FileNotFoundError):
        disk.make_file("b", removed)
    disk.remove_tree("/former/locks")


@pytest.mark.parametrize(("kind", "error"), [("moved", ReopenError), ("unlocked", AgentFencedError)])
def test_a_store_says_what_was_done_to_it_and_the_next_one_goes_on(kind: str, error: type[Exception]) -> None:
    simulation = Simulation(0, [Fault(0, kind, 0.9, "write /store/ops/")])
    place = make_storage("posix", simulation)
    written: list[str] = []

    def agent(process: Process) -> None:
        store = open_store(place, process, agent="a")

        def write() -> None:
            for number in range(10):
                store[f"d{number}"] = {}
                written.append(f"d{number}")

        with pytest.raises(error):
            write()
        store.close()
        with open_store(place, process, agent="a") as store:
            assert set(written) <= set(store)
            store["after"] = {}

    with place.installed():
        simulation.start("a", agent)
        simulation.run()
    assert simulation.injected == {kind: 1}
    assert len(written) < 2
    assert len(all_commits(place)["a"]) in (len(written) + 1, len(written) + 2)
