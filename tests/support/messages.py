"""Error messages, as a person reads them."""

from __future__ import annotations

import re
from contextlib import chdir
from pathlib import Path

from click.testing import CliRunner

from fray.cli import cli


def normalized(text: str, **names: object) -> str:
    """A text with the random part of ids, and the values of `names`, replaced."""
    for name, value in names.items():
        text = text.replace(str(value), name)
    text = re.sub(r"-1[a-z0-9]{14}\b", "-ID", text)  # first, for "0x" may be within an id
    return re.sub(r"\b0x[0-9a-f]+|(?<=worker-)[0-9a-f]{8}\b|(?<=lease )\S+(?=:)", "0x", text).strip()


def last_error_line(words: list[str], place: Path, **environ: str) -> str:
    """Run a command that must fail; return the last line of its stderr."""
    with chdir(place):
        done = CliRunner(env={"FRAY_CLUSTER_SPEC": None, **environ}).invoke(cli, words)
    assert done.exit_code
    return done.stderr.splitlines()[-1].removeprefix("Error: ").removeprefix("fray: ")
