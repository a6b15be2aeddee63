"""Which output of its jobs a driver shows, how many requests that costs, and that it delays nobody."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from fray.cluster import driver_log, log_printer
from fray.cluster.driver_log import LAST_LINES_TIMEOUT, LINES_AT_ONCE, DriverLog, LineDisplay
from fray.cluster.log_printer import LogPrinter
from fray_coordinator.core import Core
from fray_coordinator.jobs import stopping
from fray_coordinator.jobs.claiming import Claimed, try_claim
from fray_coordinator.jobs.commit import end_attempt
from fray_coordinator.jobs.logs import LogLine
from fray_coordinator.jobs.lookup import read_job
from fray_coordinator.jobs.submission import Submitted, submit
from fray_coordinator.jobs.waiting import wait_for
from fray_coordinator.protocol.commit import AttemptEnd
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.store.interface import ABSENT
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import AttemptExit, ClusterSettings, JobRecord
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.work_keys import WorkKeys
from tests.support.virtual import Cluster, StoreConnection, VirtualClock


class Stage:
    """A driver whose requests cost money, and an agent that the test moves. shown: the lines, without prefixes."""

    def __init__(self, cluster: Cluster, driver: Core, agent: Core) -> None:
        self.connection: StoreConnection = cluster.connections[0]
        self.driver = driver
        self.agent = agent
        self.shown: list[str] = []
        self.log = DriverLog(driver, lambda job: True, self._show)

    def _show(self, lines: Iterable[tuple[str, str]]) -> None:
        self.shown += [text.partition(") ")[2] for _, text in lines]

    async def launch(self, **fields: Any) -> str:
        spec = parse_spec({"name": "job", "entrypoint": {"command": ["true"]}, **fields})
        submitted = await submit(self.driver, [spec])
        self.log.follow(submitted)
        return submitted[0].job.id

    async def start(self, job_id: str) -> Stored[JobRecord]:
        claimed = await try_claim(self.agent, entry_of((await read_job(self.agent, job_id)).record), "agent", "host")
        assert isinstance(claimed, Claimed)
        return claimed.job

    async def store_chunk(self, job: Stored[JobRecord], number: int, *lines: str) -> None:
        data = "".join(f"2026-01-01T12:00:00.000000Z stdout F {line}\n" for line in lines).encode()
        await self.agent.store.put(WorkKeys.log(job.record.id, job.record.attempt, 0, number), data, ABSENT)

    async def end(self, job: Stored[JobRecord], chunks: int, kind: str = "success") -> None:
        end = AttemptEnd(AttemptExit(kind=kind, log_chunks=chunks))
        await end_attempt(self.agent, job, "agent", end, None)

    async def wait(self, job_id: str) -> None:
        async with self.log.waiting([job_id]):
            await wait_for(self.driver, [job_id], on_change=self.log.note)

    def log_requests(self) -> list[str]:
        return [verb for verb, key in self.connection.asked if key.startswith("work/")]

    def record_reads(self, job_id: str) -> list[str]:
        return [verb for verb, key in self.connection.asked if key == JobKeys.key(job_id)]


@pytest.fixture
async def stage(cluster: Cluster) -> Stage:
    cluster.settings = ClusterSettings(requeue_backoff=0.0)
    return Stage(cluster, await cluster.core(local=False), await cluster.core())


async def test_a_short_job_costs_one_read_if_it_prints_and_none_if_it_does_not(stage: Stage) -> None:
    for number, chunks in enumerate((1, 0), 1):
        job_id = await stage.launch()
        waiting = asyncio.create_task(stage.wait(job_id))
        job = await stage.start(job_id)
        if chunks:
            await stage.store_chunk(job, 1, "hello")
        await stage.end(job, chunks)
        await waiting
        assert stage.shown == ["hello"]  # and before the wait is over
        assert stage.log_requests() == ["get"], f"after job {number}"


async def test_a_job_that_prints_all_the_time_costs_a_read_for_each_chunk(stage: Stage) -> None:
    job_id = await stage.launch()
    waiting = asyncio.create_task(stage.wait(job_id))
    job = await stage.start(job_id)
    for number in range(1, 101):
        await asyncio.sleep(5)
        await stage.store_chunk(job, number, str(number))
    await stage.end(job, 100)
    await waiting
    assert stage.shown == [str(number) for number in range(1, 101)]
    assert len(stage.log_requests()) <= 1.3 * 100


async def test_a_silent_job_is_asked_for_rarely(stage: Stage) -> None:
    job_id = await stage.launch()
    waiting = asyncio.create_task(stage.wait(job_id))
    job = await stage.start(job_id)
    await asyncio.sleep(3600)
    assert len(stage.log_requests()) <= 3600 / 30 + 10
    await stage.end(job, 0)
    await waiting


async def test_records_are_read_only_of_jobs_that_nobody_waits_for(stage: Stage) -> None:
    waited, other = await stage.launch(), await stage.launch()
    waiting = asyncio.create_task(stage.wait(waited))
    jobs = [await stage.start(waited), await stage.start(other)]
    await asyncio.sleep(600)
    plain = asyncio.create_task(wait_for(stage.driver, [waited]))
    before = len(stage.record_reads(waited))
    await asyncio.sleep(600)
    plain.cancel()
    both = len(stage.record_reads(waited)) - before
    assert both == pytest.approx(2 * (before - 10), rel=0.2)  # as much as any two waits
    assert len(stage.record_reads(other)) <= 1200 / 30 + 20
    for job in jobs:
        await stage.end(job, 0)
    await waiting


async def test_many_running_jobs_together_are_asked_for_ten_times_a_second(stage: Stage) -> None:
    for job_id in [await stage.launch() for _ in range(100)]:
        await stage.start(job_id)
    await asyncio.sleep(20)
    assert 0 < len(stage.log_requests()) <= 20 * driver_log.READS_PER_SECOND * 1.1


async def test_attempts_follow_one_another(stage: Stage) -> None:
    job_id = await stage.launch(max_retries_failure=1)
    waiting = asyncio.create_task(stage.wait(job_id))
    first = await stage.start(job_id)
    await stage.store_chunk(first, 1, "first")
    await stage.end(first, 1, "exited")
    second = await stage.start(job_id)
    await stage.store_chunk(second, 1, "second")
    await stage.end(second, 1)
    await waiting
    assert stage.shown == ["first", "second"]


async def test_the_last_chunk_of_an_earlier_drivers_job_is_shown_with_all_later_ones(stage: Stage) -> None:
    job_id = (await submit(stage.driver, [parse_spec({"name": "old", "entrypoint": {"command": ["true"]}})]))[0].job.id
    job = await stage.start(job_id)
    for number in range(1, 51):
        await stage.store_chunk(job, number, str(number))
    stage.log.follow([Submitted((await read_job(stage.driver, job_id)).record, found=True)])
    waiting = asyncio.create_task(stage.wait(job_id))
    await asyncio.sleep(60)
    await stage.store_chunk(job, 51, "51")
    await stage.end(job, 51)
    await waiting
    assert stage.shown == ["50", "51"]
    assert stage.log_requests().count("list") == 1


async def test_a_job_that_prints_faster_than_it_is_read_is_caught_up_with(stage: Stage) -> None:
    job_id = await stage.launch()
    waiting = asyncio.create_task(stage.wait(job_id))
    job = await stage.start(job_id)
    for number in range(1, 1001):
        await stage.store_chunk(job, number, str(number))
    await stage.end(job, 1000)
    await waiting
    assert stage.shown[-1] == "1000"
    assert any("left out" in line for line in stage.shown)
    assert len(stage.log_requests()) <= 10


@pytest.mark.parametrize("trouble", ["outage", "foreign", "gone"])
async def test_an_error_of_the_log_does_not_disturb_a_wait(stage: Stage, trouble: str) -> None:
    job_id = await stage.launch()
    waiting = asyncio.create_task(stage.wait(job_id))
    job = await stage.start(job_id)
    match trouble:
        case "outage":
            stage.connection.unanswered.append(("get", "work/"))
        case "foreign":
            await stage.agent.store.put(WorkKeys.log(job_id, 1, 0, 1), b"no log", ABSENT)
    began = asyncio.get_running_loop().time()
    await stage.end(job, 1)
    await waiting
    longest_look = 15.0
    assert asyncio.get_running_loop().time() - began <= longest_look + LAST_LINES_TIMEOUT
    assert stage.shown == []


async def test_an_actors_last_lines_are_waited_for_when_the_program_ends(stage: Stage) -> None:
    owned, other = await stage.launch(), await stage.launch()
    job, _ = await stage.start(owned), await stage.start(other)
    await asyncio.sleep(60)
    stage.log.note(await stopping.stop(stage.driver, owned, "the driver ends"))
    leaving = asyncio.create_task(stage.log.leave(3.0))
    await asyncio.sleep(0.5)
    await stage.store_chunk(job, 1, "bye")
    await stage.end(job, 1, "stopped")
    await leaving
    assert stage.shown == ["bye"]


async def test_output_that_is_read_in_another_way_is_shown_no_more(stage: Stage) -> None:
    job_id = await stage.launch()
    stage.log.forget(job_id)
    job = await stage.start(job_id)
    await stage.store_chunk(job, 1, "hello")
    await stage.end(job, 1)
    await stage.wait(job_id)
    assert stage.shown == []
    assert stage.log_requests() == []


# --- how a line is shown


def displayed(*lines: LogLine, display: LineDisplay | None = None) -> list[tuple[str, str]]:
    return (display or LineDisplay("job-1", VirtualClock())).lines(lines)


def line(data: bytes, stream: str = "stdout", complete: bool = True, attempt: int = 1) -> LogLine:
    return LogLine(attempt, 0, "2026-01-01T12:00:00.000000Z", stream, data, complete)


async def test_a_line_has_its_jobs_prefix_and_nothing_that_a_terminal_obeys() -> None:
    assert displayed(line(b"hello"), line(b"\x1b[2J\xff", "stderr", attempt=1)) == [
        ("stdout", "(job-1) hello"),
        ("stderr", "(job-1) \\x1b[2J\\xff"),
    ]
    assert displayed(line(b"again", attempt=2)) == [("stdout", "(job-1 #2) again")]


async def test_a_progress_bar_is_shown_in_its_last_state() -> None:
    bar = line(b"\r10%\r20%", complete=False), line(b"\r30%\r100%\r")
    found = displayed(*bar, line(b"end", complete=False), line(b""))
    assert [text for _, text in found] == ["(job-1) 20%", "(job-1) 100%", "(job-1) end"]


async def test_the_last_of_too_many_lines_are_shown_and_the_others_counted(cluster: Cluster) -> None:
    display = LineDisplay("job-1", cluster.clock)
    many = [line(b"%d" % number) for number in range(LINES_AT_ONCE + 500)]
    first = displayed(*many, display=display)
    assert first[0] == ("stderr", "(job-1) ... 500 lines left out; `fray logs job-1` has all")
    assert [text for _, text in first[1:]] == [f"(job-1) {number}" for number in range(500, LINES_AT_ONCE + 500)]
    assert [text for _, text in displayed(line(b"x"), display=display)] == [
        "(job-1) ... 1 line left out; `fray logs job-1` has all"
    ]
    await asyncio.sleep(1)
    assert len(displayed(*many, display=display)) == driver_log.LINES_PER_SECOND + 1


# --- the thread that prints


class StoppedTerminal(io.StringIO):
    """A terminal that accepts nothing until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def write(self, text: str) -> int:
        self.goes_on.wait(200)
        return super().write(text)


def test_a_terminal_that_is_stopped_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, printer = StoppedTerminal(), LogPrinter()
    monkeypatch.setattr("sys.stderr", terminal)
    for number in range(log_printer.MAX_QUEUED_LINES * 2):
        printer.put([("stderr", str(number))])
    shown_states: list[int] = []
    for number in range(100):
        printer.update("a wait", partial(shown_states.append, number))
    printer.flush(0.01)
    terminal.goes_on.set()
    printer.flush(200)
    printer.put([("stderr", "end")])
    printer.flush(200)
    shown = terminal.getvalue().split("\n")
    assert shown[:3] == ["0", "1", "2"]
    assert len(shown) < log_printer.MAX_QUEUED_LINES * 2
    assert "lines of jobs are left out" in terminal.getvalue()
    assert "end" in shown
    assert shown_states == [99]


def test_a_stream_that_raises_anything_ends_no_printing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(io.StringIO):
        def write(self, text: str) -> int:
            raise RuntimeError("reentrant call")

    printer = LogPrinter()
    for stream in (Odd(), None, good := io.StringIO()):
        monkeypatch.setattr("sys.stdout", stream)
        printer.put([("stdout", "hello")])
        printer.flush(200)
    assert good.getvalue() == "hello\n"


def test_the_log_prints_in_the_context_of_the_waiting_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, shown = ContextVar("cell", default="first"), list[str]()
    stream = io.StringIO()
    monkeypatch.setattr(stream, "flush", lambda: shown.append(cell.get()))  # as a notebook's stream finds its cell
    monkeypatch.setattr("sys.stdout", stream)
    printer = LogPrinter()
    for name in ("second", "third"):
        cell.set(name)
        printer.belong_here()
        printer.put([("stdout", "hello")])
        printer.flush(200)
    assert shown == ["second", "third"]


def test_in_a_notebook_it_prints_under_the_cell_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, shown, hooks = ContextVar("cell", default="first"), list[str](), list[tuple[str, Callable[[object], None]]]()
    shell = SimpleNamespace(kernel=None, events=SimpleNamespace(register=lambda *hook: hooks.append(hook)))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    stream = io.StringIO()
    monkeypatch.setattr(stream, "flush", lambda: shown.append(cell.get()))
    monkeypatch.setattr("sys.stdout", stream)
    printer = LogPrinter()
    printer.belong_here()
    cell.set("second")
    printer.belong_here()
    cell.set("third")
    ((event, begin_cell),) = hooks
    assert event == "pre_run_cell"
    begin_cell(None)
    printer.put([("stdout", "hello")])
    printer.flush(200)
    assert shown == ["third"]


@pytest.mark.parametrize(
    ("variable", "terminal", "shows"),
    [("", True, True), ("", False, False), ("0", True, False), ("1", False, True)],
)
def test_output_is_shown_in_terminals_unless_the_switch_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, variable: str, terminal: bool, shows: bool
) -> None:
    monkeypatch.setenv(log_printer.SWITCH_VARIABLE, variable)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdout", stream)
    assert log_printer.shows_output() is shows
