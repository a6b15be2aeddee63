"""Opens the store that a root URL names; only the modules of that store are imported.

A local root is refused on network file systems, because they do not keep the promises of local files.
"""

import os
import re
from pathlib import Path
from urllib.parse import unquote

from fray_coordinator.clock import Clock, RandomSource, SystemClock, system_random
from fray_coordinator.errors import StoreRefused
from fray_coordinator.store.interface import StoreBackend
from fray_coordinator.store.local import LocalBackend
from fray_coordinator.store.memory import MemoryBackend, MemoryContents
from fray_coordinator.store.store import Store
from fray_layouts.errors import InvalidInput
from fray_runtime.variables import read_variable, without_white_space

OVERRIDE_VARIABLE = "FRAY_ALLOW_NETWORK_FS"
NETWORK_TYPES = re.compile(r"nfs\d?|cifs|smb\d?|smbfs|9p|fuse.*")


def network_file_system(folder: Path, mounts: str | None = None) -> str | None:
    """The type of the network file system that `folder` is on; None on a local one.

    mounts: the text of /proc/mounts.
    """
    text = _mounts() if mounts is None else mounts
    real = Path(os.path.realpath(folder))
    found = ""
    longest = -1
    for line in text.splitlines():
        _, place, kind, *_ = line.split(" ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place))
        # The later of two mounts at one place hides the earlier.
        if real.is_relative_to(point) and len(point.parts) >= longest:
            found, longest = kind, len(point.parts)
    return found if NETWORK_TYPES.fullmatch(found) else None


def refuse_network(folder: Path) -> None:
    """Raise `StoreRefused` on a network file system, unless the user's environment allows it."""
    kind = network_file_system(folder)
    if kind and read_variable(OVERRIDE_VARIABLE) != "1":
        raise StoreRefused(
            f"{folder} is on a {kind} file system, where locks and renames do not hold between machines; use a bucket "
            f"or a local disk, or set {OVERRIDE_VARIABLE}=1 if only this machine ever uses this folder"
        )


def _mounts() -> str:
    return Path("/proc/mounts").read_text()


ACCEPTED_FORMS = "use gs://bucket/prefix, s3://bucket/prefix, file:///path, a plain path, or memory://name"

_SCHEME = re.compile(r"[a-z0-9]+:|(gs|s3)//")
"""The beginning of a URL, or of a mistyped one: `gs:/bucket` and `gs//bucket` are typing errors, not folders."""

_memories: dict[str, MemoryContents] = {}


async def open_store(
    root: str, clock: Clock | None = None, rng: RandomSource | None = None, patience: float = 60.0
) -> Store:
    """Open `root` and learn its clock; on a bucket that costs one read, which also shows that the root may be read.

    Args:
        root: `gs://bucket/prefix`, `s3://bucket/prefix`, `file:///path`, a plain path, or `memory://name`.
        clock: default: this machine's clock.
        rng: default: seeded by the operating system.
        patience: seconds for which one call may retry.

    Raises `InvalidInput` if `root` is not a root, `StoreRefused` if the root cannot be used or a library is not
    installed, `StoreUnavailable` if the storage does not answer.
    """
    clock = clock or SystemClock()
    store = Store(open_backend(root, clock), clock, rng or system_random(), patience)
    try:
        await store.learn_clock()
    except BaseException:
        await store.close()
        raise
    return store


def open_backend(root: str, clock: Clock) -> StoreBackend:
    """Make the backend for `root`, without a request. Raises as `open_store` does."""
    _check_root(root)
    scheme, separator, rest = root.partition("://")
    if not root or (not separator and _SCHEME.match(root)):
        raise InvalidInput("root", root, ACCEPTED_FORMS)
    if not separator:
        return _local(local_folder(root), clock)
    match scheme:
        case "memory":
            return MemoryBackend(root, _memories.setdefault(rest, MemoryContents()), clock)
        case "file" if rest.startswith("/"):
            return _local(local_folder(unquote(rest)), clock)
        case "gs" | "s3" if re.match(r"[^/]+", rest):
            return _bucket(scheme, *_split(root, rest), clock)
    raise InvalidInput("root", root, ACCEPTED_FORMS)


def _local(folder: Path, clock: Clock) -> StoreBackend:
    refuse_network(folder)
    existing = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    if not existing.is_dir():
        raise StoreRefused(f"{existing} is a file, not a folder; give a folder as the root")
    if existing == folder and not os.access(folder, os.R_OK | os.X_OK):
        raise StoreRefused(f"{folder}: this user may not read this folder; it belongs to another user or to a group")
    return LocalBackend(folder, clock)


def _split(root: str, rest: str) -> tuple[str, str]:
    bucket, _, prefix = rest.rstrip("/").partition("/")
    if re.search(r"[?#*]|//", prefix):
        raise InvalidInput("root", root, "leave out '?', '#', '*' and double slashes")
    return bucket, prefix


def _bucket(scheme: str, bucket: str, prefix: str, clock: Clock) -> StoreBackend:
    if scheme == "s3":
        from fray_coordinator.store.s3 import S3Backend

        return S3Backend(bucket, prefix, clock)
    try:
        from fray_coordinator.store.gcs import GcsBackend
    except ImportError as error:
        raise StoreRefused(
            f"gs:// roots need {error.name}, which is not installed; in a clone of Fray: pip install '.[gcs]'"
        ) from error
    return GcsBackend(bucket, prefix, clock)


def folder_of_root(root: str) -> Path | None:
    """The folder of a local root, from its URL; None for any other root."""
    return local_folder(unquote(root.removeprefix("file://"))) if root.startswith("file://") else None


def root_url(root: str) -> str:
    """`root` if it is a URL or a mistyped one; otherwise the `file://` URL of the path, in which `~` is expanded."""
    _check_root(root)
    return root if _SCHEME.match(root) else local_folder(root).as_uri()


def _check_root(root: str) -> None:
    """Raise `InvalidInput` if a root has white space at its ends or is in quotes, as text from files may."""
    if without_white_space("root", root, is_secret=False) != root:
        raise InvalidInput("root", root, "remove the white space at its ends; a folder's name has it as %20 in a URL")


def local_folder(path: str) -> Path:
    """The absolute path, with `~` expanded; links are not resolved."""
    return Path(os.path.abspath(os.path.expanduser(path)))
