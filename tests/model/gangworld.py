"""A small world for one gang of two replicas on three agents: its start, its end, and the faults in between.

The real functions of `protocol/placements` make every decision. This module adds the rest: the order of reads and
writes, crashes, freezes, an agent that is told to leave, a replica that fails, and replicas that fail because another
is gone. Agent A has the faults; replicas of A and B may fail; C exists so that some agent continues. A member's write
has two steps, so that others come between: it reads the record; then it lists the exits and writes, on condition that
the record is unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from fray_coordinator.protocol.placements.gang_end import (
    end_of_gang,
    gang_left,
    gang_without,
    is_own_failure,
    runs_gang,
)
from fray_coordinator.protocol.placements.owners import owner_of_job
from fray_coordinator.protocol.placements.rounds import lingering, missing_votes, started
from fray_coordinator.protocol.placements.votes import (
    MemberAction,
    Vote,
    Voter,
    member_action,
    phase_of_owner,
    withdrawn,
)
from fray_coordinator.protocol.stopping import request_stop
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_layouts.records import AttemptExit, JobRecord, Placement
from fray_layouts.states import ExitKind, HoldingPhase
from tests.model.explorer import Found, Step, explore
from tests.model.gangstate import (
    AFTER_STOP,
    AGENTS,
    MISCOUNTED,
    NEED,
    NOW,
    SETTINGS,
    STOPPED_EARLY,
    THROWN_AWAY,
    TOO_GOOD,
    TWICE,
    Agent,
    Gang,
    Rules,
    Stored,
    World,
    beat,
    essence,
    exits_at,
    of_agents,
    record_of,
)


class GangWorld:
    """The steps of the world under `rules`."""

    def __init__(self, rules: Rules, hangs: bool = False) -> None:
        self.rules, self.hangs = rules, hangs
        self._end = cache(self._decide_end)
        self._without = cache(self._decide_without)
        self._member_action = cache(self._decide_member_action)

    def good(self, w: World) -> bool:
        return is_terminal(record_of(w.gang)) and all(
            a.mode == "gone" or (a.phase == "" and not a.proc) for a in w.agents
        )

    def broken(self, w: World) -> str:
        return MISCOUNTED if w.gang.failures > w.fails else ""

    # --- decisions -------------------------------------------------------------------------------------------------

    def _decide_end(self, gang: Gang, attempt: int, agent: int, stored: Stored) -> Gang | None:
        seen = gang if self.rules.heeds_stop else gang._replace(stop=False)
        exits = of_agents(gang, exits_at(stored, attempt))
        if not self.rules.stop_waits and seen.stop and gang.attempt == attempt and agent in gang.members:
            return gang._replace(status="stopped")
        wanted = end_of_gang(record_of(seen), attempt, str(agent), exits, NOW, SETTINGS)
        if wanted is None:
            return None
        if not self.rules.last_commits and wanted.status == Status.SUCCEEDED and gang.members[0] != agent:
            return None
        return essence(wanted)._replace(stop=gang.stop or wanted.stop is not None)

    def _decide_without(self, gang: Gang, agent: int, stored: Stored) -> Gang | None:
        seen = gang if self.rules.heeds_stop else gang._replace(stop=False)
        exits = of_agents(gang, exits_at(stored, gang.attempt)) if self.rules.burial_looks else {}
        wanted = gang_without(record_of(seen), gang.attempt, str(agent), exits, NOW, SETTINGS)
        return essence(wanted)._replace(stop=gang.stop or wanted.stop is not None) if wanted is not None else None

    def _decide_member_action(
        self, gang: Gang, number: int, phase: str, attempt: int, round_: int, leaving: bool
    ) -> MemberAction:
        record = record_of(gang)
        vote = None
        if phase:
            at = HoldingPhase.RESERVED if phase == "voted" else HoldingPhase.RUNNING
            vote = Vote(attempt, round_, self._bundles(gang, number, attempt), at)
        voter = Voter(str(number), leaving=leaving)
        return member_action(voter, owner_of_job(record), phase_of_owner(record), vote, stopped=gang.stop)

    @staticmethod
    def _bundles(gang: Gang, number: int, attempt: int) -> tuple[int, ...]:
        same = gang.attempt == attempt and number in gang.members
        return (gang.members.index(number),) if same else (9,)

    # --- steps -----------------------------------------------------------------------------------------------------

    def steps(self, w: World) -> Iterator[Step[World]]:
        yield from self._pass(w)
        for number in range(AGENTS):
            yield from self._agent(w, number)
        yield from self._faults(w)

    def _write(self, label: str, w: World, wanted: Gang, agents: tuple[Agent, ...] | None = None) -> Step[World]:
        """One applied write of the record, and the invariant that it breaks."""
        kinds = {n: k for a, n, k in w.exits if a == w.gang.attempt}
        complete = len(kinds) == NEED and all(kind == "success" for kind in kinds.values())
        after = w._replace(gang=wanted, agents=agents or w.agents)
        moved_on = wanted.status == "gathering" and wanted.attempt > w.gang.attempt
        if (moved_on or wanted.status == "failed") and complete:
            return Step(label, after, breaks=THROWN_AWAY)
        if moved_on and w.gang.stop:
            return Step(label, after, breaks=AFTER_STOP)
        if wanted.status == "succeeded" and not complete:
            return Step(label, after, breaks=TOO_GOOD)
        live = all(w.agents[n].state == "live" for n in w.gang.members)
        runs = any(a.proc == w.gang.attempt and a.mode == "up" for a in w.agents)
        if wanted.status == "stopped" and w.gang.status == "running" and live and runs:
            return Step(label, after, breaks=STOPPED_EARLY)
        return Step(label, after)

    def _pass(self, w: World) -> Iterator[Step[World]]:
        gang = w.gang
        if gang.status == "gathering":
            free = [n for n, a in enumerate(w.agents) if a.state == "live" and a.mode != "gone" and not a.leaving]
            if (not gang.members or any(n not in free for n in gang.members)) and len(free) >= NEED:
                rest = sorted(free, key=lambda n: (w.agents[n].listed[0] not in (0, gang.attempt), n))
                members = tuple(rest[:NEED])
                yield self._write(
                    f"the pass assigns {members}", w, gang._replace(round=gang.round + 1, members=members)
                )
            yield from self._start(w)
        if gang.status == "running":
            for number in gang.members:
                if w.agents[number].state != "live":
                    wanted = self._without(gang, number, w.exits)
                    if wanted is not None:
                        yield self._write(f"the burial of {number} writes {wanted.status}", w, wanted)

    def _start(self, w: World) -> Iterator[Step[World]]:
        record = record_of(w.gang)
        owner = owner_of_job(record)
        beats = {str(n): beat(n, agent) for n, agent in enumerate(w.agents)}
        if not w.gang.members or missing_votes(owner, beats, ()):
            return
        if self.rules.old_listed and lingering(owner, beats):
            return
        running = started(record, beats, NOW)
        assert isinstance(running, JobRecord)
        yield self._write(f"the pass starts attempt {w.gang.attempt}", w, essence(running))

    def _agent(self, w: World, number: int) -> Iterator[Step[World]]:
        a, name = w.agents[number], "ABC"[number]

        def put(label: str, fault: bool = False, w: World = w, **fields: object) -> Step[World]:
            agents = (*w.agents[:number], a._replace(**fields), *w.agents[number + 1 :])  # type: ignore[arg-type]
            return Step(f"{name} {label}", w._replace(agents=agents), fault)

        if a.state == "live" and a.mode != "up" and (not a.proc or not self.rules.no_grace):
            yield put("is declared dead", state="dead")
        if a.mode == "frozen":
            if a.proc:
                broken = w._replace(broke=a.proc)
                yield put("'s deadline passes", w=broken, phase="ended", kind=str(ExitKind.PREEMPTED), proc=0)
            yield put("wakes", mode="up")
        if a.mode != "up":
            return
        zombie = a.state != "live"
        if zombie:
            yield put("sees that it is dead", mode="gone", phase="", proc=0)
        else:
            lists = (a.attempt, a.round) if a.phase else (0, 0)
            if lists != a.listed:
                yield put(f"beats and lists {lists}", listed=lists)
            if not a.phase and a.proc:
                yield put("'s killed process is gone", proc=0)
            if a.leaving and not a.phase and not a.proc:
                yield put("leaves", mode="gone", state="left", listed=(0, 0))
        yield from self._of_phase(w, number, a, zombie, put)

    def _of_phase(self, w: World, number: int, a: Agent, zombie: bool, put: object) -> Iterator[Step[World]]:
        assert callable(put)
        what = self._member_action(
            w.gang, number, a.phase if a.phase in ("", "voted", "running") else "running", a.attempt, a.round, a.leaving
        )
        idle = {"phase": "", "attempt": 0, "round": 0, "replica": 0, "kind": "", "snap": None, "exits": ()}
        if a.phase == "" and what is MemberAction.TAKE and not zombie and not (a.proc and self.rules.same_host):
            replica = w.gang.members.index(number)
            yield put("reserves", phase="voted", attempt=w.gang.attempt, round=w.gang.round, replica=replica)
        elif a.phase == "voted":
            yield from self._voted(w, number, a, what, zombie, put, idle)
        elif a.phase == "running":
            yield from self._running(w, number, a, what, zombie, put)
        elif a.phase == "killed":
            yield put("'s killed process is gone", phase="ended", proc=0)
            if not self.rules.same_host:
                yield put("is free for others", **idle)
        elif a.phase == "ended":
            known = any(e[:2] == (a.attempt, a.replica) for e in w.exits)
            exits = w.exits if known else tuple(sorted((*w.exits, (a.attempt, a.replica, a.kind))))
            yield put(f"stores its exit: {a.kind}", w=w._replace(exits=exits), phase="stored")
            if not self.rules.exit_first:
                yield put("drops the gang", **idle)
        elif a.phase in ("stored", "read"):
            yield from self._commit(w, number, a, put, idle)

    def _voted(
        self, w: World, number: int, a: Agent, what: MemberAction, zombie: bool, put: object, idle: dict[str, object]
    ) -> Iterator[Step[World]]:
        assert callable(put)
        if what is MemberAction.START and not (zombie and self.rules.trust):
            attempts = {other.proc for n, other in enumerate(w.agents) if n != number} - {0, a.attempt}
            step = put(f"starts attempt {a.attempt}", phase="running", proc=a.attempt)
            yield Step(step.label, step.state, breaks=TWICE if attempts or a.proc else "")
        elif what is MemberAction.WITHDRAW and not zombie:
            placement = withdrawn(record_of(w.gang).placement or Placement())
            step = put("takes its vote back", **idle)
            gang = w.gang._replace(round=placement.round, members=())
            yield self._write(step.label, w, gang, step.state.agents)
        elif what in (MemberAction.RELEASE, MemberAction.TAKE) and not zombie:
            yield put("releases its vote", **idle)

    def _running(
        self, w: World, number: int, a: Agent, what: MemberAction, zombie: bool, put: object
    ) -> Iterator[Step[World]]:
        assert callable(put)
        over = what is MemberAction.ABANDON
        if not (self.hangs and (over or w.broke == a.attempt)):
            yield put("'s replica is done", phase="ended", kind="success", proc=0)
            if w.broke == a.attempt:  # its connections are broken
                yield put("'s replica fails by another's end", phase="ended", kind="exited", proc=0)
        if number in (0, 1) and "fail" in w.faults:
            failed = w._replace(faults=_less(w, "fail"), fails=w.fails + 1, broke=a.attempt)
            yield put("'s replica fails", True, failed, phase="ended", kind="exited", proc=0)
        if (over or what is MemberAction.STOP) and self.rules.watch:
            kind = str(ExitKind.LOST if over else ExitKind.STOPPED)
            yield put("reads that it is over", w=w._replace(broke=a.attempt), phase="killed", kind=kind)
        if a.leaving and not zombie:
            yield from self._leave(w, number, a, put)

    def _leave(self, w: World, number: int, a: Agent, put: object) -> Iterator[Step[World]]:
        assert callable(put)
        step = put("signals its replica", w=w._replace(broke=a.attempt), phase="killed", kind="preempted")
        exits = of_agents(w.gang, exits_at(w.exits, a.attempt))
        wanted = gang_left(record_of(w.gang), a.attempt, str(number), exits, NOW, SETTINGS)
        if wanted is not None:
            yield self._write("ABC"[number] + " leaves its gang", step.state._replace(gang=w.gang), essence(wanted))
        else:
            yield step

    def _commit(self, w: World, number: int, a: Agent, put: object, idle: dict[str, object]) -> Iterator[Step[World]]:
        assert callable(put)
        if a.phase == "stored":
            own = is_own_failure(AttemptExit(kind=a.kind)) and self.rules.peers
            silent = self._silent(w, number, a) if own else []
            for peer in silent:
                wanted = self._without(w.gang, peer, w.exits)
                if w.agents[peer].mode == "gone" and wanted is not None:
                    yield self._write(f"{'ABC'[number]} writes {'ABC'[peer]} off", w, wanted)
            if all(self._goes_on(w.agents[peer], a.attempt) for peer in silent):
                before = () if self.rules.record_first else w.exits
                if self.rules.record_first:
                    yield put("reads the record", phase="read", snap=w.gang)
                else:
                    yield put("lists the exits", phase="read", exits=before, snap=None)
            return
        seen = a.snap if a.snap is not None else w.gang
        listed = w.exits if self.rules.record_first else a.exits
        attempt = a.attempt if self.rules.fence or seen.attempt == a.attempt or a.kind == "success" else seen.attempt
        as_agent = number
        wanted = self._end(seen, attempt, as_agent, listed)
        if not self.rules.fence and a.kind == "exited" and seen.attempt > a.attempt and seen.status == "running":
            wanted = seen._replace(status="gathering", attempt=seen.attempt + 1, members=(), failures=seen.failures + 1)
        if wanted is None:
            yield put("leaves the end to others", **idle)
        elif seen == w.gang:
            step = put(f"writes {wanted.status}", **idle)
            yield self._write(step.label, w, wanted, step.state.agents)
        else:
            yield put("'s write is refused", phase="stored", snap=None, exits=())

    @staticmethod
    def _goes_on(peer: Agent, attempt: int) -> bool:
        """Whether a live agent has a replica that has not ended; the exit of an ended one is waited for."""
        at_work = peer.proc == attempt or (peer.phase == "voted" and peer.attempt == attempt)
        return peer.mode == "up" and peer.state == "live" and at_work

    def _silent(self, w: World, number: int, a: Agent) -> list[int]:
        """The other members that have left no exit, if the attempt still runs."""
        if not runs_gang(record_of(w.gang), a.attempt, str(number)):
            return []
        left = {replica for attempt, replica, _ in w.exits if attempt == a.attempt}
        return [n for replica, n in enumerate(w.gang.members) if n != number and replica not in left]

    def _faults(self, w: World) -> Iterator[Step[World]]:
        a = w.agents[0]

        def fault(what: str, gang: Gang = w.gang, broke: int = w.broke, **fields: object) -> Step[World]:
            agents = (a._replace(**fields), *w.agents[1:])  # type: ignore[arg-type]
            return Step(what, World(gang, agents, w.exits, broke, w.fails, _less(w, what)), fault=True)

        if "crash" in w.faults and a.mode == "up":
            yield fault("crash", broke=a.proc or w.broke, mode="gone", phase="", proc=0)
        if "freeze" in w.faults and a.mode == "up":
            yield fault("freeze", mode="frozen")
        if "leave" in w.faults and a.mode == "up" and not a.leaving:
            yield fault("leave", leaving=True)
        if "stop" in w.faults and (wanted := request_stop(record_of(w.gang), NOW, "enough")) is not None:
            yield fault("stop", gang=essence(wanted))


def _less(w: World, what: str) -> tuple[str, ...]:
    """The faults that are left after one."""
    faults = list(w.faults)
    faults.remove(what)
    return tuple(faults)


def explored(rules: Rules, *faults: str, until: str = "", hangs: bool = False, limit: int = 400_000) -> Found:
    """Explore the world with these faults, each as often as it is named."""
    world = GangWorld(rules, hangs)
    return explore(World(faults=tuple(sorted(faults))), world.steps, world.good, world.broken, limit, until)
