"""Write every file of vectors: `python -m tests.vectors DIRECTORY`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.vectors import actors, agents, bodies, calls, jobs, names, queues

FILES = {**names.FILES, **bodies.FILES, **jobs.FILES, **agents.FILES, **actors.FILES, **queues.FILES, **calls.FILES}
"""Name of the file, without `.json`, and what makes it."""


def files() -> Iterator[tuple[str, bytes]]:
    """File name and content of every file of vectors."""
    for name, make in FILES.items():
        yield f"{name}.json", make().content()


def main(directory: Path) -> None:
    """Write every file into `directory`, which holds nothing else."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.glob("*.json"):
        path.unlink()
    for name, content in files():
        (directory / name).write_bytes(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
