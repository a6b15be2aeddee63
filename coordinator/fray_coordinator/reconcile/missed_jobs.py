"""Remembers from one repair to the next the running jobs that their live holders did not list.

`protocol.dropped_jobs` decides when such a job counts as dropped.
"""

from dataclasses import dataclass, field

from fray_coordinator.protocol.dropped_jobs import MissedJob, is_dropped
from fray_layouts.records import AgentRecord


@dataclass(slots=True)
class MissedJobs:
    """The sightings of this repair and of the previous one, by the ids of job and holder."""

    _missed: dict[tuple[str, str], MissedJob] = field(default_factory=dict)
    _before: dict[tuple[str, str], MissedJob] = field(default_factory=dict)

    def start_run(self) -> None:
        """Start a repair."""
        self._before, self._missed = self._missed, {}

    def is_dropped(self, job: str, version: str, holder: AgentRecord) -> bool:
        """Whether the holder, read after this version of the job, has dropped it; if not yet, remember the sighting."""
        place, last = (job, holder.id), MissedJob(version, holder.beat)
        first = self._before.get(place, last)
        if is_dropped(first, last):
            return True
        self._missed[place] = first if first.version == version else last
        return False
