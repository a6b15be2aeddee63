"""Contention among the consumers of a queue: which others there are, and whether they leave anything to do."""

from collections.abc import Sequence

from fray_coordinator.protocol import queue_scan as scan
from fray_coordinator.queue.open_queue import OpenQueue

COMPETITOR_MEMORY = 60.0
"""Seconds for which a consumer that won a claim counts as one of the others. A working consumer claims more often."""


class Contention:
    """What one consumer knows of the others, from the claims that they won.

    Attributes:
        rest: seconds until another scan of a bucket is worth its requests.
    """

    def __init__(self, queue: OpenQueue) -> None:
        self.rest = scan.MIN_REST
        self._me = queue.holder
        self._clock = queue.core.clock
        self._seen: dict[str, float] = {}
        self._spread = 1.0
        self._works = False
        self._scanned_at = 0.0

    def pick(self, free: Sequence[str], picked: int) -> int:
        """The index of the free segment to claim. picked: how many of the listing this consumer has picked already."""
        if not self._seen or not (others := self._others()):
            return 0
        return scan.pick_segment(free, self._me, others, max(int(self._spread), (len(others) + 1) * (picked + 1)))

    def own(self, free: Sequence[str]) -> Sequence[str]:
        """The free segments that fall to this consumer."""
        if not self._seen or not (others := self._others()):
            return free
        return scan.own_segments(free, self._me, others)

    def won_claims(self) -> None:
        """Note that this consumer won every claim that it tried."""
        self._spread = scan.narrowed(self._spread)

    def lost_claims(self, holders: Sequence[str]) -> None:
        """Note that these consumers won claims instead; "" stands for nobody."""
        self._seen.update(dict.fromkeys(filter(None, holders), self._clock.boottime()))
        self._spread = scan.widened(self._spread, len(self._others()))

    def others_take(self, free: int) -> bool:
        """Whether the other consumers will soon have taken that many free segments."""
        return scan.is_scarce(free, len(self._others()))

    def scanned_in_vain(self) -> None:
        """Note that a scan found nothing because of the other consumers."""
        self.rest = scan.lengthened(self.rest)

    def found_work(self) -> None:
        """Note that a scan found work, which lasts until the next scan."""
        self._works = True

    def begin_scan(self) -> None:
        """Note that a scan begins. If the last one found work, the time since then was work."""
        now = self._clock.boottime()
        if self._works:
            self.rest = scan.shortened(self.rest, now - self._scanned_at)
        self._works, self._scanned_at = False, now

    def _others(self) -> set[str]:
        now = self._clock.boottime()
        self._seen = {holder: at for holder, at in self._seen.items() if now < at + COMPETITOR_MEMORY}
        return self._seen.keys() - {self._me}
