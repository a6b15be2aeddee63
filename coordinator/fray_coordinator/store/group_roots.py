"""The ownership of a local root: its owner's alone, or a group's. The mode of the root alone decides it."""

import grp
import os
from contextlib import suppress
from pathlib import Path

from fray_coordinator.store.file_tree import is_shared
from fray_layouts.errors import InvalidInput


def give_to_group(folder: Path, group: str) -> None:
    """Make `folder`, which is absent or empty, a group's root. Raises `InvalidInput`."""
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise InvalidInput(
            "group", group, "give the name of a group of this host, as `getent group` shows it"
        ) from None
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    if _group_of(folder) == gid:
        return
    if any(folder.iterdir()):
        remedy = (
            f"{folder} is not empty; give it to the group by hand: chgrp -R {group} {folder}; "
            f"chmod -R u+rwX,g+rwX,o-rwx {folder}; find {folder} -type d -exec chmod g+s {{}} +"
        )
        raise InvalidInput("group", group, remedy)
    with suppress(PermissionError):
        os.chown(folder, -1, gid)
        os.chmod(folder, 0o2770)
    if _group_of(folder) != gid:  # the system drops the set-group-id bit without a word
        remedy = f"{folder} can be given to it by its owner, who must be one of the group, or by root"
        raise InvalidInput("group", group, remedy)


def _group_of(folder: Path) -> int | None:
    status = os.stat(folder)
    return status.st_gid if is_shared(status.st_mode) else None
