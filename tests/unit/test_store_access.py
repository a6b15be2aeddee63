"""The owner of a local root: the mode of the root decides the modes of all paths below it, under any umask."""

from __future__ import annotations

import asyncio
import fcntl
import grp
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from fray.cli import cli
from fray_coordinator.actors.rpc_secrets import rpc_keys
from fray_coordinator.clock import SystemClock
from fray_coordinator.core import Core, open_core
from fray_coordinator.errors import StoreRefused
from fray_coordinator.jobs.submission import submit
from fray_coordinator.store.interface import ABSENT, ANY
from fray_coordinator.store.opening import open_backend
from fray_coordinator.store.probe import Finding, judge_permissions, probe
from fray_layouts.spec_parsing import parse_spec
from tests.support.users import STRANGER, is_root, may_stranger, place_for_all, unprivileged

FRIEND = STRANGER + 1
"""Another user; in a group's root, of the same group."""


@pytest.fixture
def place() -> Iterator[Path]:
    with place_for_all() as folder:
        yield folder


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


async def work_under(root: Path) -> Core:
    """Write records, data, secrets and locks as agents and clients do."""
    core = await open_core(str(root))
    await submit(core, [parse_spec({"name": "job", "entrypoint": {"command": ["true"]}})])
    await rpc_keys(core)
    await core.store.put("work/job/1/0/result", b"1", ABSENT)
    await core.store.put("work/job/1/0/result", b"2", ANY)
    return core


def modes(root: Path) -> tuple[set[int], set[int]]:
    """The modes of folders and of files, including the root's."""
    found = [root, *root.rglob("*")]
    return tuple({path.stat().st_mode & 0o7777 for path in found if path.is_dir() == kind} for kind in (True, False))  # type: ignore[return-value]


def a_group() -> str:
    """The name of a group of the user that runs the tests."""
    return grp.getgrgid(os.getegid()).gr_name


def init(root: Path | str, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["init", *options, str(root)])
    return result.exit_code, result.output


def test_a_new_root_is_its_owners_alone(place: Path, umask: None) -> None:
    asyncio.run(work_under(place / "root"))
    assert modes(place / "root") == ({0o700}, {0o600})
    for way in (os.R_OK, os.W_OK, os.X_OK):
        assert not may_stranger(place / "root", way)


def test_init_makes_a_root_that_is_its_owners_alone(place: Path, umask: None) -> None:
    assert init(place / "root")[0] == 0
    asyncio.run(work_under(place / "root"))
    assert modes(place / "root") == ({0o700}, {0o600})


def test_a_groups_root_is_the_groups_throughout(place: Path, umask: None) -> None:
    code, told = init(place / "root", "--group", a_group())
    assert code == 0, told
    asyncio.run(work_under(place / "root"))
    assert modes(place / "root") == ({0o2770}, {0o660})
    assert {path.stat().st_gid for path in (place / "root").rglob("*")} == {os.getegid()}
    for way in (os.R_OK, os.W_OK, os.X_OK):
        assert not may_stranger(place / "root", way)


def test_two_users_of_a_group_share_all_of_it(place: Path, umask: None) -> None:
    """If the tests' user cannot become another one, both are the same user, and only the modes are checked."""
    root = place / "root"
    root.mkdir()
    if is_root():
        os.chown(root, STRANGER, FRIEND)
    root.chmod(0o2770)

    def work() -> int:
        async def act() -> int:
            core = await work_under(root)
            (entry, *_) = await core.store.list("pending/")
            await core.store.delete(entry.key)
            return len(await rpc_keys(core))

        return asyncio.run(act())

    for user in (STRANGER, FRIEND, STRANGER):
        assert unprivileged(work, user, group=FRIEND) == 1, "one key, which both can read"
        shutil.rmtree(root / "work")
    assert modes(root) == ({0o2770}, {0o660})


def test_the_modes_that_the_owner_gives_the_root_count_from_then_on(place: Path) -> None:
    root = place / "root"
    asyncio.run(work_under(root))
    subprocess.run(["chmod", "-R", "u+rwX,g+rwX,o-rwx", root], check=True)
    subprocess.run(["find", root, "-type", "d", "-exec", "chmod", "g+s", "{}", "+"], check=True)
    shutil.rmtree(root / "work")
    asyncio.run(work_under(root))
    assert modes(root) == ({0o2770}, {0o660})


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o775, 0o2750])
def test_a_root_without_a_group_is_its_owners_alone(place: Path, mode: int) -> None:
    """Other members of the group would find the first record that they may not read."""
    root = place / "root"
    root.mkdir()
    root.chmod(mode)
    asyncio.run(work_under(root))
    assert {path.stat().st_mode & 0o777 for path in root.rglob("*")} == {0o700, 0o600}


def test_other_users_cannot_write_to_the_owners_root(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = place / "root"
    asyncio.run(work_under(root))
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(StoreRefused, match=f"{root} belongs to user {user} alone; work there as that user, or make it"):
        asyncio.run(work_under(root))


def test_a_user_without_access_cannot_block_agents_with_a_lock(place: Path) -> None:
    """Any right to open a lock file is enough to hold it for ever."""
    root = place / "root"
    asyncio.run(work_under(root))
    locks = sorted((root / ".fray/locks").iterdir())

    def hold() -> int:
        taken = 0
        for lock in locks:
            try:
                fcntl.flock(os.open(lock, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except PermissionError:
                continue
            taken += 1
        return taken

    assert locks
    assert not is_root() or unprivileged(hold) == 0
    assert {lock.stat().st_mode & 0o077 for lock in locks} == {0}


@pytest.mark.parametrize(
    ("root", "group", "remedy"),
    [("root", "no-such-group", "getent group"), ("memory://shared", None, "--group out"), ("full", None, "chgrp -R")],
)
def test_a_root_that_cannot_be_given_to_a_group_is_refused(
    place: Path, root: str, group: str | None, remedy: str
) -> None:
    (place / "full").mkdir()
    (place / "full/file").touch()
    code, told = init(root if "://" in root else place / root, "--group", group or a_group())
    assert code != 0
    assert remedy in " ".join(told.split())


def test_a_groups_root_can_be_initialised_again(place: Path) -> None:
    for _ in range(2):
        assert init(place / "root", "--group", a_group())[0] == 0


# --- doctor


def findings(root: Path) -> list[Finding]:
    return [finding for finding in asyncio.run(probe(str(root))) if finding.severity != "ok"]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (0o700, []),
        (0o2770, []),
        (0o755, ["warning: every user", "warning: group"]),
        (0o701, ["warning: every user"]),
        (0o777, ["error: every user", "warning: group"]),
        (0o770, ["warning: group"]),
    ],
)
def test_doctor_names_the_group_that_may_use_a_root(place: Path, mode: int, expected: list[str]) -> None:
    root = place / "root"
    root.mkdir()
    root.chmod(mode)
    assert [
        f"{finding.severity}: {finding.what}"[: len(words)]
        for finding, words in zip(findings(root), expected, strict=True)
    ] == expected
    assert all("chmod" in finding.remedy for finding in findings(root))
    if not expected:
        assert [finding.severity for finding in judge_permissions(os.stat(root))] == ["ok"]


def test_doctor_names_paths_that_are_no_objects(place: Path) -> None:
    root = place / "root"
    asyncio.run(work_under(root))
    os.mkfifo(root / "jobs/pipe.json")
    (root / "inbox/link.json").symlink_to("/dev/zero")
    (root / "inbox/folder").mkdir()
    (root / "inbox/line\nfeed.json").touch()
    (root / os.fsdecode(b"inbox/\xff.json")).touch()
    with (root / "agents.json").open("wb") as file:
        file.truncate(200 * 10**9)
    found = findings(root)
    assert {finding.severity for finding in found} == {"warning"}
    assert [finding.what.split(" cannot be read")[0] for finding in found] == [
        "agents.json",
        "inbox/\\xff.json/",
        "inbox/folder/",
        "inbox/line\\nfeed.json/",
        "inbox/link.json",
        "jobs/pipe.json",
    ]


def test_metadata_means_nothing(place: Path) -> None:
    """chmod, touch, a hard-linked backup, a copy: the same objects in the same versions."""
    root = place / "root"

    def versions(at: Path) -> dict[str, str | None]:
        rows = asyncio.run(open_backend(str(at), SystemClock()).list("", None, None, versions=True))
        return {row.key: row.version for row in rows}

    asyncio.run(work_under(root))
    before = versions(root)
    assert len(before) > 3
    for command in (["chmod", "-R", "g+rX"], ["chmod", "-R", "go-rwx"], ["touch", "-d", "2001-01-01"], ["cp", "-al"]):
        subprocess.run([*command, root, *([place / "backup"] if command[0] == "cp" else [])], check=True)
        assert versions(root) == before
    subprocess.run(["cp", "-r", root, place / "copy"], check=True)
    assert versions(place / "copy") == versions(place / "backup") == before
