"""These tests need real Zephyr, which `make zephyr` installs in environments of its own; nothing else sees them.

The examples of the pages are written for its newest release.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("zephyr") is None:
    collect_ignore_glob = ["test_*.py"]
elif find_spec("zephyr.context") is None:
    collect_ignore_glob = ["test_pages.py"]
