"""The line of a wait: renewed on a terminal, clear of printed output, and logged now and then elsewhere."""

import asyncio
import io
import logging
import sys
from types import SimpleNamespace

import pytest

from fray import wait_line
from fray.wait_line import WaitLine, above_line, progress_shown, wait_with_progress
from tests.support.waiting import eventually


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def made_screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A terminal in the place of stderr, which pytest replaces before each phase of a test."""
    shown = Screen()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    return shown


def test_on_a_terminal_the_line_is_renewed_cut_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = made_screen(monkeypatch)
    with WaitLine() as line:
        line.show("1 of 2 done")
        line.show("2 of 2 done, " + "and " * 20)
        with above_line():
            screen.write("printed\n")
    renewed, cut = "\rfray: 1 of 2 done\x1b[K", f"\rfray: 2 of 2 done, {'and ' * 5}\x1b[K"
    assert screen.getvalue() == f"{renewed}{cut}\r\x1b[Kprinted\n{cut}\r\x1b[K"


def test_in_a_notebook_the_line_is_overwritten_in_the_stream_of_the_jobs_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=None)))
    monkeypatch.setattr(sys, "stderr", errors := io.StringIO())
    monkeypatch.setattr(sys, "stdout", cell := io.StringIO())
    with WaitLine() as line:
        line.show("1 of 2 done")
        line.show("2 done")
        with above_line():
            cell.write("printed\n")
    gone = f"\r{' ' * len('fray: 2 done')}\r"
    assert cell.getvalue() == f"\rfray: 1 of 2 done\r{'fray: 2 done'.ljust(17)}{gone}printed\n\rfray: 2 done{gone}"
    assert errors.getvalue() == ""


def test_what_is_logged_meanwhile_is_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = made_screen(monkeypatch)
    handler = logging.StreamHandler(screen)
    logging.getLogger("fray").addHandler(handler)
    try:
        with WaitLine() as line:
            line.show("1 of 2 done")
            logging.getLogger("fray").warning("the storage does not answer")
            line.show("1 of 2 done")
    finally:
        logging.getLogger("fray").removeHandler(handler)
    shown = "\rfray: 1 of 2 done\x1b[K"
    assert screen.getvalue() == f"{shown}\r\x1b[Kthe storage does not answer\n{shown}\r\x1b[K"


def test_of_two_waits_the_latest_is_shown_and_then_the_other_again(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = made_screen(monkeypatch)
    with WaitLine() as outer:
        outer.show("outer")
        with WaitLine() as inner:
            inner.show("inner")
        assert screen.getvalue().endswith("inner\x1b[K\rfray: outer\x1b[K")


def test_the_reason_for_waiting_is_a_warning_whenever_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    with WaitLine() as line:
        for why in ("", "no room", "no room", "no agent"):
            line.show("0 of 2 jobs done", why)
    assert caplog.messages == ["0 of 2 jobs done: no room", "0 of 2 jobs done: no agent"]


def test_elsewhere_progress_is_logged_ever_more_rarely(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "fray")
    now = 0.0
    monkeypatch.setattr(wait_line.time, "monotonic", lambda: now)
    with WaitLine() as line:
        for second in range(1800):
            now = float(second)
            line.show(f"at {second} s")
    assert caplog.messages == [f"at {second} s" for second in (30, 60 + 30, 120 + 90, 240 + 210, 480 + 450, 1530)]


def test_waiting_tells_from_its_second_step_on_and_keeps_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = made_screen(monkeypatch)
    now, steps = 0.0, []

    def step(seconds: float) -> bool:
        nonlocal now
        now += seconds
        steps.append(seconds)
        return now >= 4.0

    monkeypatch.setattr(wait_line.time, "monotonic", lambda: now)
    assert wait_with_progress(step, None, lambda: f"{steps}")
    assert steps == [2.0, 1.0, 1.0]
    assert screen.getvalue() == "\rfray: [2.0]\x1b[K\rfray: [2.0, 1.0]\x1b[K\r\x1b[K"
    now, steps = 0.0, []
    assert not wait_with_progress(step, 2.5, lambda: "waiting")
    assert steps == [2.0, 0.5]


async def test_coroutines_that_wait_for_the_same_have_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = made_screen(monkeypatch)
    monkeypatch.setattr(wait_line, "WARN_AFTER", 0.0)
    lines, ended = list[int](), asyncio.Event()

    def tell() -> str:
        lines.append(len(wait_line._terminal.value.lines))
        return "2 of 3 done"

    async def wait() -> None:
        with progress_shown(tell):
            await ended.wait()

    waiting = [asyncio.create_task(wait()) for _ in range(3)]
    await eventually(lambda: lines)
    waiting[0].cancel()
    ended.set()
    await asyncio.wait(waiting)
    await eventually(lambda: not wait_line._terminal.value.lines)
    assert lines == [1]
    assert screen.getvalue() == "\rfray: 2 of 3 done\x1b[K\r\x1b[K"
    assert wait_line._updaters == {}
