"""The inbox on local files: changed times, modes and links of a file do not make it another drop."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fray_coordinator.core import LOCAL_SETTINGS, open_core
from fray_coordinator.reconcile.admission import Admission
from fray_coordinator.store.records import record_of
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import JobRecord

SPEC = msgspec.json.encode({"name": "train", "entrypoint": {"command": ["true"]}})


class Killed(BaseException):
    """Ends an agent at once."""


def touch(path: Path) -> None:
    os.utime(path, (0, 0))


def link(path: Path) -> None:
    os.link(path, path.parent.parent / "kept.json")


def copy_over(path: Path) -> None:
    """Write the same file again, as `cp -p` does."""
    with path.open("r+b") as file:
        file.truncate()
        file.write(SPEC)


def change_mode(path: Path) -> None:
    path.chmod(0o640)


def changed(root: Path, change: Callable[[Path], None]) -> None:
    for path in (root / "inbox").glob("*.json"):
        change(path)


async def jobs(root: Path) -> list[JobRecord | None]:
    core = await open_core(str(root))
    keys = [row.key for row in await core.store.list(JobKeys.area)]
    return [record_of(await core.records.read(key, JobRecord)) for key in keys]


async def statuses(root: Path) -> list[str]:
    return [job.status for job in await jobs(root) if job is not None]


@pytest.mark.parametrize("change", [touch, link, copy_over, change_mode])
@pytest.mark.parametrize("step", ["_admit", "settle_record", "_take_away"])
async def test_a_drop_whose_agent_died_and_whose_file_was_touched_is_one_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, change: Callable[[Path], None]
) -> None:
    mortal, successor = [Admission(await open_core(str(tmp_path), LOCAL_SETTINGS)) for _ in range(2)]
    (tmp_path / "inbox" / "train.json").write_bytes(SPEC)

    async def killed(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Admission, step, killed)
        with pytest.raises(Killed):
            await mortal.handle("inbox/train.json")
    changed(tmp_path, change)
    await successor.run()
    assert await statuses(tmp_path) == ["pending"]
    (job,) = await jobs(tmp_path)
    assert job is not None
    assert job.inbox is not None
    assert job.inbox.key == "inbox/train.json"
    assert list((tmp_path / "inbox").glob("*.json")) == []


@pytest.mark.parametrize("change", [touch, link, copy_over, change_mode])
async def test_a_drop_that_is_touched_while_two_agents_look_is_one_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    first, second = [Admission(await open_core(str(tmp_path), LOCAL_SETTINGS)) for _ in range(2)]
    (tmp_path / "inbox" / "train.json").write_bytes(SPEC)
    settle = Admission.settle_record

    async def late(self: Admission, *stored: object) -> None:
        if self is first:
            changed(tmp_path, change)
            await second.run()
        await settle(self, *stored)  # type: ignore[arg-type]

    monkeypatch.setattr(Admission, "settle_record", late)
    await first.run()
    assert await statuses(tmp_path) == ["pending"]


async def test_the_same_file_copied_in_again_later_is_a_new_job(tmp_path: Path) -> None:
    """The times are kept, and the file system uses the same inode again."""

    admission = Admission(await open_core(str(tmp_path / "root"), LOCAL_SETTINGS))
    source = tmp_path / "train.json"
    source.write_bytes(SPEC)
    touch(source)
    for _ in range(2):
        shutil.copy2(source, tmp_path / "root" / "inbox" / "train.json")
        await admission.run()
    assert await statuses(tmp_path / "root") == ["pending", "pending"]
