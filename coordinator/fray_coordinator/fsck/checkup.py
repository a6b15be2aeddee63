"""The check and the repair.

A live cluster changes while a picture of it is taken, so whatever looks odd is looked at again: a trouble is what two
pictures, one after the other, show of the same versions of the records in question, after the time that the protocol
gives to others for putting it right.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import islice

from fray_coordinator import burial
from fray_coordinator.admission import Admission
from fray_coordinator.core import Core, each_sound, told
from fray_coordinator.fsck import agents, data, inbox, index, jobs, objects, queues
from fray_coordinator.fsck.picture import Picture, take_picture
from fray_coordinator.fsck.trouble import Suspicion, Trouble
from fray_coordinator.repair import Repair
from fray_coordinator.watch import Watch
from fray_layouts.inbox_names import Inbox
from fray_layouts.names import Agents, Blobs, Endpoint, Jobs, Names

MOST_TOLD = 1000
"""So many troubles are told one by one; the rest is counted."""

INBOX, WORK, PENDING, CHILDREN, PASS = Inbox.prefix, "work/", "pending/", "children/", "coordinator/"
QUEUES, TASKS = "queues/", "tasks/"

LOOKS: tuple[tuple[Callable[[Picture], Iterator[Suspicion]], tuple[str, ...]], ...] = (
    (objects.odd_objects, ()),
    (objects.left_alone_by_the_pass, (PASS, Agents.prefix)),
    (jobs.unentered, (PENDING, Jobs.prefix)),
    (jobs.unadmitted, (Jobs.prefix,)),
    (jobs.uncallable, (Blobs.prefix, Jobs.prefix)),
    (jobs.unheld, (Jobs.prefix,)),
    (jobs.running, (PENDING, Agents.prefix, Jobs.prefix)),
    (jobs.families, (Jobs.prefix,)),
    (jobs.results, (WORK, Jobs.prefix)),
    (agents.agents, (Agents.prefix, Jobs.prefix)),
    (agents.silent, (PASS, Agents.prefix)),
    (agents.unknown, (Agents.prefix,)),
    (inbox.drops, (INBOX, PASS, Agents.prefix)),
    (index.entries, (PENDING, Agents.prefix, Jobs.prefix)),
    (index.children, (CHILDREN, Jobs.prefix)),
    (data.work, (WORK, Jobs.prefix)),
    (data.logs, (WORK, Jobs.prefix)),
    (data.blobs, (Blobs.prefix, Jobs.prefix)),
    (data.endpoints, (Endpoint.prefix, Jobs.prefix)),
    (queues.remains, (Names.prefix, QUEUES, TASKS)),
    (queues.unmade, (Names.prefix, QUEUES, TASKS)),
    (queues.leases, (Names.prefix, QUEUES)),
    (queues.set_aside, (Names.prefix, QUEUES)),
    (queues.large_items, (Names.prefix, QUEUES)),
    (queues.idle_pools, (Names.prefix, QUEUES, TASKS, Jobs.prefix)),
)
"""Each look, and the areas without which it would see what is not so."""


async def check(core: Core) -> list[Trouble]:
    """What does not fit together now; if it is very much, the last one says how much more there is."""
    found = await _confirmed(core)
    told_of = [suspicion.trouble for suspicion in islice(found, MOST_TOLD)]
    if untold := sum(1 for _ in found):
        told_of.append(Trouble("/", f"there are {untold} more troubles", "deal with these first, then look again"))
    return told_of


async def repair(core: Core) -> None:
    """Bury the dead, repair indexes, families and the inbox, and remove data without a record.

    It does not declare anybody dead: that takes longer than one look. What cannot be done keeps it from nothing else;
    `check` tells of it.
    """
    watch = Watch(core)
    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: watch.look({}),
        lambda: each_sound(watch.unburied(), lambda dead: burial.bury(core, dead), {}, lambda dead: dead.key),
        lambda: Repair(core, Admission(core)).run(watch.live()),
    ]
    await each_sound(steps, lambda step: step(), {}, at_once=1)
    mends = ((found.trouble.key, found.mend) for found in await _confirmed(core) if found.mend is not None)
    while batch := list(islice(mends, MOST_TOLD)):
        await each_sound(batch, lambda one: one[1](core), {}, lambda one: one[0], at_once=1)


async def _confirmed(core: Core) -> Iterator[Suspicion]:
    """What two pictures show. Of the first only hashes are kept: everything may be in trouble."""
    first = await take_picture(core)
    before = {hash((suspicion.trouble, suspicion.versions)) for suspicion in _suspicions(first)}
    again = await take_picture(core, first) if before else None
    return (s for s in _suspicions(again) if hash((s.trouble, s.versions)) in before) if again else iter(())


def _suspicions(seen: Picture) -> Iterator[Suspicion]:
    for look, needs in LOOKS:
        if any(area in seen.unlisted for area in needs):
            continue
        try:
            yield from look(seen)
        except Exception as error:  # of an object that nobody thought of: the other looks are worth having
            what = f"one of the checks ({look.__name__}) could not be made to its end: {told(error)}"
            yield Suspicion(
                Trouble("/", what, "this is a fault of Fray: please report it with what `fray doctor` says")
            )
