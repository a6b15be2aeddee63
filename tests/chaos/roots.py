"""The storage of a chaos run: each kind of root with its own faults."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from msgspec.structs import replace

from fray_coordinator.core import LOCAL_SETTINGS
from fray_layouts.records import ClusterSettings
from tests.chaos.disks import fill, may_mount, small_disk
from tests.chaos.refusals import accepted
from tests.support import servers
from tests.support.distortions import ClockOff, Distortion, NoContinuation, OneVersion, ShortPages, Shuffled
from tests.support.fault_proxy import FaultProxy, fault_proxy
from tests.support.faults import Fault, Plan
from tests.support.gcs_emulator import BUCKET

Trouble = Callable[[float], Awaitable[None]]
"""A function that applies a fault to the storage for some seconds."""


@dataclass(slots=True)
class Root:
    """Where the cluster is.

    Attributes:
        troubles: everything that may happen to the storage.
        harmless: the troubles in which heartbeats go on, so that they excuse nothing.
        faults: promises that a trouble saw broken.
        locks: the folder of the lock files, on local files.
        lacking: the faults that are impossible on this machine, and why.
    """

    url: str
    settings: ClusterSettings
    environment: dict[str, str] = field(default_factory=dict)
    troubles: dict[str, Trouble] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()
    faults: list[str] = field(default_factory=list)
    locks: Path | None = None
    lacking: list[str] = field(default_factory=list)


def hasty(settings: ClusterSettings, beat: float) -> ClusterSettings:
    """Settings for a run of minutes: death is declared after five times `beat`."""
    return replace(
        settings,
        beat_interval=beat,
        idle_beat_interval=beat,
        pass_interval=beat / 2,
        repair_interval=4 * beat,
        poll_interval=max(0.2, settings.poll_interval / 2),
        requeue_backoff=0.2,
        inbox_patience=1.0,
        host_killer_limit=10_000,  # here the faults kill hosts, not the jobs
    )


@contextmanager
def local(folder: Path, beat: float) -> Iterator[Root]:
    """A folder, on a small disk of its own if this user may mount one."""
    root = folder / "root"
    root.mkdir()
    with ExitStack() as stack:
        made = Root(str(root), hasty(LOCAL_SETTINGS, beat), locks=root / ".fray" / "locks")
        if may_mount():
            stack.enter_context(small_disk(root))
            made.troubles["full disk"] = lambda seconds: fill(root, seconds)
        else:
            made.lacking.append("full disk: this user may not mount a small one")
        yield made


@contextmanager
def s3(folder: Path, beat: float) -> Iterator[Root]:
    """SeaweedFS with its data in a folder, killed and started again."""
    with servers.restartable_seaweed(folder / "seaweed") as seaweed, fault_proxy(seaweed.url) as proxy:

        async def restart(seconds: float) -> None:
            seaweed.kill()
            await asyncio.sleep(seconds)
            await asyncio.to_thread(seaweed.start)

        with _bucket(seaweed.server, proxy, beat, {"server killed": restart}) as root:
            root.troubles["one version of all objects"] = _one_version(root, proxy)
            yield root


@contextmanager
def moto(folder: Path, beat: float) -> Iterator[Root]:
    """moto, which keeps everything in memory: frozen, and cut off."""
    with _own_process("tests.support.locked_moto") as (process, url), fault_proxy(url) as proxy:
        servers.request("PUT", f"{url}/bucket")
        server = servers.Server("s3://bucket", url, "AWS_ENDPOINT_URL", tuple(servers.AWS.items()))
        with _bucket(server, proxy, beat, {"server frozen": _freezer(process)}) as root:
            root.troubles["one version of all objects"] = _one_version(root, proxy)
            yield root


@contextmanager
def gcs(folder: Path, beat: float) -> Iterator[Root]:
    """The GCS emulator in a process of its own: frozen, and cut off."""
    with _own_process("tests.chaos.emulator") as (process, url), fault_proxy(url) as proxy:
        server = servers.Server(f"gs://{BUCKET}", url, "STORAGE_EMULATOR_HOST")
        with _bucket(server, proxy, beat, {"server frozen": _freezer(process)}) as root:
            yield root


KINDS = {"local": local, "s3": s3, "moto": moto, "gcs": gcs}

JUMP = 5 * 3600.0
"""Seconds by which the storage's clock jumps: more than ended jobs stay where they are, less than they are kept."""
DISTORTIONS: dict[str, Callable[[], Distortion]] = {
    "clock ahead": lambda: ClockOff(JUMP),
    "clock behind": lambda: ClockOff(-JUMP),
    "lists without order": lambda: Shuffled(random.Random(1)),
    "lists without end": NoContinuation,
    "lists in short pages": ShortPages,
}
"""Wrong answers in which heartbeats go on."""


@contextmanager
def _bucket(server: servers.Server, proxy: FaultProxy, beat: float, troubles: dict[str, Trouble]) -> Iterator[Root]:
    environment = {**server.environment, server.address: proxy.served.url}
    for name, plan in {"cut off": CutOff, "bad requests": lambda: Plan(rate=0.25, held_back=3)}.items():
        troubles[name] = _planned(proxy, plan)
    for name, distortion in DISTORTIONS.items():
        troubles[name] = _distorted(proxy, distortion)
    with mock.patch.dict(os.environ, environment):  # for this process too
        settings = hasty(ClusterSettings(), beat)
        yield Root(f"{server.root}/chaos", settings, environment, troubles, frozenset(DISTORTIONS))


class CutOff(Plan):
    """No request gets through."""

    def next(self, is_write: bool) -> Fault | None:
        return Fault.FAIL_BEFORE


def _planned(proxy: FaultProxy, make: Callable[[], Plan]) -> Trouble:
    async def act(seconds: float) -> None:
        proxy.plan = make()
        await asyncio.sleep(seconds)
        proxy.plan = Plan()
        await asyncio.to_thread(proxy.release)

    return act


def _distorted(proxy: FaultProxy, make: Callable[[], Distortion]) -> Trouble:
    async def act(seconds: float) -> None:
        proxy.distortion = make()
        try:
            await asyncio.sleep(seconds)
        finally:
            proxy.distortion = Distortion()

    return act


def _one_version(root: Root, proxy: FaultProxy) -> Trouble:
    """Every object has the same ETag; an agent that would join meanwhile must refuse."""

    async def act(seconds: float) -> None:
        proxy.distortion = OneVersion()
        try:
            told, _ = await asyncio.gather(
                accepted(["agent", "--json"], root.url, "the version that the storage had just given"),
                asyncio.sleep(seconds),
            )
        finally:
            proxy.distortion = Distortion()
        if told:
            root.faults.append(f"on a store with one version of all objects: {told}")

    return act


def _freezer(process: subprocess.Popen[str]) -> Trouble:
    async def act(seconds: float) -> None:
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            process.send_signal(signal.SIGCONT)

    return act


@contextmanager
def _own_process(module: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that prints its URL."""
    with subprocess.Popen([sys.executable, "-m", module], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
