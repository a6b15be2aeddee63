"""The faults of a simulated cluster during the storm: of its hosts, its storage, and the senders of requests."""

from __future__ import annotations

from typing import Literal

from tests.simulation.host import Host
from tests.simulation.loop import Participant
from tests.simulation.network import Refusal
from tests.simulation.scenario import Scenario
from tests.simulation.stage import Stage

EVERY_VERB = ("get", "put", "delete", "list")
REFUSALS = (
    "400 RequestTimeout",
    "400 ExpiredToken",
    "400 bad request",
    "401",
    "403 RequestTimeTooSkewed",
    "403 quota",
    "403 forbidden",
    "405",
    "501",
)
AREAS = ("jobs", "agents", "pending", "children", "work", "coordinator", "inbox")


class Storm(Stage):
    """A world with hosts and a scenario.

    Attributes:
        _outages: begin and end of outages for everybody, and of outages of writes only.
    """

    scenario: Scenario
    hosts: list[Host]
    _outages: list[tuple[float, float, Literal["all", "writes"]]]

    def time_down_since(self, since: float, shortest: float, *kinds: Literal["all", "writes"]) -> float:
        """Seconds of outages of these kinds that are longer than `shortest`, from `since` until now."""
        down, until = 0.0, since
        for begin, end, kind in self._outages:
            over = min(end, self.loop.now)
            if kind in kinds and over - begin > shortest and over > until:
                down += over - max(begin, until)
                until = over
        return down

    @property
    def writable_since(self) -> float:
        """When the last outage ended."""
        return max((end for _, end, _ in self._outages if end <= self.loop.now), default=0.0)

    def _some_host(self) -> Host:
        return self.draw.choice(self.hosts)

    def _how_long(self) -> float:
        drawn = self.draw.choice([self.draw.uniform(0.1, 5), self.draw.uniform(20, 36), self.draw.uniform(36, 200)])
        return min(drawn, self.scenario.longest_freeze)

    def _sigterm_most(self) -> None:
        for host in self.hosts:
            if self.draw.random() < 0.8:
                host.preempt() if self.draw.random() < 0.5 else host.terminate()
                if self.draw.random() < 0.2:
                    self._in(self.draw.uniform(0.1, 3), host.terminate)

    def _outage(self) -> None:
        if self.loop.now > self.storage.down_until:
            until = self.loop.now + self.scenario.outage_length * self.draw.uniform(0.3, 1)
            self.note("storage", "is down", f"until {until:.1f}")
            self.storage.down_until = until
            self._outages.append((self.loop.now, until, "all"))

    def _write_outage(self) -> None:
        """Start a full disk or a throttled prefix. An outage of agents' records alone looks like their death."""
        area = self.draw.choice(["", "", *AREAS])
        if not self.storage.is_writable(area):
            return
        until = self.loop.now + self.scenario.outage_length * self.draw.uniform(0.3, 1)
        self.note("storage", "takes no writes", f"to {area or 'anything'} until {until:.1f}")
        self.storage.unwritable[area] = until
        if not area:
            self._outages.append((self.loop.now, until, "writes"))

    def _refuse(self) -> None:
        """Start a burst of refusals, as from wrong rights, quota, token or clock, or from a filter in between."""
        verbs = self.draw.choice(
            [EVERY_VERB, EVERY_VERB, ("put",), ("put", "delete"), ("get",), ("list",), ("delete",)]
        )
        area = self.draw.choice(["", "", *AREAS])
        whom = self.draw.choice([None, *(host.process for host in self.hosts)])
        length = self.draw.choice([1.0, 10.0, self.scenario.outage_length * self.draw.uniform(0.3, 1)])
        until = self.loop.now + length
        why = self.draw.choice(REFUSALS)
        self.note(
            "storage", "refuses", f"{why}: {','.join(verbs)} {area or 'anything'} of {whom or 'all'} until {until:.1f}"
        )
        self.storage.refusals.append(Refusal(verbs, area, whom, why, until))
        if not area and whom is None and verbs != ("delete",):  # then agents beat, and observers see it
            self._outages.append((self.loop.now, until, "all" if {"get", "list"} & set(verbs) else "writes"))

    def _meet(self, owner: Participant, kind: str) -> None:
        """Crash or freeze a sender at a write."""
        if not self.stormy or owner.mode != "up":
            return
        host = next((h for h in self.hosts if h.process is owner), None)
        if kind == "crash":
            self.note(owner.name, "crashes", "at a write")
            self.loop.crash(owner)
        elif host is not None:
            host.freeze(self._how_long())
        else:
            how_long = self._how_long()
            self.note(owner.name, "freezes", f"for {how_long:.1f} s")
            self.loop.freeze(owner)
            self._in(how_long, self.loop.wake, owner)
