"""A user of the root who copies: older versions of objects come back, and those of another cluster come in.

What is not a job must heal by itself, whatever its age. A job whose record was put back may run again, since its record
says that it has not run yet; it must end, and no other job may notice.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG

from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core, open_core
from fray_coordinator.errors import BadRecord, StoreUnavailable
from fray_coordinator.jobs.submission import submit
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.interface import ANY, MAX_RECORD_BYTES, AttemptFailed
from fray_coordinator.store.opening import open_backend
from fray_layouts import codec
from fray_layouts.errors import InvalidInput, Malformed
from fray_layouts.index_keys import ChildKey, PendingKey, PlacementKey
from fray_layouts.object_keys import CLUSTER_KEY, AgentKeys, CoordinatorKeys, JobKeys
from fray_layouts.records import JobRecord, ReconcilerRecord
from fray_layouts.spec_parsing import parse_spec
from tests.chaos.effects import Window
from tests.chaos.refusals import accepted
from tests.support.scripted_agents import ScriptedAgent

HEALING = (AgentKeys.area, PendingKey.area, ChildKey.area, PlacementKey.area, CoordinatorKeys.area)
"""Areas whose objects follow from the jobs and from the agents that live."""
STRANGE = ("strange-waits", "strange-runs", "strange-ends")
STRANGE_AGENT = "strange-agent"
REFUSED = (["ps"], ["agents"], ["run", "--", "true"], ["stop", "work1"], ["fsck"], ["agent", "--json"])
"""Commands on a copy of the root; none of them may do anything."""


@dataclass(slots=True)
class Copier:
    """Copies something, again and again: every kind of copy once, then at random.

    Args:
        folder: the root itself, if it is a folder on this machine.
        scratch: an empty folder for copies of it.

    Attributes:
        struck: count of each kind of copy.
        touched: jobs whose records may have been put back.
        windows: times in which the root held another cluster's `cluster.json`.
        faults: promises that were seen broken.
    """

    core: Core
    folder: Path | None
    scratch: Path
    rng: random.Random
    struck: Counter[str] = field(default_factory=Counter)
    touched: set[str] = field(default_factory=set)
    windows: list[Window] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    async def act(self, seconds: float) -> None:
        """Copy for `seconds`."""
        deck, ends = list(self.kinds().items()), time.monotonic() + seconds
        self.rng.shuffle(deck)
        pause = seconds / (2 * len(deck))
        while True:
            await asyncio.sleep(pause * self.rng.uniform(0.5, 1.0))
            if time.monotonic() > ends:
                return
            name, copy = deck.pop() if deck else self.rng.choice(list(self.kinds().items()))
            try:
                await copy()
                self.struck[name] += 1
            except (StoreUnavailable, OSError, IndexError):  # the disk is full now, or nothing is there yet
                deck.insert(0, (name, copy))

    def kinds(self) -> dict[str, Callable[[], Awaitable[None]]]:
        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "an older object put back": self._put_one_back,
            "older objects put back": self._put_an_area_back,
            "older jobs put back": self._put_jobs_back,
            "another cluster's objects": self._bring_strangers,
            "another cluster.json": self._replace_the_cluster,
        }
        local = {"the root copied": self._copy_root, "an older root copied back": self._copy_root_back}
        return kinds | (local if self.folder is not None else {})

    async def clean_up(self) -> None:
        """Take the other cluster's agents away, as `fray fsck` asks for if the poisoner has spoiled one's record.

        Their jobs have ended.
        """
        for row in await self.core.store.list(f"{AgentKeys.area}{STRANGE_AGENT}"):
            await self.core.store.delete(row.key)

    def is_ours(self, job: JobRecord) -> bool:
        """Whether the job is not one of another cluster."""
        return job.spec.name not in STRANGE

    def spared(self, job: JobRecord) -> bool:
        """Whether nobody has put back the record of the job or of its parent."""
        return job.id not in self.touched and not (job.parent is not None and job.parent.job in self.touched)

    async def _put_one_back(self) -> None:
        rows = [row.key for area in HEALING for row in await self.core.store.list(area)]
        await self._put_back_later([self.rng.choice(rows)])

    async def _put_an_area_back(self) -> None:
        rows = await self.core.store.list(self.rng.choice(HEALING))
        await self._put_back_later([row.key for row in rows])

    async def _put_jobs_back(self) -> None:
        """Put back the records of jobs of a few kinds, which are all that begin with some letter."""
        rows = [row.key for row in await self.core.store.list(JobKeys.area)]
        letter = self.rng.choice(rows)[: len(JobKeys.area) + 1]
        await self._put_back_later([key for key in rows if key.startswith(letter)])

    async def _put_back_later(self, keys: list[str]) -> None:
        """Read the objects, and write what was read a few heartbeats later, whether or not they are still there."""
        old = await self._read(keys)
        await asyncio.sleep(self._beats(1, 5))
        self._touch(old)
        await self._write(old)

    async def _bring_strangers(self) -> None:
        """Copy the objects of another cluster here: one job waits, one runs on an agent of its own, one has ended."""
        theirs = await _other_cluster(self.rng)
        keys = [row.key for row in await theirs.store.list("") if row.key != CLUSTER_KEY]
        copied = {key: found.data for key in keys if (found := await theirs.store.get(key)) is not None}
        await theirs.store.close()
        await self._write(copied)

    async def _replace_the_cluster(self) -> None:
        """Put another cluster's `cluster.json` in the place of ours for some heartbeats."""
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        ours = await self._read([CLUSTER_KEY])
        theirs = await _other_cluster(self.rng)
        other = await theirs.store.get(CLUSTER_KEY)
        await theirs.store.close()
        assert other is not None
        await self._persist({CLUSTER_KEY: other.data})
        await asyncio.sleep(self._beats(2, 6))
        await self._persist(ours)
        self.windows.append(Window(began, time.clock_gettime(time.CLOCK_BOOTTIME) + 12.0))

    async def _copy_root(self) -> None:
        """`cp -a` of the root while it is in use: no command may use the copy."""
        copy = await self._copied()
        before = await asyncio.to_thread(_contents, copy)
        tried = await asyncio.gather(*(accepted(command, str(copy), "it is a copy of that") for command in REFUSED))
        self.faults += [f"on a copy of the root: {told}" for told in tried if told]
        if await asyncio.to_thread(_contents, copy) != before:
            self.faults.append("a command changed the copy of the root")
        await asyncio.to_thread(shutil.rmtree, copy)

    async def _copy_root_back(self) -> None:
        """`cp -a` of the root, and back over it a few heartbeats later."""
        assert self.folder is not None
        copy = await self._copied()
        await asyncio.sleep(self._beats(1, 2))
        self._touch(await asyncio.to_thread(_job_files, copy))
        await _cp(f"{copy}/.", self.folder)
        await asyncio.to_thread(shutil.rmtree, copy)

    async def _copied(self) -> Path:
        assert self.folder is not None
        self.scratch.mkdir(exist_ok=True)
        copy = Path(tempfile.mkdtemp(dir=self.scratch))
        await _cp(f"{self.folder}/.", copy)
        return copy

    def _touch(self, old: Mapping[str, bytes]) -> None:
        """Note the jobs that had not ended when they were read; others do not change any more."""
        for key, data in old.items():
            with suppress(Malformed):  # a stranger's
                if (job := JobKeys.parse(key)) is not None and not is_terminal(codec.decode(data, JobRecord).record):
                    self.touched.add(job)

    async def _read(self, keys: list[str]) -> dict[str, bytes]:
        async def read(key: str) -> tuple[str, bytes] | None:
            with suppress(BadRecord, InvalidInput):  # a stranger's
                if (found := await self.core.store.get(key)) is not None:
                    return key, found.data
            return None

        return dict(pair for pair in await map_concurrently(keys, read) if pair is not None)

    async def _write(self, objects: Mapping[str, bytes]) -> None:
        """Write them as a copying program does: without conditions, whatever cluster is there; in place on local files.

        Raises StoreUnavailable.
        """
        if self.folder is not None:
            await asyncio.to_thread(_write_files, self.folder, objects)
            return
        backend = open_backend(self.core.root, self.core.clock)
        try:
            await map_concurrently(objects, lambda key: backend.put(key, objects[key], ANY))
        except AttemptFailed as error:
            raise StoreUnavailable(str(error)) from error
        finally:
            await backend.close()

    async def _persist(self, objects: Mapping[str, bytes]) -> None:
        while True:
            try:
                return await self._write(objects)
            except (StoreUnavailable, OSError):  # OSError: the disk is full now
                await asyncio.sleep(0.5)

    def _beats(self, least: float, most: float) -> float:
        return self.rng.uniform(least, most) * self.core.settings.beat_interval


async def _other_cluster(rng: random.Random) -> Core:
    """A cluster in memory in which one job waits, one runs on an agent, and one has ended."""
    core = await open_core(f"memory://strange{rng.randrange(10**9)}")
    agent = ScriptedAgent(core, f"{STRANGE_AGENT}{rng.randrange(10**9)}")
    await agent.beat()
    for name in reversed(STRANGE):
        await submit(core, [parse_spec({"name": name, "entrypoint": {"command": ["true"]}})])
        if name != "strange-waits":
            held = await agent.claim()
        if name == "strange-ends":
            await agent.end(held)
    await core.records.write(CoordinatorKeys.reconciler, ReconcilerRecord, ReconcilerRecord(holder=agent.id), None)
    return core


async def _cp(source: str, target: Path) -> None:
    """Copy what can be copied: files vanish meanwhile, and the disk may be full."""
    process = await asyncio.create_subprocess_exec("cp", "-a", source, str(target), stderr=asyncio.subprocess.DEVNULL)
    await process.wait()


def _contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of everything that a copy of a root holds, apart from locks."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
        if not path.is_dir() and path.relative_to(folder).parts[0] != ".fray"
    }


def _job_files(root: Path) -> dict[str, bytes]:
    """The records of jobs by key, without what strangers left: pipes, and files that seem to have 200 GB."""
    paths = (root / JobKeys.area).glob("*.json")
    regular = [path for path in paths if S_ISREG(path.lstat().st_mode) and path.lstat().st_size < MAX_RECORD_BYTES]
    return {f"{JobKeys.area}{path.name}": path.read_bytes() for path in regular}


def _write_files(folder: Path, objects: Mapping[str, bytes]) -> None:
    for key, data in objects.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
