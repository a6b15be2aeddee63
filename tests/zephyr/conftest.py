"""These tests need real Zephyr, which `make zephyr` installs in environments of its own; nothing else sees them."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("zephyr") else ["test_*.py"]
