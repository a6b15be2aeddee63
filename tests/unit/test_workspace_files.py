"""Which files belong to a workspace, and the archive of them."""

import io
import os
import re
import socket
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from fray.errors import InvalidInput
from fray.workspace import archive
from fray.workspace.archive import packed
from fray.workspace.selection import workspace_files


def write(folder: Path, **files: str) -> None:
    """Write files by their paths, with "__" for "/" and "_dot_" for a dot at the beginning."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def git(folder: Path, *words: str) -> None:
    options = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", folder, *options, *words], check=True, capture_output=True)


def names(folder: Path) -> list[str]:
    return [file.name for file in workspace_files(folder)]


def members(folder: Path) -> dict[str, tarfile.TarInfo]:
    data = packed(folder, workspace_files(folder)).data
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    with tarfile.open(fileobj=io.BytesIO(plain)) as opened:
        return {member.name: member for member in opened}


def test_with_git_the_files_are_all_that_are_tracked_or_not_ignored(tmp_path: Path) -> None:
    write(tmp_path, tracked_py="", untracked_py="", gone_py="", out__log="", _dot_gitignore="out/\n", kept__a_py="")
    git(tmp_path, "init")
    git(tmp_path, "add", "tracked.py", "gone.py", ".gitignore")
    (tmp_path / "gone.py").unlink()
    assert names(tmp_path) == [".gitignore", "kept/a.py", "tracked.py", "untracked.py"]
    write(tmp_path, _dot_frayignore="tracked.py\n.*\n")
    assert names(tmp_path) == ["kept/a.py", "untracked.py"]


def test_a_folder_inside_of_a_repository_goes_alone(tmp_path: Path) -> None:
    write(tmp_path, top_py="", service__main_py="", service__a__log="", _dot_gitignore="*log\n")
    git(tmp_path, "init")
    assert names(tmp_path / "service") == ["main.py"]


def test_a_folder_that_git_ignores_as_a_whole_can_go(tmp_path: Path) -> None:
    write(tmp_path, _dot_gitignore="build/\n", build__a_py="")
    git(tmp_path, "init")
    assert names(tmp_path / "build") == ["a.py"]


def test_submodules_and_repositories_inside_go_along(tmp_path: Path) -> None:
    library, project = tmp_path / "library", tmp_path / "project"
    write(library, code_py="", _dot_gitignore="*.log\n")
    git(library, "init")
    git(library, "add", ".")
    git(library, "commit", "-m", "first")
    write(project, main_py="", inner__own_py="")
    git(project / "inner", "init")
    git(project, "init")
    git(project, "submodule", "add", str(library), "third/library")
    write(project, third__library__new_py="", third__library__x="")
    (project / "third/library/x").rename(project / "third/library/x.log")
    assert names(project) == [
        *(".gitmodules", "inner/own.py", "main.py"),
        *("third/library/.gitignore", "third/library/code.py", "third/library/new.py"),
    ]


def test_without_git_the_rules_of_each_folder_hold_below_it(tmp_path: Path) -> None:
    write(tmp_path, _dot_gitignore="*.log\n/data/\n", a__log="", data__x="", sub__data__x="")
    write(tmp_path, sub___dot_gitignore="!keep.log\nsecret\n", sub__secret="", secret="")
    for name in ("a.log", "sub/keep.log", "sub/b.log"):
        (tmp_path / name).write_text("")
    assert names(tmp_path) == [".gitignore", "a/log", "secret", "sub/.gitignore", "sub/data/x", "sub/keep.log"]


@pytest.mark.parametrize("with_git", [True, False])
def test_environments_and_bytecode_stay_at_home(tmp_path: Path, with_git: bool) -> None:
    write(tmp_path, a_py="", __pycache__="")
    write(tmp_path, env__lib__x_py="")
    (tmp_path / "env/pyvenv.cfg").write_text("")
    (tmp_path / "pkg/__pycache__").mkdir(parents=True)
    (tmp_path / "pkg/__pycache__/a.pyc").write_text("")
    if with_git:
        git(tmp_path, "init")
    assert [name for name in names(tmp_path) if name != "__pycache__"] == ["a.py"]


def test_a_name_may_be_any_bytes(tmp_path: Path) -> None:
    odd = [b"caf\xe9", "日本/ü\n.py".encode(), b"tab\tin", b"-dash", b"x" * 200]
    for name in odd:
        path = tmp_path / os.fsdecode(name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name)
    walked = names(tmp_path)
    assert [os.fsencode(name) for name in walked] == sorted(odd)
    packed_names = {os.fsencode(name) for name in members(tmp_path)}
    git(tmp_path, "init")
    assert names(tmp_path) == walked
    assert packed_names == set(odd)


def test_the_archive_says_nothing_of_times_owners_and_places(tmp_path: Path) -> None:
    digests: set[str] = set()
    for copy in ("one", "two"):
        folder = tmp_path / copy
        write(folder, b__c_py="text", a_py="x" * 5000)
        (folder / "run.sh").write_text("#!/bin/sh")
        (folder / "run.sh").chmod(0o700 if copy == "one" else 0o775)
        (folder / "link").symlink_to("b/c.py")
        os.utime(folder / "a.py", (0, len(digests)))
        digests.add(packed(folder, workspace_files(folder)).digest)
    assert len(digests) == 1
    found = members(tmp_path / "one")
    assert list(found) == ["a.py", "b/c.py", "link", "run.sh"]
    assert [found[name].mode for name in ("a.py", "run.sh")] == [0o644, 0o755]
    assert (found["link"].linkname, found["a.py"].mtime, found["a.py"].uid, found["a.py"].uname) == ("b/c.py", 0, 0, "")
    (tmp_path / "two/a.py").write_text("y" * 5000)
    assert packed(tmp_path / "two", workspace_files(tmp_path / "two")).digest not in digests


def outside(folder: Path) -> None:
    (folder / "x").symlink_to("../outside")


def absolute(folder: Path) -> None:
    (folder / "x").symlink_to(folder / "a.py")


def by_a_detour(folder: Path) -> None:
    (folder / "here").symlink_to(".")
    (folder / "x").symlink_to("here/../a.py")


def a_socket(folder: Path) -> None:
    os.chdir(folder)  # the path of a socket is short
    socket.socket(socket.AF_UNIX).bind("x")


def a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "x")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (outside, "a link to ../outside, which leaves the folder"),
        (absolute, "which leaves the folder"),
        (by_a_detour, "which leaves the folder"),
        (a_socket, "a device, a pipe or a socket"),
        (a_pipe, "a device, a pipe or a socket"),
    ],
)
def test_a_file_that_cannot_be_packed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, a_py="")
    make(tmp_path)
    with pytest.raises(InvalidInput, match=f"workspace: 'x' .*{re.escape(why)}.*frayignore"):
        packed(tmp_path, workspace_files(tmp_path))
    write(tmp_path, _dot_frayignore="/x\n")
    assert "x" not in members(tmp_path)


def test_a_path_that_is_too_long_for_hosts_is_named(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["deep" * 50] * 6)
    deep.mkdir(parents=True)
    write(deep, a_py="")
    with pytest.raises(InvalidInput, match=r"workspace: 'deepdeep.* its path has more than 1024 bytes; .*frayignore"):
        packed(tmp_path, workspace_files(tmp_path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a_py="", secret="")
    (tmp_path / "secret").chmod(0)
    real = os.open

    def refusing(path: str, *words: int) -> int:  # root may read everything
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied")
        return real(path, *words)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(InvalidInput, match=r"workspace: 'secret' .*Permission denied.*make it readable"):
        packed(tmp_path, workspace_files(tmp_path))


@pytest.mark.parametrize("name", ["nowhere", "a.py"])
def test_a_folder_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, a_py="")
    with pytest.raises(InvalidInput, match=f"workspace: '.*{name}'.*there is no such folder"):
        workspace_files(tmp_path / name)


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no files that are not ignored"):
        workspace_files(tmp_path)


def test_git_says_why_it_cannot_list(tmp_path: Path) -> None:
    write(tmp_path, a_py="", _dot_git__HEAD="nonsense")
    with pytest.raises(InvalidInput, match=r"git cannot list its files .*not a git repository"):
        workspace_files(tmp_path)


def test_a_pattern_that_means_nothing_is_told_with_its_file(tmp_path: Path) -> None:
    write(tmp_path, a_py="", _dot_frayignore="[a-\n")
    with pytest.raises(InvalidInput, match=r"workspace: '.*\.frayignore'.*the pattern '\[a-' matches nothing"):
        workspace_files(tmp_path)


def test_the_error_for_a_large_workspace_names_the_largest_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        (tmp_path / f"f{number:02}").write_bytes(os.urandom(1000 * (number + 1)))
    monkeypatch.setenv("FRAY_WORKSPACE_LIMIT", "20KB")
    with pytest.raises(
        InvalidInput, match=r"packed it has more than 20 kB.*\.frayignore.*FRAY_WORKSPACE_LIMIT"
    ) as told:
        packed(tmp_path, workspace_files(tmp_path))
    assert re.findall(r"f\d\d", str(told.value)) == [f"f{number:02}" for number in range(11, 1, -1)]
    monkeypatch.setenv("FRAY_WORKSPACE_LIMIT", "1MB")
    assert len(members(tmp_path)) == 12
    monkeypatch.setattr(archive, "MAX_WORKSPACE_FILES", 11)
    with pytest.raises(InvalidInput, match="it has 12 files, more than the 11"):
        packed(tmp_path, workspace_files(tmp_path))
    monkeypatch.setattr(archive, "MAX_WORKSPACE_FILES", 12)
    monkeypatch.setattr(archive, "MAX_WORKSPACE_BYTES", 1000)
    with pytest.raises(InvalidInput, match="more than the 1 kB that are allowed"):
        packed(tmp_path, workspace_files(tmp_path))


def test_a_file_that_shrinks_while_it_is_packed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a_py="x" * 100)
    monkeypatch.setattr(os, "fstat", lambda handle: os.lstat(__file__))
    with pytest.raises(InvalidInput, match="became shorter while it was packed"):
        packed(tmp_path, workspace_files(tmp_path))
