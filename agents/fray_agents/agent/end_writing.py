"""Writing the end of an attempt, through outages of the store and damage to the job's record."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fray_agents.agent.membership import Membership
from fray_coordinator.errors import BadRecord, StoreError
from fray_coordinator.persist import is_no_outage, persist

T = TypeVar("T")

LEAVING_CHECK_SECONDS = 1.0
"""Seconds between two checks whether the agent leaves, while a record is damaged: it leaves at most that much later."""


class LeftUnwritten(Exception):
    """The end of an attempt stays unwritten: the agent leaves, and other agents find that it did."""


async def until_written(member: Membership, job: str, write: Callable[[], Awaitable[T]]) -> T:
    """Call `write` until it succeeds, however long the store is away or the job's record is damaged.

    Args:
        job: id of the job, for log lines.
        write: may raise StoreError and BadRecord.

    Raises:
        LeftUnwritten: the agent leaves. It then waits for an outage to end, but not for one damaged record.
    """
    core, warnings = member.core, member.problems.warnings
    while True:
        try:
            return await persist(core, write, lambda error: member.leaving and is_no_outage(error))
        except StoreError as error:
            warnings.warn("%s has ended, but its end is left unwritten: %s", job, error)
            raise LeftUnwritten(job) from error
        except BadRecord as error:  # somebody may repair the object; until then it names no other holder
            warnings.warn("%s has ended, but its end cannot be written yet: %s", job, error)
            retry_at = core.clock.boottime() + core.settings.repair_interval
            while core.clock.boottime() < retry_at:
                if member.leaving:
                    raise LeftUnwritten(job) from error
                await core.clock.sleep(LEAVING_CHECK_SECONDS)
