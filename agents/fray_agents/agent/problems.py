"""What is wrong with an agent now: told in its record while it lasts, and in its log once an hour at most.

A loop of an agent that has joined never ends of a failure: a refusal and an outage pass, and one odd object concerns
itself only. What the storage fails to do is known to the store; other failures are noted here by the loop they met.
"""

from __future__ import annotations

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
"""Characters that an agent's record tells of its troubles."""


@dataclass(slots=True)
class AgentProblems:
    """One agent's troubles.

    Attributes:
        unkilled: which processes of its tasks SIGKILL does not end; "" if all end.
        unfit: why the agent must take no more work; "" if it may.
        warnings: what it logs.
    """

    core: Core
    unkilled: str = ""
    unfit: str = ""
    warnings: LogThrottle = field(init=False)
    _failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.warnings = LogThrottle(self.core.clock)

    @contextmanager
    def survived(self, doing: str) -> Iterator[None]:
        """Do one look of a loop: its failure is noted until a later look of that loop works, and goes no further."""
        try:
            yield
        except StoreError:
            self._failed.pop(doing, None)  # the store itself tells
        except BadRecord as error:
            self._failed[doing] = f"cannot {doing}: {error}"
        except Exception as error:
            self._failed[doing] = f"cannot {doing}: {type(error).__name__}: {error}"
            if self.warnings.is_due(doing):
                context = {"message": f"a look failed that is made again: cannot {doing}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        else:
            self._failed.pop(doing, None)

    def told(self) -> str:
        """All that is wrong now, for people; "" if nothing is. What is new is logged."""
        own = {"unfit": self.unfit, "unkilled": self.unkilled}
        troubles = {name: text for name, text in own.items() if text} | self._failed | self.core.store.failing.now()
        for subject, text in troubles.items():
            if self.warnings.is_due(subject):
                log.warning("%s", escaped(text))
        return "; ".join(troubles.values())[:MAX_LENGTH]
