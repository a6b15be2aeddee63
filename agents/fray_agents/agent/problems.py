"""The problems of an agent: shown in its record while they last, and logged at most once an hour.

A loop of an agent that has joined never ends with a failure: refusals and outages pass, and one malformed object
affects only itself. The store keeps track of its own failures; the loops record all others here.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from fray_agents.agent.log_throttle import LogThrottle
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError
from fray_layouts.escaping import escaped

log = logging.getLogger("fray")

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
