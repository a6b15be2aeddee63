"""Invariants of agents, checked on every write of an agent's record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fray_coordinator.protocol.heartbeat import DEATH_INTERVALS, TRUST_INTERVALS
from fray_layouts import codec
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord
from tests.simulation.clocks import EPOCH
from tests.simulation.invariants import (
    DRIFT,
    Broken,
    a_deleted_name_is_never_born_again,
    every_body_succeeds_the_one_before,
    reachable,
    told_agent,
    unknown_fields_survive,
)

if TYPE_CHECKING:
    from tests.simulation.watching import Change, Watching


def only_the_agent_raises_its_beat(w: Watching, c: Change) -> None:
    if c.before is None or c.after is None:
        return
    raised = c.after.beat - c.before.beat
    if raised != 0 and not (raised == 1 and w.world.is_process_of(c.sender, c.name)):
        message = f"{c.name}: {c.sender} changed its beat from {c.before.beat} to {c.after.beat}"
        raise Broken("only the agent raises its beat", message, c.name)


def the_dead_stay_dead(w: Watching, c: Change) -> None:
    if c.before is None or c.after is None or c.before.state == "live":
        return
    if c.after.state != c.before.state or c.after.holdings.keys() != c.before.holdings.keys():
        raise Broken("the dead stay dead", f"{c.name}: {told_agent(c.before)} became {told_agent(c.after)}", c.name)


def no_outage_kills_an_agent(w: Watching, c: Change) -> None:
    """Silence counts only while the storage could be read; only the agent's own host knows of a death sooner.

    An observer cannot tell an outage of writes from an agent's silence, so it waits two intervals for a beat
    afterwards.
    """
    if c.before is None or c.after is None or c.before.state != "live" or c.after.state != "dead":
        return
    world, (landed, interval) = w.world, w.landed[c.name]
    if world.is_gone(c.name) and world.same_host(c.sender, c.name):
        return
    silent = world.loop.now - landed
    read = silent - world.time_down_since(landed, 2 * interval, "all")
    written = silent - world.time_down_since(landed, 2 * interval, "all", "writes")
    left = (DEATH_INTERVALS - TRUST_INTERVALS) * interval * DRIFT
    enough = DEATH_INTERVALS * interval * DRIFT
    if written < enough and (read < enough or world.loop.now - world.writable_since < left):
        message = f"{c.name} was declared dead after {silent:.1f} s of silence, {written:.1f} s of it without an outage"
        raise Broken("no outage kills an agent", message, c.name)


def trust_is_dated_from_before_the_send(w: Watching, c: Change) -> None:
    """Trust ends three intervals after a beat landed, by the promise of that beat and by the promise of this one.

    A beat may have landed in another cluster if the create of the record, on its way twice, had landed there before.
    """
    if c.before is None or c.after is None or c.after.beat == c.before.beat:
        return
    landed, interval = w.landed[c.name]
    before = landed + TRUST_INTERVALS * interval / DRIFT
    if (elsewhere := w.world.storage.written_elsewhere(AgentKeys.key(c.name))) is not None:
        promised = codec.decode(elsewhere.data, AgentRecord).record.interval
        before = max(before, elsewhere.updated - EPOCH + TRUST_INTERVALS * promised / DRIFT)
    until = min(before, w.world.loop.now + TRUST_INTERVALS * c.after.interval / DRIFT)
    trusted = w.world.trusted_until(c.name)
    if trusted is not None and trusted > until:
        message = f"{c.name} trusts itself until {trusted:.3f}, and its beats allow {until:.3f}"
        raise Broken("trust is dated from before the send", message, c.name)


def what_a_record_lists_no_more_is_reachable(w: Watching, c: Change) -> None:
    if c.before is None:
        return
    reaped = c.after is None or (c.after.reaped and not c.before.reaped)
    still = {} if reaped else c.after.holdings
    for job in c.before.holdings:
        if job not in still:
            reachable(w, job, f"{c.name} lists it no more" if not reaped else f"{c.name} is marked as reaped")


OF_AGENTS = [
    a_deleted_name_is_never_born_again,
    only_the_agent_raises_its_beat,
    the_dead_stay_dead,
    no_outage_kills_an_agent,
    trust_is_dated_from_before_the_send,
    what_a_record_lists_no_more_is_reachable,
    unknown_fields_survive,
    every_body_succeeds_the_one_before,
]
