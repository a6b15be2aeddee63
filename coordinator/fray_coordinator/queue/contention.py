"""What a consumer knows of the others of its queue: who they are, and whether they leave it anything to do."""

from __future__ import annotations

from collections.abc import Sequence

from fray_coordinator.protocol import queue_scan as look
from fray_coordinator.queue.open_queue import OpenQueue

COMPETITOR_MEMORY = 60.0
"""Seconds for which somebody who won a claim counts as one of them."""


class Contention:
    """The other consumers, learnt from the claims that they won.

    Attributes:
        rest: seconds until, on a bucket, another look is worth its requests.
    """

    def __init__(self, queue: OpenQueue) -> None:
        self.rest = look.MIN_REST
        self._me = queue.holder
        self._clock = queue.core.clock
        self._seen: dict[str, float] = {}
        self._spread = 1.0
        self._works = False
        self._looked_at = 0.0

    def pick(self, free: Sequence[str], picked: int) -> int:
        """Which of the free segments to try. picked: how many of the same listing were before, by this consumer."""
        others = self._others()
        return look.pick_segment(free, self._me, others, max(int(self._spread), (len(others) + 1) * (picked + 1)))

    def won(self) -> None:
        """Every claim that was tried."""
        self._spread = look.narrowed(self._spread)

    def lost(self, holders: Sequence[str]) -> None:
        """Claims, to these; "" is nobody."""
        self._seen.update(dict.fromkeys(filter(None, holders), self._clock.boottime()))
        self._spread = look.widened(self._spread, len(self._others()))

    def takes(self, free: int) -> bool:
        """Whether the others will have taken so many free segments soon."""
        return look.is_scarce(free, len(self._others()))

    def was_faster(self) -> None:
        """A look was in vain because of the others."""
        self.rest = look.lengthened(self.rest)

    def left_some(self) -> None:
        """A look was not in vain; until the next one there is work."""
        self._works = True

    def begin_look(self) -> None:
        now = self._clock.boottime()
        if self._works:
            self.rest = look.shortened(self.rest, now - self._looked_at)
        self._works, self._looked_at = False, now

    def _others(self) -> set[str]:
        now = self._clock.boottime()
        self._seen = {holder: at for holder, at in self._seen.items() if now < at + COMPETITOR_MEMORY}
        return self._seen.keys() - {self._me}
