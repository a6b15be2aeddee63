"""The ledger of effects: what tasks really did. Invariants compare it with the records."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Run:
    """One task of one attempt, or of one replica of it.

    Attributes:
        how: "" while it runs; then "success", "failure" or "timeout" (its own failures), or why it was killed: "eof",
            "deadline", or the reason of its agent ("stopped", "preempted", ...).
        complete_before_stop: whether it had succeeded before it got a signal.
        told: whether its agent knows of the end.
        replica: its number among `replicas`.
    """

    job: str
    attempt: int
    agent: str
    host: str
    begin: float
    end: float | None = None
    how: str = ""
    complete_before_stop: bool = False
    told: bool = False
    replica: int = 0
    replicas: int = 1

    @property
    def failed(self) -> bool:
        """Whether it ended by its own fault."""
        return self.how in ("failure", "timeout")

    @property
    def told_as(self) -> str:
        """The run in words, for people."""
        return f"{self.job}~{self.attempt}" + f"/{self.replica}" * (self.replicas > 1)


@dataclass(slots=True)
class Effects:
    """All runs, by job, attempt and replica."""

    runs: dict[tuple[str, int, int], Run] = field(default_factory=dict)
    running: dict[str, list[Run]] = field(default_factory=dict)
    twice: list[Run] = field(default_factory=list)

    def begin(self, run: Run) -> None:
        which = (run.job, run.attempt, run.replica)
        if which in self.runs:
            self.twice.append(run)
        self.runs[which] = run
        self.running.setdefault(run.job, []).append(run)

    def end(self, run: Run, now: float, how: str, complete_before_stop: bool = False) -> None:
        run.end, run.how, run.complete_before_stop = now, how, complete_before_stop
        self.running[run.job].remove(run)

    def forget(self, job: str) -> None:
        """Forget a job that was removed and whose id another job has."""
        self.runs = {which: run for which, run in self.runs.items() if run.job != job}

    def of(self, job: str, attempt: int, replica: int = 0) -> Run | None:
        return self.runs.get((job, attempt, replica))
