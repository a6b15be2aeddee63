"""Whether an open root still holds the cluster that was opened: if not, every request counts as not answered.

`protocol.cluster_identity` has the rules. What notices that something is odd calls `suspect`. The next request then
reads `cluster.json` first, which costs nothing else while all is well.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from fray_coordinator.clock import Clock
from fray_coordinator.protocol.cluster_identity import CONFIRMED_SECONDS, why_lost
from fray_coordinator.store.interface import BadObject, NotApplied, NotModified, Object, Version
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.object_keys import CLUSTER_KEY
from fray_layouts.records import ClusterSettings

ReadIfChanged = Callable[[str, Version | None], Awaitable[Object | NotModified | None]]


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

    def __post_init__(self) -> None:
        self._confirmed_at = self.clock.boottime()

    def confirmed(self) -> None:
        """Only this cluster holds what was just read or written."""
        if not (self.lost or self._suspected):
            self._confirmed_at = self.clock.boottime()

    def suspect(self) -> None:
        """Something is not as this cluster would have it: the next request confirms the root first."""
        self._suspected = True

    def must_confirm(self, writes: bool, key: str = "") -> bool:
        """Whether the next request, which writes or reads the object at `key`, must confirm the root first."""
        writes = writes and not (self.own and key == self.own)
        is_old = self.clock.boottime() - self._confirmed_at >= CONFIRMED_SECONDS
        return bool(self.lost) or self._suspected or (writes and is_old)

    async def confirm(self, read: ReadIfChanged) -> None:
        """Read `cluster.json`. Raises NotApplied: another cluster is there, or none."""
        with suppress(BadObject, Malformed):  # one odd object shows no other cluster; `fray doctor` names it
            found = await read(CLUSTER_KEY, self.version)
            self.lost = "" if isinstance(found, NotModified) else self._judged(found)
        if self.lost:
            raise NotApplied(self.lost)
        self._suspected, self._confirmed_at = False, self.clock.boottime()

    def _judged(self, found: Object | None) -> str:
        if found is None:
            return why_lost(self.known, None, self.root)
        if not (lost := why_lost(self.known, codec.decode(found.data, ClusterSettings).record, self.root)):
            self.version = found.version
        return lost
