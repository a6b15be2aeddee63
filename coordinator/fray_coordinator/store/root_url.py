"""The URL of a root, from what a person gives."""

from __future__ import annotations

import os
from pathlib import Path


def root_url(root: str) -> str:
    """`root` itself if it is a URL; else the `file://` URL of the path, which may begin with `~`."""
    return root if "://" in root else local_folder(root).as_uri()


def local_folder(path: str) -> Path:
    """The absolute path, with `~` expanded; links are not resolved."""
    return Path(os.path.abspath(os.path.expanduser(path)))
