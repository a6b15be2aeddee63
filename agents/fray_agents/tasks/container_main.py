"""The main module of a callable's process in a container, started by path, with the image's own Python.

`python3 container_main.py PYTHON BEFORE BEHIND DIRECTORY RESULT_LIMIT` checks the Python version, adds the agent's Fray
from BEFORE, ahead of the image's packages, and Fray's dependencies from BEHIND, after them, and goes on as
`callable_main`.
"""

import json
import os
import sys


def main(python: str, before: str, behind: str, directory: str, result_limit: str) -> int:
    """Run the call in `directory`; returns the exit code."""
    own = "{}.{}".format(*sys.version_info)
    if own != python:
        message = (
            f"the image has Python {own}, but the callable needs {python}: use an image with that, or submit from {own}"
        )
        with open(os.path.join(directory, "error.json"), "w", encoding="utf-8") as file:
            json.dump({"kind": "exception", "message": message}, file)
        print(message, file=sys.stderr)
        return 1
    sys.path[0] = before  # this file's own folder has no modules for the task
    sys.path.append(behind)
    from fray_agents.tasks import callable_main

    return callable_main.main(directory, int(result_limit))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
