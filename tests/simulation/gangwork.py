"""The requests and the work of simulated gangs: by the first part of their name, and by chance."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fray_agents.tasks.task_handle import TaskSpec
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.interface import ROWS_PER_REQUEST
from fray_layouts.records import AttemptExit
from fray_layouts.spec import JobSpec
from tests.simulation.scenario import Plan, between
from tests.simulation.tasks import HostTask
from tests.simulation.work import Script, script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.host import Host
    from tests.simulation.world import World

SLICE_HOSTS = {"v4-16": 2, "v4-32": 4}
"""Types of slices that are simulated, with their hosts of four chips each."""

CHIPS = 4
WAITING_PARENTS = 0.7
"""Share of the parents that wait for their children."""

TIGHT = 0.5
"""Share of the gangs whose replicas fail as soon as one of them is killed, as collective operations do."""

LONGEST = 90.0
"""Virtual seconds that a job takes at most, unless it never ends."""

KINDS = {"gang": 8, "torn": 3, "hung": 1, "endless": 1}
"""How often users submit each kind: all replicas end well; one fails and the others wait for it until they are killed;
one ends well and the others hang until the timeout; nobody ends."""


@dataclass(frozen=True, slots=True)
class Fleet(Plan):
    """Hosts of a world of gangs, and what is special about gangs there.

    Attributes:
        slices: types of the slices that the first hosts are.
        zones: so many, in turn.
        older: share of the agents that know nothing of gangs until the calm.
        lose_slice_every: seconds between two ends of a whole slice, on average.
        hold_chip_every: seconds between two times when a stranger's process takes a chip, on average.
        pool_page: most entries of a private pool that one listing returns.
    """

    slices: tuple[str, ...]
    zones: int
    older: float
    lose_slice_every: float
    hold_chip_every: float
    pool_page: int

    @staticmethod
    def drawn(draw: random.Random) -> Fleet:
        return Fleet(
            slices=draw.choice([(), (), ("v4-16",), ("v4-16", "v4-16"), ("v4-32",)]),
            zones=draw.choice([1, 1, 2]),
            older=draw.choice([0.0, 0.0, 0.3]),
            lose_slice_every=between(draw, 100, 1000),
            hold_chip_every=between(draw, 60, 600),
            pool_page=draw.choice([1, 1, 2, ROWS_PER_REQUEST]),
        )

    @property
    def slice_hosts(self) -> int:
        """This many hosts are parts of slices."""
        return sum(SLICE_HOSTS[kind] for kind in self.slices)


class GangTask(HostTask):
    """One replica's task."""

    def script_of(self, seed: str, env: dict[str, str]) -> Script:
        self.tight = random.Random(f"tight {seed} {self.run.job}").random() < TIGHT
        return replica_script(seed, env["FRAY_JOB_NAME"], self.run.job, self.run.attempt, self.run.replica, env)

    def lose_a_peer(self) -> None:
        """Another replica of its attempt was killed, so its common computation fails."""
        if self.run.end is None and self.tight:
            self._end(AttemptExit(kind=self._cause or "exited", code=1), "a peer was lost")

    def _end(self, end: AttemptExit, how: str = "") -> None:
        killed = self.run.end is None and how not in ("success", "failure", "timeout")
        super()._end(end, how)
        if killed:
            self._at(0.01, self._host.world.peer_lost, self.run)  # type: ignore[attr-defined]


def replica_script(seed: str, name: str, job: str, attempt: int, replica: int, env: dict[str, str]) -> Script:
    """The script of one replica of this attempt: all replicas work together."""
    kind, replicas = name.partition("-")[0], int(env["FRAY_REPLICAS"])
    own = script(seed, name, job, attempt)
    draw = random.Random(f"gang {seed} {job} {attempt}")
    seconds, culprit = draw.choice([draw.uniform(1, 20), draw.uniform(20, LONGEST)]), draw.randrange(replicas)
    tears = kind == "torn" and draw.random() < 0.5
    alone = random.Random(f"replica {seed} {job} {attempt} {replica}")
    if kind == "endless":
        return own
    if tears and replica != culprit:
        return replace(own, seconds=1e9)
    if kind == "hung" and replica != culprit and draw.random() < 0.5:
        return replace(own, seconds=1e9)
    return replace(own, seconds=seconds + alone.uniform(0, 1), fails=tears and replica == culprit)


class ParentTask(HostTask):
    """A single job's task. Most parents wait for their children."""

    def script_of(self, seed: str, env: dict[str, str]) -> Script:
        waits = random.Random(f"waits {seed} {self.run.job}").random() < WAITING_PARENTS
        return replace(super().script_of(seed, env), waits=waits)

    def _end_by_itself(self) -> None:
        if self.run.end is None and not self._cause and self._waits_for_children():
            self._at(1.0, self._end_by_itself)
        else:
            super()._end_by_itself()

    def _waits_for_children(self) -> bool:
        jobs = self._host.world.watching.jobs.values() if self.script.waits else ()
        children = (job for job in jobs if job.parent is not None and job.parent.job == self.run.job)
        mine = (job for job in children if job.parent is not None and job.parent.attempt == self.run.attempt)
        return any(job.spec.name != "endless" and not is_terminal(job) for job in mine)


def task_of(host: Host, spec: TaskSpec, deadline: float) -> HostTask:
    """A task that starts on a host: a gang's or a single's."""
    kind = GangTask if int(spec.env.get("FRAY_REPLICAS", "1")) > 1 else ParentTask
    return kind(host, spec, deadline)


def drawn_gang(draw: random.Random, fleet: Fleet) -> dict[str, Any]:
    """The spec of a gang as a user writes it."""
    kind = draw.choices(list(KINDS), list(KINDS.values()))[0]
    spec: dict[str, Any] = {
        "name": kind,
        "entrypoint": {"command": ["simulated"]},
        "grace": draw.choice([0.0, 2.0, 10.0]),
    }
    if fleet.slices and draw.random() < 0.5:
        spec |= _slices(draw, draw.choice(fleet.slices))
    else:
        spec["replicas"] = draw.choice([2, 2, 2, 3, 4, 4, 6, 8, 16])
        spec["resources"] = {"cpu": draw.choice([0.25, 0.5, 1.0, 1.0, 2.0])}
        spec["spread"] = draw.random() < 0.15
        spec["same"] = "zone" if draw.random() < 0.15 else ""
    if kind in ("torn", "hung"):
        spec["max_retries_failure"] = draw.randint(0, 3)
    if kind == "hung" or draw.random() < 0.3:
        spec["timeout"] = draw.uniform(LONGEST, 1.5 * LONGEST)
    if draw.random() < 0.2:
        spec["priority"] = draw.randint(-5, 5)
    if draw.random() < 0.05:
        spec["pending_timeout"] = draw.uniform(20, 300)
    return spec


def _slices(draw: random.Random, kind: str) -> dict[str, Any]:
    slices = draw.choice([1, 1, 2])
    return {
        "slices": slices,
        "replicas": slices * SLICE_HOSTS[kind],
        "resources": {"cpu": 1.0, "device": {"kind": "tpu", "variant": kind, "count": CHIPS}},
    }


def fits(world: World, spec: JobSpec, hosts: Sequence[Host]) -> bool:
    """Whether so many idle hosts have room for the gang."""
    if spec.slices:
        whole = _whole_slices(hosts, spec.resources.device.variant if spec.resources.device else "")
        return whole >= spec.slices
    each = [max(0, int(host.capacity.cpu // max(1, round(spec.resources.cpu * 1000)))) for host in hosts]
    if spec.spread:
        each = [min(room, 1) for room in each]
    if not spec.same:
        return sum(each) >= spec.replicas
    zones = {host.place.zone for host in hosts}
    return any(
        sum(room for host, room in zip(hosts, each, strict=True) if host.place.zone == zone) >= spec.replicas
        for zone in zones
    )


def _whole_slices(hosts: Sequence[Host], kind: str) -> int:
    found: dict[str, int] = {}
    for host in hosts:
        if host.slice is not None and host.slice.type == kind:
            found[host.slice.id] = found.get(host.slice.id, 0) + 1
    return sum(count == SLICE_HOSTS[kind] for count in found.values())
