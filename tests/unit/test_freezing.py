"""A process is frozen only while it holds no lock of the store; otherwise the other tests would wait for that lock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fray_coordinator.store.file_tree import LOCK_FOLDER
from tests.support.freezing import freeze

HOLDS = """
import fcntl, signal
lock = open("00", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
signal.signal(signal.SIGCONT, lambda *_: {})
print("held", flush=True)
while True: signal.pause()
"""


@pytest.mark.parametrize("lets_go", [True, False])
def test_a_process_with_a_lock_is_frozen_only_once_it_has_released_it(tmp_path: Path, lets_go: bool) -> None:
    locks = tmp_path / LOCK_FOLDER
    locks.mkdir(parents=True)
    program = HOLDS.format("lock.close()" if lets_go else "None")
    with subprocess.Popen([sys.executable, "-c", program], cwd=locks, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        try:
            if lets_go:
                freeze(holder.pid)
                assert Path(f"/proc/{holder.pid}/stat").read_text().split()[2] == "T"
            else:
                with pytest.raises(AssertionError, match="had a lock file open"):
                    freeze(holder.pid, within=0.1)
        finally:
            holder.kill()
