"""What a program shows of the exception that ends it: the user's frames, and one of Fray's below each of them."""

from __future__ import annotations

import traceback
import urllib.request
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest

from fray import sync, uncaught
from fray.cluster.job_info import decode_result
from fray_layouts.records import JobResult


def shown(act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions in the traceback that the hook before ours gets for the exception that `act` raises."""
    found: list[str] = []

    def hook(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        told: traceback.TracebackException | None = traceback.TracebackException(kind, error, at)
        while told is not None:
            found[:0] = [frame.name for frame in told.stack]
            told = told.__cause__ or (None if told.__suppress_context__ else told.__context__)

    monkeypatch.setattr(uncaught, "_hook_before", hook)
    try:
        act()
    except BaseException as error:
        uncaught.show_uncaught(type(error), error, error.__traceback__)
    return found[1:]  # without this function's own frame


async def users_coroutine() -> None:
    raise KeyError("the user's")


def call_back() -> None:
    sync.run(users_coroutine())


def two_steps() -> None:
    try:
        sync.run(users_coroutine())
    except KeyError as error:
        raise ValueError from error


def test_frames_inside_fray_are_left_out_and_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FRAY_DEBUG", raising=False)
    assert shown(call_back, monkeypatch) == ["call_back", "run", "users_coroutine"]
    assert "frames inside Fray left out; FRAY_DEBUG=1 shows all\n" in capsys.readouterr().err
    monkeypatch.setenv("FRAY_DEBUG", "1")
    everything = shown(call_back, monkeypatch)
    assert everything[:3] == ["call_back", "run", "run"]
    assert everything[-1] == "users_coroutine"
    assert capsys.readouterr().err == ""


def test_causes_are_shown_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRAY_DEBUG", raising=False)
    # the cause begins where the program caught it
    assert shown(two_steps, monkeypatch)[-1] == "two_steps"
    assert "users_coroutine" in shown(two_steps, monkeypatch)


def test_a_cause_in_which_fray_has_no_part_is_shown_as_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FRAY_DEBUG", raising=False)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    assert "create_connection" in shown(lambda: opener.open("http://127.0.0.1:9/"), monkeypatch)
    assert capsys.readouterr().err == ""


def test_a_cause_that_is_all_inside_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRAY_DEBUG", raising=False)

    def unreadable() -> None:
        decode_result(JobResult(encoding="json", value=None, key="results/a"), b"{")

    assert shown(unreadable, monkeypatch) == ["unreadable", "decode_result"]
    monkeypatch.setenv("FRAY_DEBUG", "1")
    assert len(shown(unreadable, monkeypatch)) > 2


INSIDE = """
def act():
    try:
        try:
            step()
        except ValueError:
            raise KeyError("inside")
    except KeyError:
        raise RuntimeError("outside")
"""


def users_step() -> None:
    raise ValueError("the user's")


def test_the_users_exception_is_shown_although_those_after_it_are_inside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FRAY_DEBUG", raising=False)
    module: dict[str, Any] = {"__name__": "fray.made_up", "step": users_step}
    exec(INSIDE, module)
    assert shown(lambda: module["act"](), monkeypatch) == ["users_step", "shown", "<lambda>", "act"]
    assert "fray: 1 frame inside Fray left out" in capsys.readouterr().err
