"""The last lines of a task on stderr give the reason of its end, and a stack that it left is found."""

import pytest

from fray_agents.runner.exit_report import KEPT_BYTES, REASON_CHARACTERS, reason_and_stack

RAISED = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    int("x")
    ^^^^^^^^
ValueError: invalid literal
"""

FAULT = """Fatal Python error: Segmentation fault

Thread 0x00007f8b73eae6c0 (most recent call first):
  File "threading.py", line 982 in run

Current thread 0x00007f8b74a26b80 (most recent call first):
  File "/jobs/train.py", line 4 in f

Extension modules: numpy (total: 1)
"""


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("", ""),
        ("bad config\n", "bad config"),
        ("1\n2\n\nusage: x\n  x: error: no\n", "2 | usage: x | x: error: no"),
        ("\x1b[31mred\x1b[0m and \x1b]0;title\x07 more", "red and  more"),
        ("10%\r50%\r100%\r\n", "100%"),
        (f"warning\n{RAISED}", "ValueError: invalid literal"),
        (f"{RAISED}sys:1: ResourceWarning: unclosed\n", "ValueError: invalid literal"),
        (f"{RAISED}1\n2\n3\n4\n5\n", "3 | 4 | 5"),
        (RAISED[:60], 'Traceback (most recent call last): | File "train.py", line 3'),
        (f"{RAISED}{FAULT}", "Segmentation fault in native code, called at /jobs/train.py, line 4, in f"),
        (f"{FAULT}{RAISED}", "ValueError: invalid literal"),
        ("Fatal Python error: init_fs_encoding: no codec", "init_fs_encoding: no codec"),
    ],
)
def test_the_reason_is_one_line(stderr: str, reason: str) -> None:
    assert reason_and_stack(stderr.encode())[0] == reason


def test_a_stack_is_kept_from_its_first_line_on() -> None:
    assert reason_and_stack(f"a warning\n{RAISED}".encode())[1] == RAISED.rstrip()
    stack = reason_and_stack(FAULT.encode())[1]
    assert stack.startswith("Fatal Python error: Segmentation fault\nThread")
    assert 'File "/jobs/train.py", line 4 in f' in stack
    assert reason_and_stack(b"bad config")[1] == ""


def test_anything_else_is_bounded_text() -> None:
    for junk in (b"\xff\x00\x1b[" * KEPT_BYTES, b"Traceback (most recent call last):\n" * 99, b"\r\n" * 99):
        reason, stack = reason_and_stack(junk)
        assert len(reason) <= REASON_CHARACTERS
        assert len(stack) <= KEPT_BYTES
        assert "\x1b" not in reason.replace("\x1b[", "")
