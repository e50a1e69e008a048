import os
import re
import subprocess
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from opslog.errors import CorruptError, UsageError
from opslog.importers import ImportedCommit, ImportedOp
from opslog.importers.git import path_of, read_git, read_log


class Repository:
    """A git repository in a folder, used through the git command. Every commit is a minute after the one before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.minutes = 0
        path.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str, author: str = "Ann <ann@x>") -> bytes:
        name, email = author.removesuffix(">").split(" <")
        date = f"2026-11-20T12:{self.minutes:02d}:00+0100"
        identity = {
            "GIT_AUTHOR_NAME": name,
            "GIT_AUTHOR_EMAIL": email,
            "GIT_AUTHOR_DATE": date,
            "GIT_COMMITTER_NAME": "C",
            "GIT_COMMITTER_EMAIL": "c@x",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        command = ["git", "-C", str(self.path), *arguments]
        return subprocess.run(command, env=os.environ | identity, check=True, capture_output=True).stdout

    def commit(self, author: str = "Ann <ann@x>", *options: str) -> str:
        self.minutes += 1
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "change", *options, author=author)
        return self.git("rev-parse", "HEAD").decode().strip()

    def write(self, path: str | bytes, text: str) -> None:
        target = os.path.join(os.fsencode(self.path), os.fsencode(path))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w") as file:
            file.write(text)

    def tree(self, rev: str = "HEAD") -> dict[bytes, tuple[str, str]]:
        """{path: (mode, object id)}, as git lists them."""
        entries = self.git("ls-tree", "-r", "-z", rev).split(b"\0")[:-1]
        split = (entry.split(b"\t", 1) for entry in entries)
        return {path: (head.split()[0].decode(), head.split()[2].decode()) for head, path in split}


def replay(commits: Iterable[ImportedCommit]) -> dict[bytes, tuple[str, str]]:
    documents = dict[str, dict[str, Any]]()
    for commit in commits:
        for op in commit.ops:
            if op.document is not None:
                documents[op.id] = op.document
            else:
                del documents[op.id]
    return {path_of(id): (document["mode"], document["blob"]) for id, document in documents.items()}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def test_the_ops_replay_to_the_tree(repository: Repository) -> None:
    repository.write("a.txt", "1")
    repository.write("dir/b.txt", "1")
    repository.write("old name.txt", "a long text that is renamed, not changed\n" * 9)
    repository.write("été/日本 \t\n%41.txt", "1")
    repository.write(b"caf\xe9/100%.txt", "1")
    repository.commit()
    repository.git("mv", "old name.txt", "new name.txt")
    os.chmod(repository.path / "a.txt", 0o755)
    repository.commit("Bob <bob@x>")
    repository.git("switch", "-q", "-c", "side")
    repository.write("side.txt", "1")
    repository.write("dir/b.txt", "2")
    repository.commit("Cy <cy@x>")
    repository.git("switch", "-q", "main")
    repository.git("rm", "-q", "--cached", "dir/b.txt")
    repository.write("dir/c.txt", "1")
    (repository.path / "dir/b.txt").unlink()
    repository.commit()
    repository.minutes += 1
    repository.git("merge", "-q", "-s", "ours", "--no-commit", "side")
    repository.write("side.txt", "merged")
    merge = repository.commit("Dee <dee@x>")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{merge},module")
    repository.git("commit", "-q", "-m", "a submodule")
    (repository.path / "module").mkdir()
    (repository.path / "a.txt").unlink()
    (repository.path / "a.txt").symlink_to("dir/c.txt")
    (repository.path / "dir/c.txt").unlink()
    (repository.path / "dir").rmdir()
    repository.write("dir", "now a file")
    repository.commit("Ann <ann@x>", "--allow-empty")

    commits = list(read_git(repository.path))

    assert replay(commits) == repository.tree()
    assert b"caf\xe9/100%.txt" in repository.tree()
    first_parents = repository.git("rev-list", "--first-parent", "--reverse", "HEAD").decode().split()
    assert [commit.source.rpartition(":")[2] for commit in commits] == first_parents
    for number, commit in enumerate(first_parents, 1):
        assert replay(commits[:number]) == repository.tree(commit)
    statuses = {op.document["status"] for commit in commits for op in commit.ops if op.document}
    assert statuses == {"A", "M", "T"}
    [merged] = [commit for commit in commits if commit.source.endswith(merge)]
    assert [(op.op, op.id) for op in merged.ops] == [("set", "side.txt")]


def test_a_commit_carries_author_time_and_documents(repository: Repository) -> None:
    repository.write("a.txt", "1")
    commit = repository.commit("Tom Christie <tom@x>")
    blob = repository.git("rev-parse", "HEAD:a.txt").decode().strip()
    [imported] = read_git(repository.path)
    document = {"blob": blob, "mode": "100644", "status": "A", "commit": commit}
    assert imported.ops == (ImportedOp("set", "a.txt", document),)
    assert (imported.agent, imported.ts) == ("Tom-Christie", "2026-11-20T11:01:00.000000Z")


def test_empty_commits_are_left_out_and_rev_chooses_the_end(repository: Repository) -> None:
    repository.write("a.txt", "1")
    first = repository.commit()
    repository.commit("Ann <ann@x>", "--allow-empty")
    repository.write("a.txt", "2")
    repository.commit()
    ops = [op for commit in read_git(repository.path) for op in commit.ops]
    assert [op.document and op.document["status"] for op in ops] == ["A", "M"]
    assert replay(read_git(repository.path, rev=first)) == repository.tree(first)


def test_every_address_has_an_agent_name_of_its_own(repository: Repository) -> None:
    authors = [
        "Ann <ann@x>",
        "Ann <ann@y>",
        "ann <ann@z>",
        "Renamed <ann@x>",
        "Zoë Müller <zoe@x>",
        "日本 <nihon@x>",
        "日本 <日@x>",
        "日本 <.@x>",
        "x" * 200 + " <long@x>",
        "x" * 200 + " <long@y>",
    ]
    for number, author in enumerate(authors):
        repository.write("a.txt", str(number))
        repository.commit(author)
    assert [commit.agent for commit in read_git(repository.path)] == [
        *("Ann", "Ann-2", "ann-3", "Ann", "Zoe-Muller", "nihon", "unnamed", "unnamed-2"),
        *("x" * 128, "x" * 126 + "-2"),
    ]


def test_settings_of_the_user_change_nothing(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.write("dir/a.txt", "a text that is moved\n" * 9)
    repository.commit()
    repository.git("mv", "dir/a.txt", "dir/b.txt")
    repository.commit()
    plain = list(read_git(repository.path))
    config = tmp_path / "config"
    config.write_text(
        "[log]\nshowRoot = false\nshowSignature = true\ndecorate = full\n[diff]\nrenames = copies\nrelative = true\n"
        "ignoreSubmodules = all\n[color]\nui = always\n[core]\nabbrev = 7\nquotePath = true\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert list(read_git(repository.path)) == plain


def test_a_reader_that_stops_early_leaves_no_process(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.write("a.txt", "1")
    repository.commit()
    repository.write("a.txt", "2")
    repository.commit()
    started = list[subprocess.Popen[bytes]]()

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    with closing(cast(Generator[ImportedCommit], read_git(repository.path))) as commits:
        next(commits)
    assert all(process.returncode is not None for process in started)
    assert len(started) == 2


def test_ids_of_paths_that_are_not_utf8_are_reversible() -> None:
    assert path_of("/caf%E9/100%25.txt") == b"caf\xe9/100%.txt"
    assert path_of("100%25.txt") == b"100%25.txt"


def test_usage_errors_say_what_to_do(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="name a git repository"):
        list(read_git(tmp_path))
    with pytest.raises(UsageError, match="cannot read revision 'HEAD'"):
        list(read_git(repository.path))
    repository.write("a.txt", "1")
    repository.commit()
    for rev in ("no-such-branch", "--all", "HEAD:a.txt"):
        with pytest.raises(UsageError, match=re.escape(rev)):
            list(read_git(repository.path, rev=rev))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="install git"):
        list(read_git(repository.path))


def test_a_shallow_clone_is_refused(repository: Repository, tmp_path: Path) -> None:
    for text in "12":
        repository.write("a.txt", text)
        repository.commit()
    repository.git("clone", "-q", "--depth", "1", f"file://{repository.path}", str(tmp_path / "clone"))
    with pytest.raises(UsageError, match="--unshallow"):
        list(read_git(tmp_path / "clone"))


def test_a_damaged_repository_is_corrupt(repository: Repository) -> None:
    for text in "12":
        repository.write("a.txt", text)
        repository.commit()
    tree = repository.git("rev-parse", "HEAD~1^{tree}").decode().strip()
    (repository.path / ".git/objects" / tree[:2] / tree[2:]).unlink()
    with pytest.raises(CorruptError, match="git fsck"):
        list(read_git(repository.path))


def test_settings_of_the_repository_start_no_programs(repository: Repository, tmp_path: Path) -> None:
    """A repository may come from anybody, and it may set a command by which git fetches missing objects."""
    (repository.path / "folder").mkdir()
    (repository.path / "folder" / "file").write_text("1")
    repository.commit()
    tree = repository.git("rev-parse", "HEAD:folder").decode().strip()
    (repository.path / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    command = f"touch {tmp_path}/started"
    for name, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::sh -c {command.replace(' ', '% ')}",
        "remote.origin.uploadpack": command,
        "protocol.allow": "always",
        "protocol.ext.allow": "always",
        "core.fsmonitor": command,
        "core.sshCommand": command,
        "core.pager": command,
        "log.showSignature": "true",
        "gpg.program": command,
        "diff.external": command,
    }.items():
        repository.git("config", name, value)
    with pytest.raises(CorruptError, match="git stopped in the middle"):
        list(read_git(repository.path))
    assert not (tmp_path / "started").exists()


OUTPUTS = {
    "a change without a name": [b"1" * 40 + b"\n0\n\nA", b"\n:000000 100644 00 22 A"],
    "a change that is none": [b":000000 100644 A", b"x"],
    "a change in other bytes": [b":\xff", b"x"],
    "a commit without a date": [b"1" * 40 + b"\n", b":000000 100644 00 22 A", b"x"],
    "a date that is no number": [b"1" * 40 + b"\nx\n\nA", b":000000 100644 00 22 A", b"x"],
    "a date of thousands of digits": [b"1" * 40 + b"\n" + b"9" * 5000 + b"\n\nA", b":000000 100644 00 22 A", b"x"],
}


@pytest.mark.parametrize("tokens", OUTPUTS.values(), ids=OUTPUTS)
def test_output_that_git_never_prints_is_corrupt(tokens: list[bytes]) -> None:
    with pytest.raises(CorruptError) as caught:
        list(read_log(iter(tokens), "repo"))
    assert caught.value.path == "repo"


class TestContents:
    """With the contents of files."""

    def test_text_is_text_and_all_else_base64(self, tmp_path: Path) -> None:
        repository = Repository(tmp_path / "r")
        repository.write("text", "é\u2028\n\0")
        (repository.path / "bytes").write_bytes(b"\xff\x00")
        (repository.path / "empty").write_bytes(b"")
        (repository.path / "link").symlink_to("text")
        repository.commit()
        (repository.path / "bytes").unlink()
        repository.write("text", "second")
        repository.commit()
        first, second = read_git(repository.path, contents=True)
        found = {op.id: op.document for op in first.ops}
        contents = {
            id: {key: (document or {}).get(key) for key in ("text", "base64")} for id, document in found.items()
        }
        assert contents == {
            "text": {"text": "é\u2028\n\0", "base64": None},
            "bytes": {"text": None, "base64": "/wA="},
            "empty": {"text": "", "base64": None},
            "link": {"text": "text", "base64": None},
        }
        assert [(op.op, op.id, (op.document or {}).get("text")) for op in second.ops] == [
            ("delete", "bytes", None),
            ("set", "text", "second"),
        ]
        without = [[(op.id, op.document) for op in commit.ops] for commit in read_git(repository.path)]
        for commit, expected in zip((first, second), without, strict=True):
            for op in commit.ops:
                for key in ("text", "base64"):
                    (op.document or {}).pop(key, None)
            assert [(op.id, op.document) for op in commit.ops] == expected

    def test_a_submodule_has_none(self, tmp_path: Path) -> None:
        repository = Repository(tmp_path / "r")
        entry = f"160000,{'1' * 40},module"
        repository.git("update-index", "--add", "--cacheinfo", entry)
        repository.git("commit", "-q", "-m", "a module")
        (commit,) = read_git(repository.path, contents=True)
        assert [sorted(op.document or {}) for op in commit.ops] == [["blob", "commit", "mode", "status"]]

    def test_a_file_that_git_has_lost_is_named(self, tmp_path: Path) -> None:
        repository = Repository(tmp_path / "r")
        repository.write("a", "a")
        repository.commit()
        blob = repository.tree()[b"a"][1]
        (repository.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
        with pytest.raises(CorruptError, match=f"git cannot read the file of object {blob}; run 'git fsck' there"):
            list(read_git(repository.path, contents=True))

    def test_its_process_ends_with_the_iterator(self, tmp_path: Path) -> None:
        repository = Repository(tmp_path / "r")
        for number in range(3):
            repository.write("a", str(number))
            repository.commit()
        before = set(os.listdir(f"/proc/{os.getpid()}/fd"))
        with closing(cast(Generator[ImportedCommit], read_git(repository.path, contents=True))) as commits:
            next(commits)
        assert set(os.listdir(f"/proc/{os.getpid()}/fd")) == before
