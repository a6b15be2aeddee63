"""Makes a virtual environment with real Zephyr in it.

Zephyr pins `marin-fray`, whose `fray` package would lie over this project's: so Zephyr is installed alone, then the
rest of what it requires, then this project. The peer of the benchmarks is Zephyr as it is published.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

TESTING = ("hypothesis", "pytest", "pytest-asyncio", "pytest-timeout")
"""What `tests/conftest.py` needs."""

_REQUIRED = "import importlib.metadata as m; print('\\n'.join(m.requires('marin-zephyr')))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("version", help="of marin-zephyr, exact: looser words or --pre would bring unfinished releases")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--published", action="store_true", help="with marin-fray and without this project")
    options = parser.parse_args()
    build(options.directory, options.version, options.python, options.published)


def build(directory: Path, version: str, python: str, published: bool) -> None:
    subprocess.run([sys.executable, "-m", "virtualenv", "--quiet", "--python", python, str(directory)], check=True)
    interpreter = str(directory / "bin" / "python")
    if published:
        install(interpreter, f"marin-zephyr=={version}")
        return
    install(interpreter, "--no-deps", f"marin-zephyr=={version}")
    required = subprocess.run([interpreter, "-c", _REQUIRED], check=True, capture_output=True, text=True).stdout
    install(interpreter, *(line for line in required.splitlines() if not line.startswith("marin-fray")))
    install(interpreter, "--editable", ".", "ray[default]==2.60.*", *TESTING)


def install(interpreter: str, *what: str) -> None:
    """In isolation (-I): PYTHONPATH has virtualenv's own requirements, which pip would take for installed."""
    subprocess.run([interpreter, "-I", "-m", "pip", "install", "--quiet", *what], check=True)


if __name__ == "__main__":
    main()
