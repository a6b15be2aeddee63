"""The coordinator's pass over a local root with odd paths: it goes on, names each, and serves the others."""

from __future__ import annotations

import os
from pathlib import Path

from fray_coordinator import fsck
from fray_coordinator.core import LOCAL_SETTINGS, open_core
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.records import record_of
from fray_layouts.object_keys import CoordinatorKeys
from fray_layouts.records import ReconcilerRecord

PRIVATE = "what agents may read, and who drops files may not"


def spoil(root: Path, private: Path) -> set[str]:
    """Put odd paths everywhere. Returns the keys of those with valid names."""
    private.write_text(PRIVATE)
    for area in ("inbox", "jobs", "agents"):
        folder = root / area
        folder.mkdir(exist_ok=True)
        os.mkfifo(folder / "pipe.json")
        (folder / "zeros.json").symlink_to("/dev/zero")
        (folder / "link.json").symlink_to(private)
        with (folder / "huge.json").open("wb") as file:
            file.truncate(200 * 10**9)
        (folder / "folder.json").mkdir()
    return {f"{area}/{name}.json" for area in ("inbox", "jobs", "agents") for name in ("pipe", "zeros", "link", "huge")}


async def test_the_pass_names_paths_that_are_no_files_and_admits_the_others(tmp_path: Path) -> None:
    root = tmp_path / "root"
    core = await open_core(str(root), LOCAL_SETTINGS)
    odd = spoil(root, tmp_path / "private")
    (root / "inbox/sound.json").write_text('{"name": "sound", "entrypoint": {"command": ["true"]}}')
    one = Reconciler(core, "one")
    record = ReconcilerRecord()
    while not odd <= record.problems.keys():
        assert await one.try_pass()
        record = record_of(await core.records.read(CoordinatorKeys.reconciler, ReconcilerRecord)) or record
    jobs = [row.key for row in await core.store.list("jobs/") if row.key.startswith("jobs/sound-")]
    told = {one.key for one in await fsck.check(core)}
    untold, jobs, told = (odd - told, jobs, {key.rpartition("/")[2] for key in told})
    assert untold == set()
    assert len(jobs) == 1
    assert "" in told, "the folders, by names that end in a slash"
    everything = b"".join(path.read_bytes() for path in (tmp_path / "root").rglob("sound*") if path.is_file())
    assert PRIVATE.encode() not in everything
