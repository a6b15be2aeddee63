"""Files in the inbox that become no job, or have become none for long."""

from __future__ import annotations

from collections.abc import Iterator

from fray_coordinator.errors import REMOVE_HINT
from fray_coordinator.fsck.report import Problem, SuspectedProblem
from fray_coordinator.fsck.snapshot import Snapshot
from fray_layouts.errors import InvalidInput
from fray_layouts.spec import parse_spec


def drops(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Old files: those that no agent would admit, and those that the passes should have dealt with."""
    watched = seen.reconciler_runs()
    for key, drop in seen.drops.items():
        fault = _fault(drop.data)
        if seen.now - drop.updated <= seen.patience:
            continue
        if watched:
            what = f"agents run, and have neither admitted nor rejected it{_reason_of_last_pass(seen, key)}"
            yield SuspectedProblem(
                Problem(key, what, "drop it again under another name, and remove this one"), (drop.version,)
            )
        elif fault:
            what = f"it can become no job: {fault}"
            remedy = "drop it again as it should be; as it is, the next agent that runs rejects it"
            yield SuspectedProblem(Problem(key, what, remedy), (drop.version,))


def _reason_of_last_pass(seen: Snapshot, key: str) -> str:
    """Why the last pass skipped the file."""
    problem = seen.reconciler.record.problems.get(key, "") if seen.reconciler is not None else ""
    return f" ({problem.removesuffix(REMOVE_HINT)})" if problem else ""


def _fault(data: bytes) -> str:
    try:
        parse_spec(data)
    except InvalidInput as error:
        return str(error)
    return ""
