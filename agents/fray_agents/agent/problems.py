"""The problems of an agent: shown in its record while they last, and logged at most once an hour.

A loop of an agent that has joined never ends with a failure: refusals and outages pass, and one odd object concerns
itself only. The store keeps track of its own failures; all others are noted here by the loop that met them.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fray_agents.agent.log_throttle import LogThrottle
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError
from fray_layouts.escaping import escaped

log = logging.getLogger("fray")

MAX_LENGTH = 1000
"""Characters of an agent's record that describe its problems: a few sentences, in an object that is read often."""


@dataclass(slots=True)
class AgentProblems:
    """One agent's problems.

    Attributes:
        disk: the one of the tasks' directories is full; "" if it is not.
        unkilled: processes of its tasks that SIGKILL does not end; "" if all end.
        gpus: which of its GPUs it does not offer now; "" if it offers all.
        environments: which of its pool's environments it builds now, or could not build; "" if all is well.
        chips: why the TPU chips of its host cannot be used now; "" if they can.
        starts: why it must take no more work after tasks that could not be started; "" if it may.
        warnings: its log of what stays wrong.
    """

    core: Core
    disk: str = ""
    unkilled: str = ""
    gpus: str = ""
    environments: str = ""
    chips: str = ""
    starts: str = ""
    warnings: LogThrottle = field(init=False)
    _failures: dict[str, str] = field(default_factory=dict)
    _has_told: bool = False

    def __post_init__(self) -> None:
        self.warnings = LogThrottle(self.core.clock)

    @contextmanager
    def tolerated(self, action: str) -> Iterator[None]:
        """Run one round of a loop: its failure is noted until a later round works, and goes no further.

        action: what the loop does, as in "cannot <action>".
        """
        try:
            yield
        except StoreError:
            self._failures.pop(action, None)  # the store itself notes it
        except BadRecord as error:
            self._failures[action] = f"cannot {action}: {error}"
        except Exception as error:
            self._failures[action] = f"cannot {action}: {type(error).__name__}: {error}"
            if self.warnings.is_due(action):
                context = {"message": f"a round failed that is made again: cannot {action}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        else:
            self._failures.pop(action, None)

    def summary(self) -> str:
        """All that is wrong now, for people; "" if nothing is. What is new is logged."""
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
        if self._has_told != (told := bool(problems)):
            self._has_told = told
            if not told:
                log.info("nothing is wrong any more")
        return "; ".join(problems.values())[:MAX_LENGTH]
