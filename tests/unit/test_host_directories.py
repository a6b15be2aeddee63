"""Directories and locks outside of the root are ours alone or refused; only the files of dead agents are removed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fray.rpc.actor_server import socket_dir
from fray_agents.agent import predecessors
from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.agent.predecessors import reap_predecessors
from fray_agents.host import agent_lock
from fray_agents.host.agent_lock import AgentLock
from fray_agents.runner.task_cgroup import TaskCgroup
from fray_coordinator.core import Core, open_core
from fray_coordinator.store.interface import ABSENT, ANY
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, Resources
from fray_runtime import directories
from fray_runtime.directories import UntrustedDirectory, in_file_thread, private_dir, user_dir
from tests.support.users import STRANGER, is_root, may_stranger, place_for_all
from tests.support.waiting import wait_until

ROOT = "memory://host-directories"
LEVELS = ((), ("agents",), ("work",), ("rpc",))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory in which other users may create files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def somebody_elses(path: Path) -> None:
    path.mkdir(mode=0o777)
    if is_root():
        os.chown(path, STRANGER, STRANGER)
    else:  # these tests cannot make files of other users: a directory that others may write to stands for one
        path.chmod(0o777)


def open_to_others(path: Path) -> None:
    path.mkdir()
    path.chmod(0o720)


def a_link(path: Path) -> None:
    path.with_name("target").mkdir(mode=0o700)
    path.symlink_to(path.with_name("target"))


def a_file(path: Path) -> None:
    path.touch()


PLANTED = [somebody_elses, open_to_others, a_link, a_file]


def plant(what: Callable[[Path], None], names: tuple[str, ...]) -> Path:
    path = Path(tempfile.gettempdir(), f"fray-{os.geteuid()}", *names)
    if names:
        user_dir()
    what(path)
    return path


@pytest.mark.parametrize("names", LEVELS, ids=lambda names: "/".join(names) or "top")
@pytest.mark.parametrize("what", PLANTED)
def test_a_directory_that_is_not_ours_is_refused_at_every_level(
    what: Callable[[Path], None], names: tuple[str, ...]
) -> None:
    path = plant(what, names)
    with pytest.raises(UntrustedDirectory, match=f"{path} .*remove it, or set TMPDIR"):
        user_dir(*names)


@pytest.mark.parametrize("what", PLANTED)
def test_no_file_of_ours_is_in_a_directory_that_others_can_change(what: Callable[[Path], None]) -> None:
    """Locks, work directories of tasks, sockets."""
    plant(what, ())
    core = asyncio.run(open_core(ROOT))
    with pytest.raises(UntrustedDirectory):
        Agent(core, AgentOptions(capacity=Resources(cpu=1000, memory=2**30, disk=2**30)))
    with pytest.raises(UntrustedDirectory):
        socket_dir(None)


def test_a_planted_folder_of_locks_makes_no_agent_dead() -> None:
    folder = agent_lock.lock_folder(ROOT)
    somebody_elses(folder)
    (folder / "alive-1.lock").touch()
    with pytest.raises(UntrustedDirectory, match=str(folder)):
        agent_lock.acquire_lock(ROOT, "new-1")


def test_a_planted_folder_of_sockets_is_refused(tmp_path: Path) -> None:
    somebody_elses(tmp_path / "rpc")
    with pytest.raises(UntrustedDirectory):
        socket_dir(str(tmp_path))


def test_what_is_shared_by_the_host_goes_elsewhere_if_another_user_has_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(directories, "HOST_TEMPORARY", tmp_path)
    somebody_elses(tmp_path / f"fray-{os.geteuid()}")
    assert directories.host_dir("ports") == user_dir("ports")
    assert "is used instead" in caplog.text
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(UntrustedDirectory):
        directories.host_dir("ports")


def test_a_planted_work_directory_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "scratch"
    shared.mkdir(mode=0o777)
    lock = agent_lock.acquire_lock(ROOT, "agent-1")
    somebody_elses(shared / "agent-1")
    with pytest.raises(UntrustedDirectory, match="scratch/agent-1"):
        lock.work_dir(shared)
    lock.release()


def test_a_directory_that_cannot_be_made_is_named() -> None:
    with pytest.raises(UntrustedDirectory, match=r"/proc/fray cannot be created .*set TMPDIR"):
        private_dir(Path("/proc/fray"))


def test_directories_that_we_make_are_for_us_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        lock = agent_lock.acquire_lock(ROOT, "agent-1")
        made = [user_dir(*names) for names in LEVELS] + [lock.path.parent, lock.work_dir(None), lock.work_dir(tmp_path)]
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}
    assert lock.path.stat().st_mode & 0o777 == 0o600
    lock.release()


def test_a_directory_that_others_could_only_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "fray"
    path.mkdir(mode=0o755)
    assert private_dir(path) == path
    assert path.stat().st_mode & 0o777 == 0o700


def test_another_user_cannot_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    with place_for_all() as place:
        assert may_stranger(place, os.X_OK)
        assert not may_stranger(private_dir(place / "fray"), os.X_OK)


# --- the host lock


def test_a_new_lock_that_another_agent_holds_for_a_moment_does_not_stop_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another agent starts between the open and the lock of this agent's file."""
    real = fcntl.flock
    theirs: list[int | None] = []

    def flock(fd: int, how: int) -> None:
        if not theirs:
            theirs.append(None)
            theirs[:] = [directories.try_lock(path) for path in agent_lock.lock_folder(ROOT).glob("*.lock")]
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = agent_lock.acquire_lock(ROOT, "new-1")
    assert theirs, "they came by"
    assert directories.try_lock(lock.path) is None, "nobody can take it for the lock of a dead agent"
    lock.release()
    for fd in theirs:
        assert fd is not None, "they did lock what there was"
        os.close(fd)


def test_a_file_that_was_removed_while_it_was_locked_is_no_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = agent_lock.acquire_lock(ROOT, "leaving-1")
    real = fcntl.flock

    def flock(fd: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        lock.release()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert directories.try_lock(lock.path) is None


# --- files of dead agents


def left_by(agent: str, work_dir: Path | None) -> Path:
    """The files of an agent that was killed: a lock that nobody holds, and directories of tasks, one of them odd."""
    lock = agent_lock.acquire_lock(ROOT, agent)
    directory = lock.work_dir(work_dir)
    (directory / "job~1/work").mkdir(parents=True)
    (directory / "job~1" / "work" / "data").write_bytes(b"x" * 1000)
    (directory / "job~1/work").chmod(0o500)
    os.close(lock.fd)
    return directory


async def starts(agent: str) -> AgentLock:
    core: Core = await open_core(ROOT)
    lock = agent_lock.acquire_lock(ROOT, agent)
    await reap_predecessors(core, lock)
    return lock


@pytest.mark.parametrize("given", [False, True])
def test_the_work_directories_of_dead_agents_are_removed_and_no_others(tmp_path: Path, given: bool) -> None:
    work_dir = tmp_path / "work" if given else None
    (tmp_path / "work").mkdir()
    (tmp_path / "work/somebody's").mkdir()
    alive = agent_lock.acquire_lock(ROOT, "alive-1")
    kept = alive.work_dir(work_dir)
    (kept / "job~1").mkdir()
    removed = [left_by(name, work_dir) for name in ("dead-1", "dead-2")]
    new = asyncio.run(starts("new-1"))
    assert [path.exists() for path in removed] == [False, False]
    assert (kept / "job~1").exists()
    assert (tmp_path / "work/somebody's").exists()
    assert sorted(path.stem for path in new.path.parent.iterdir()) == ["alive-1", "new-1"]
    for lock in (alive, new):
        lock.release()


async def test_an_agent_does_not_wait_for_a_process_that_no_signal_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dead agent keeps its lock file and its directories. The next agent that starts here looks again."""

    async def never(directory: Path, cgroup: TaskCgroup) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(predecessors, "end_leftovers", never)
    monkeypatch.setattr(predecessors, "LEFTOVERS_TIMEOUT", 0.01)
    left = left_by("dead-1", None)
    lock = await starts("new-1")
    assert os.listdir(left) == ["job~1"]
    assert sorted(path.stem for path in lock.path.parent.iterdir()) == ["dead-1", "new-1"]
    lock.release()


def test_processes_left_by_a_dead_agents_tasks_end_before_its_jobs_may_begin_again() -> None:
    """Agent and runner were killed together, and the task had left the session."""
    left = left_by("dead-1", None)
    environment = {**os.environ, "FRAY_TASK_DIR": str(left / "job~1")}
    with (
        subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True) as orphan,
        subprocess.Popen(["sleep", "600"]) as other,
    ):
        wait_until(Path(f"/proc/{orphan.pid}/environ").read_bytes)  # it is empty for a moment while the program begins
        lock = asyncio.run(starts("new-1"))
        assert orphan.wait() == -signal.SIGKILL
        assert other.poll() is None
        other.kill()
    lock.release()


async def test_an_agent_that_was_killed_here_is_dead_though_its_record_was_overwritten() -> None:
    """Its free lock shows that no process of it is left."""
    left_by("dead-1", None)

    user = await open_core(ROOT)
    await user.store.put(AgentKeys.key("dead-1"), b"garbage", ANY)
    (await starts("new-1")).release()
    found = await user.records.read(AgentKeys.key("dead-1"), AgentRecord)
    assert found is not None
    assert found.record.state == "dead"


async def test_an_agent_that_was_killed_here_is_dead_though_its_state_is_unknown() -> None:
    """If the lock shows that the process has ended, the state in its record means nothing."""
    left_by("dead-1", None)
    user = await open_core(ROOT)
    record = AgentRecord(id="dead-1", host="h", pool="default", state="asleep")
    await user.records.put(AgentKeys.key("dead-1"), record, ABSENT)
    (await starts("new-1")).release()
    found = await user.records.read(AgentKeys.key("dead-1"), AgentRecord)
    assert found is not None
    assert found.record.state == "dead"


def test_folders_without_end_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = left_by("dead-1", None)
    monkeypatch.chdir(directory)
    for _ in range(1200):
        os.mkdir("deeper")
        os.chdir("deeper")
    monkeypatch.chdir(tmp_path)
    try:
        asyncio.run(starts("new-1")).release()
        assert not directory.exists()
    finally:  # so deep a directory would stop later runs of pytest when they remove the folders of earlier ones
        subprocess.run(["rm", "-rf", directory], check=True)


def test_a_lock_file_names_only_its_own_agents_directory(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    lock = agent_lock.acquire_lock(ROOT, "dead-1")
    os.write(lock.fd, os.fsencode(precious))
    os.close(lock.fd)
    asyncio.run(starts("new-1")).release()
    assert precious.exists()


async def test_an_agent_that_leaves_or_is_fenced_takes_its_directory_along(tmp_path: Path) -> None:
    core = await open_core(ROOT)
    options = AgentOptions(capacity=Resources(cpu=1000, memory=2**30, disk=2**30), work_dir=tmp_path / "work")
    agent = Agent(core, options)
    (tmp_path / "work" / agent.id / "job~1").mkdir(parents=True)
    agent.terminate()
    await agent.run()
    assert list((tmp_path / "work").iterdir()) == []


def test_a_directory_that_cannot_be_removed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = left_by("dead-1", None)
    monkeypatch.setattr(directories.shutil, "rmtree", lambda *_, **__: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "sh").write_text("#!/bin/sh\necho busy >&2\n")
    (tmp_path / "sh").chmod(0o700)
    asyncio.run(starts("new-1")).release()
    assert f"{directory} cannot be removed: busy" in caplog.text


async def test_long_work_with_files_keeps_no_request_waiting() -> None:
    may_end = threading.Event()
    copies = [asyncio.create_task(in_file_thread(may_end.wait)) for _ in range(100)]
    try:
        assert await asyncio.to_thread(lambda: "looked up") == "looked up"
    finally:
        may_end.set()
    assert all(await asyncio.gather(*copies))
