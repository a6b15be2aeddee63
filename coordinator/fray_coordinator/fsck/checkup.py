"""The check and the repair.

A live cluster changes while a picture of it is taken, so whatever looks odd is looked at again: a trouble is what two
pictures, one after the other, show of the same versions of the records in question, after the time that the protocol
gives to others for putting it right.
"""

from __future__ import annotations

from collections.abc import Iterator

from fray_coordinator import burial
from fray_coordinator.admission import Admission
from fray_coordinator.core import Core, each_sound, told
from fray_coordinator.fsck import agents, data, inbox, index, jobs, objects, queues
from fray_coordinator.fsck.picture import Picture, take_picture
from fray_coordinator.fsck.trouble import Suspicion, Trouble
from fray_coordinator.repair import Repair
from fray_coordinator.watch import Watch

LOOKS = (
    objects.odd_objects,
    objects.left_alone_by_the_pass,
    jobs.unentered,
    jobs.unadmitted,
    jobs.uncallable,
    jobs.unheld,
    jobs.running,
    jobs.families,
    jobs.results,
    agents.agents,
    agents.silent,
    agents.unknown,
    inbox.drops,
    index.entries,
    index.children,
    data.work,
    data.logs,
    data.blobs,
    data.endpoints,
    queues.remains,
    queues.unmade,
    queues.leases,
    queues.set_aside,
    queues.large_items,
    queues.idle_pools,
)


async def check(core: Core) -> list[Trouble]:
    """What does not fit together now."""
    return [suspicion.trouble for suspicion in await _confirmed(core)]


async def repair(core: Core) -> None:
    """Bury the dead, repair indexes, families and the inbox, and remove data without a record.

    It does not declare anybody dead: that takes longer than one look.
    """
    watch = Watch(core)
    await watch.look({})
    await each_sound(watch.unburied(), lambda dead: burial.bury(core, dead), {}, lambda dead: dead.key)
    await Repair(core, Admission(core)).run(watch.live())
    mends = [(found.trouble.key, found.mend) for found in await _confirmed(core) if found.mend is not None]
    await each_sound(mends, lambda one: one[1](core), {}, lambda one: one[0], at_once=1)


async def _confirmed(core: Core) -> list[Suspicion]:
    first = await take_picture(core)
    before = {(suspicion.trouble, suspicion.versions) for suspicion in _suspicions(first)}
    if not before:
        return []
    again = await take_picture(core, first)
    return [suspicion for suspicion in _suspicions(again) if (suspicion.trouble, suspicion.versions) in before]


def _suspicions(seen: Picture) -> Iterator[Suspicion]:
    for look in LOOKS:
        try:
            yield from look(seen)
        except Exception as error:  # of an object that nobody thought of: the other looks are worth having
            what = f"one of the checks ({look.__name__}) could not be made to its end: {told(error)}"
            yield Suspicion(
                Trouble("/", what, "this is a fault of Fray: please report it with what `fray doctor` says")
            )
