"""Runs the command line on one root in tests."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from fray.cli import cli
from tests.support.left_behind import started
from tests.support.waiting import wait_until

FRAY = [sys.executable, "-m", "fray"]


class Shell:
    """Runs commands on one root, in a folder that is not a project."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, *words: str, code: int = 0, stdin: str | None = None) -> Result:
        with contextlib.chdir(self.root.parent):
            result = CliRunner(env={"FRAY_CLUSTER_SPEC": str(self.root)}).invoke(cli, words, input=stdin)
        assert result.exit_code == code, result.output
        return result

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code).stdout)

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command without waiting for it; it is killed when its test ends."""
        environ = {**os.environ, "FRAY_CLUSTER_SPEC": str(self.root)}
        options = {"stdin": subprocess.DEVNULL} | options
        process = subprocess.Popen([*FRAY, *words], env=environ, text=True, cwd=self.root.parent, **options)
        return started(process)

    def detached(self, *words: str) -> str:
        return self("run", "--detach", *words).stdout.strip()

    def until_status(self, job: str, status: str) -> None:
        wait_until(lambda: self.json("status", job)["status"] == status)
