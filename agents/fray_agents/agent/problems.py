"""The loops of an agent, and its problems: shown in its record while they last, logged at most once an hour.

A loop of an agent that has joined never ends with a failure: refusals and outages pass, and one malformed object
affects only itself. The store keeps track of its own failures; the loops record all others here.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fray_coordinator.clock import Clock
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError
from fray_layouts.escaping import escaped

log = logging.getLogger("fray")

REPEAT_INTERVAL = 3600.0
"""Seconds until the same warning is logged again: often enough to be in today's log, too rare to flood it."""


@dataclass(slots=True)
class LogThrottle:
    """The warnings of one agent, each at most once an hour."""

    clock: Clock
    _logged_at: dict[str, float] = field(default_factory=dict)

    def warn(self, text: str, *args: object) -> None:
        """Log the warning, unless the same words were logged within the hour."""
        words = text % args
        if self.is_due(words):
            log.warning("%s", escaped(words))

    def is_due(self, subject: str) -> bool:
        """Whether nothing was logged about the subject within the hour; marks it as logged now."""
        now = self.clock.boottime()
        self._logged_at = {logged: at for logged, at in self._logged_at.items() if now - at < REPEAT_INTERVAL}
        if subject in self._logged_at:
            return False
        self._logged_at[subject] = now
        return True


MAX_LENGTH = 1000
"""Most characters of an agent's record that describe its problems: a few sentences, in an object that is read often."""


@dataclass(slots=True)
class AgentProblems:
    """One agent's problems.

    Attributes:
        disk: the disk of the tasks' directories is full; "" if it is not.
        unkilled: processes of its tasks that SIGKILL does not end; "" if all end.
        gpus: the GPUs that it does not offer now; "" if it offers all.
        environments: the pool's environments that it builds now or could not build; "" if all are built.
        chips: why the TPU chips of its host cannot be used now; "" if they can.
        starts: why it must take no more work after tasks that could not be started; "" if it may.
        told: what the problems are about that the agent's record names.
        warnings: its log of problems that last.
    """

    core: Core
    disk: str = ""
    unkilled: str = ""
    gpus: str = ""
    environments: str = ""
    chips: str = ""
    starts: str = ""
    told: frozenset[str] = frozenset()
    warnings: LogThrottle = field(init=False)
    _failures: dict[str, str] = field(default_factory=dict)
    _had_problems: bool = False

    def __post_init__(self) -> None:
        self.warnings = LogThrottle(self.core.clock)

    @contextmanager
    def tolerated(self, action: str) -> Iterator[None]:
        """Run one iteration of a loop: a failure is recorded until a later one succeeds, and does not propagate.

        action: what the loop does, as in "cannot <action>".
        """
        try:
            yield
        except StoreError:
            self._failures.pop(action, None)  # the store itself records it
        except BadRecord as error:
            self._failures[action] = f"cannot {action}: {error}"
        except Exception as error:
            self._failures[action] = f"cannot {action}: {type(error).__name__}: {error}"
            if self.warnings.is_due(action):
                context = {"message": f"a loop goes on after a failure: cannot {action}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        else:
            self._failures.pop(action, None)

    def now(self) -> dict[str, str]:
        """All that is wrong now, as text for people, by what it is about. New problems are logged."""
        own = {
            "starts": self.starts,
            "chips": self.chips,
            "disk": self.disk,
            "unkilled": self.unkilled,
            "gpus": self.gpus,
            "environments": self.environments,
        }
        problems = {name: text for name, text in own.items() if text} | self._failures | self.core.store.failing.now()
        for subject, text in problems.items():
            if self.warnings.is_due(subject):
                log.warning("%s", escaped(text))
        if self._had_problems != (has_problems := bool(problems)):
            self._had_problems = has_problems
            if not has_problems:
                log.info("nothing is wrong any more")
        return problems

    @staticmethod
    def summary(problems: Mapping[str, str]) -> str:
        """The problems as one text for the agent's record; "" if there are none."""
        return "; ".join(problems.values())[:MAX_LENGTH]


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait at most `seconds` until the event is set; whether it is."""
    try:
        async with asyncio.timeout(seconds):  # wait_for may swallow a cancellation that comes with the event
            return await event.wait()
    except TimeoutError:
        return False


async def run_until_first_ends(*loops: Coroutine[Any, Any, None]) -> None:
    """Run the loops together; when the first ends, cancel the others and raise its error, if any."""
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        for task in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
