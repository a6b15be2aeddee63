"""Finds the Iris controller that a root names, and connects to it.

"iris://host:port" is the controller at that address; "iris:auto" is the one that runs this process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fray_layouts.errors import InvalidInput
from fray_runtime.variables import read_variable

AUTO = "iris:auto"
"""The root of the controller that runs this process."""

_NOT_INSTALLED = (
    "Iris is not installed here; on Python 3.12 install Fray with its extra, in a clone: pip install '.[iris]'"
)


def in_iris_job() -> bool:
    """Whether this process is a task of an Iris job; imports nothing of Iris."""
    return bool(read_variable("IRIS_TASK_ID") and read_variable("IRIS_CONTROLLER_ADDRESS"))


def import_iris(root: str = AUTO) -> Any:
    """Import the module `iris.client.client`. Raises InvalidInput, which names `root`, if Iris is not installed."""
    try:
        from iris.client import client
    except ImportError as error:
        raise InvalidInput("root", root, _NOT_INSTALLED) from error
    return client


def connect(root: str, workspace: Path | None) -> Any:
    """Create an `iris.client.IrisClient` for the controller that `root` names; in a task of Iris, return the task's.

    It sends no request to the controller.

    Args:
        workspace: the folder with a pyproject.toml that is sent along with jobs; None for no folder. Ignored in a task.

    Raises:
        InvalidInput: Iris is not installed; or `root` is "iris:auto" outside of Iris.
    """
    iris = import_iris(root)
    if in_iris_job():
        return iris.iris_ctx().client
    address = root.removeprefix("iris:").removeprefix("//")
    if address in ("", "auto"):
        raise InvalidInput(
            "root", root, "this process does not run in an Iris job; give the controller's address: iris://HOST:PORT"
        )
    return iris.IrisClient.remote(f"http://{address}", workspace=workspace)


def root_of(address: str) -> str:
    """The root for a controller's address, which may be "host:port", a URL, or already a root.

    Raises:
        InvalidInput: the text is none of these.
    """
    if address.startswith("iris:"):
        return address
    host = address.removeprefix("http://").rstrip("/")
    if not host or "/" in host:
        raise InvalidInput(
            "controller_address", address, "give the controller's host and port, such as http://localhost:10000"
        )
    return f"iris://{host}"
