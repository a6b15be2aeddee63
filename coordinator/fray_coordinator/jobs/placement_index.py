"""The index of the owners of placements that have not ended, and its bell.

It is a hint, like the pending index: a submitter enters the owner before the owner's record exists, and a repair enters
owners that are missing. Its keys have no attempt: an owner stays in the index until it has ended.
"""

from fray_coordinator.core import Core
from fray_coordinator.jobs import doorbell
from fray_coordinator.protocol.placements.owners import entry_of_owner
from fray_coordinator.protocol.placements.rounds import OwnerRecord, owner_of
from fray_coordinator.store.interface import ABSENT, ANY
from fray_layouts.index_keys import PlacementKey
from fray_layouts.records import PlacementEntry


async def enter(core: Core, record: OwnerRecord, again: bool = False) -> None:
    """Create the entry of an owner; `again` writes it as a new version even if it exists."""
    owner = owner_of(record)
    await core.records.put(entry_of_owner(owner).key(), PlacementEntry(owner=owner.id), ANY if again else ABSENT)


async def leave(core: Core, record: OwnerRecord) -> None:
    """Delete the entry of an owner that has ended."""
    await core.store.delete(entry_of_owner(owner_of(record)).key())


async def ring_bell(core: Core) -> None:
    """Tell the reconciler to read the index: an owner was submitted, has ended, or gathers its members anew."""
    await doorbell.ring_bell(core, PlacementKey.bell)
