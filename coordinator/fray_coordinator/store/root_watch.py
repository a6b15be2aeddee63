"""Whether an open root still holds the cluster that was opened, and keeps conditions: if not, no request is answered.

`protocol.cluster_identity` has the rules. What notices that something is odd calls `suspect`. The next request then
reads `cluster.json` first, which costs nothing else while all is well.
"""

from contextlib import suppress
from dataclasses import dataclass, field

from fray_coordinator.clock import Clock
from fray_coordinator.protocol.cluster_identity import CONFIRMED_SECONDS, why_lost
from fray_coordinator.store.interface import (
    ANY,
    AttemptFailed,
    BadObject,
    NotApplied,
    NotModified,
    Object,
    PreconditionFailed,
    StoreBackend,
    Version,
)
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.object_keys import CLUSTER_KEY, DoctorKeys
from fray_layouts.records import ClusterSettings

IGNORED = (
    "the storage applied a write on a version that the object does not have, so two agents may run one job: stop all "
    "agents, and see `fray doctor`; nothing is written until the storage rejects such a write again"
)


@dataclass(slots=True)
class RootWatch:
    """One participant's knowledge of the root.

    Attributes:
        known: the settings with which it opened the root. version: of `cluster.json` as last read.
        root: for messages.
        own: key of this process's record, whose id is used once, as soon as it was seen in the confirmed root. A write
            on a version of it is applied in no other cluster; "": it has none.
        lost: why the root must not be used now; "" as far as is known it may be.
    """

    clock: Clock
    root: str
    known: ClusterSettings
    version: Version
    own: str = ""
    lost: str = ""
    _confirmed_at: float = field(init=False)
    _suspected: bool = False
    _ignored: Version = ""  # on which a write was applied that the storage should have rejected

    def __post_init__(self) -> None:
        self._confirmed_at = self.clock.boottime()

    def confirmed(self, sent: float) -> None:
        """Only this cluster holds what a request read or wrote that was sent then."""
        if not (self.lost or self._suspected):
            self._confirmed_at = max(sent, self._confirmed_at)

    def suspect(self) -> None:
        """Something is not as this cluster would have it: the next request confirms the root first."""
        self._suspected = True

    def must_confirm(self, writes: bool, key: str = "") -> bool:
        """Whether the next request, which writes or reads the object at `key`, must confirm the root first."""
        writes = writes and not (self.own and key == self.own)
        is_old = self.clock.boottime() - self._confirmed_at >= CONFIRMED_SECONDS
        return bool(self.lost) or self._suspected or (writes and is_old)

    async def check_conditions(self, storage: StoreBackend, never: Version) -> None:
        """Send a write that must be rejected. Raises NotApplied: it was applied, and nothing is safe there any more.

        never: a version of another object.
        """
        try:
            await storage.put(DoctorKeys.conditions, b"", never)
        except PreconditionFailed:
            self._ignored = ""
            return
        self.lost, self._ignored = IGNORED, never
        with suppress(AttemptFailed):
            await storage.delete(DoctorKeys.conditions, ANY)
        raise NotApplied(self.lost)

    async def confirm(self, storage: StoreBackend) -> None:
        """Read `cluster.json`. Raises NotApplied: another cluster is there, or none, or conditions are ignored.

        A process may be frozen before it sees the answer: it counts from the request.
        """
        sent = self.clock.boottime()
        if self._ignored:
            await self.check_conditions(storage, self._ignored)
        with suppress(BadObject, Malformed):  # one odd object shows no other cluster; `fray doctor` names it
            found = await storage.get_if_changed(CLUSTER_KEY, self.version)
            self.lost = "" if isinstance(found, NotModified) else self._judged(found)
        if self.lost:
            raise NotApplied(self.lost)
        self._suspected, self._confirmed_at = False, sent

    def _judged(self, found: Object | None) -> str:
        if found is None:
            return why_lost(self.known, None, self.root)
        if not (lost := why_lost(self.known, codec.decode(found.data, ClusterSettings).record, self.root)):
            self.version = found.version
        return lost
