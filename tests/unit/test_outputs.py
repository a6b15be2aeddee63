"""A task's outputs are found, stored and fetched again, for any kind of file and any answer of the storage."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from fray.cluster import pulling
from fray.cluster.job_files import Entry, JobFile, file_pieces, find_file, list_entries
from fray.cluster.pulling import pull_outputs, read_manifest, slices_of
from fray.errors import NoOutputs
from fray_agents.tasks import output_files
from fray_agents.tasks.output_files import FoundOutputs, OutputsTooLarge, find_outputs
from fray_agents.tasks.task_handle import TaskHandle
from fray_agents.tasks.upload import upload_outputs
from fray_coordinator.core import Core, open_core
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import JobKeys
from fray_layouts.path_patterns import PathMatch
from fray_layouts.records import JobRecord, OutputManifest
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.work_keys import WorkKeys

FILES = {"ck/1/a.pt": b"a" * 25, "ck/2/b.pt": b"b" * 7, "ck/empty": b"", "log.txt": b"log", "x/log.txt": b"no"}
MANIFEST = WorkKeys.outputs("j-1", 2, 0)


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("ck/**", ["ck/1/a.pt", "ck/2/b.pt", "ck/empty"]),
        ("ck", ["ck/1/a.pt", "ck/2/b.pt", "ck/empty"]),
        ("ck/*/", ["ck/1/a.pt", "ck/2/b.pt", "ck/empty"]),
        ("**/*.pt", ["ck/1/a.pt", "ck/2/b.pt"]),
        ("*.txt", ["log.txt"]),
        ("**/log.txt", ["log.txt", "x/log.txt"]),
        ("ck/[2-9]/?.pt", ["ck/2/b.pt"]),
        ("**", sorted(FILES)),
        ("nothing/**", []),
    ],
)
def test_a_pattern_names_files_by_their_paths(tmp_path: Path, pattern: str, paths: list[str]) -> None:
    fill(tmp_path)
    assert [file.path for file in find_outputs(tmp_path, [pattern]).files] == paths
    assert [path for path in sorted(FILES) if PathMatch.of([pattern]).has(path)] == paths


def test_many_stars_cost_no_more_than_a_few() -> None:
    match = PathMatch.of(["**/" * 200 + "x", "**/a/" * 100 + "x"])
    assert match.has("a/" * 100 + "x")
    assert not match.has("a/" * 100 + "y")


def test_links_lead_to_files_inside_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    work = tmp_path / "work"
    fill(work)
    for name, leads_to in (
        ("same", "log.txt"),
        ("outside", "../secret"),
        ("absolute", str(tmp_path / "secret")),
        ("folder", "ck"),
        ("loop", "."),
        ("gone", "nowhere"),
        ("itself", "itself"),
    ):
        (work / name).symlink_to(leads_to)
    os.mkfifo(work / "pipe")
    (work / os.fsdecode(b"\xff")).touch()
    found = find_outputs(work, ["*"])
    assert {file.path: read(found, file.path) for file in found.files} == {
        **{path: data for path, data in FILES.items() if "/" not in path or path[0] in "cx"},
        "same": b"log",
    }
    left_out = {each.path: each.why for each in found.left_out}
    assert set(left_out) == {"outside", "absolute", "folder", "loop", "gone", "itself", "pipe", r"\udcff"}
    assert "leads out" in left_out["outside"]
    assert "FIFO" in left_out["pipe"]


def test_more_files_or_bytes_than_are_kept_are_an_error_that_says_so(tmp_path: Path) -> None:
    fill(tmp_path)
    with (
        mock.patch.object(output_files, "MAX_OUTPUT_FILES", 4),
        pytest.raises(OutputsTooLarge, match="more than 4 files"),
    ):
        find_outputs(tmp_path, ["**"])
    with (
        mock.patch.object(output_files, "MAX_OUTPUT_BYTES", 30),
        pytest.raises(OutputsTooLarge, match="more than 30 B"),
    ):
        find_outputs(tmp_path, ["**"])
    found = find_outputs(tmp_path, ["**"])
    (tmp_path / "log.txt").write_bytes(b"it grows" * 10)
    with mock.patch.object(output_files, "MAX_OUTPUT_BYTES", 50), pytest.raises(OutputsTooLarge):
        list(found.parts(OutputManifest()))


def test_outputs_come_back_byte_for_byte(tmp_path: Path) -> None:
    fill(tmp_path / "work")
    (tmp_path / "work/ck/1/a.pt").chmod(0o755)

    async def scenario(core: Core, job: JobRecord) -> list[str]:
        pulled = await pull_outputs(core, job, tmp_path / "got")
        assert (pulled.size, len(pulled.files)) == (35, 4)
        return [row.key for row in await core.store.list("work/")]

    keys = with_outputs(tmp_path, ["ck", "log.txt"], scenario)
    assert keys == [MANIFEST, *(WorkKeys.output_part(MANIFEST, number) for number in (1, 2, 3, 4))]
    assert content(tmp_path / "got") == {path: data for path, data in FILES.items() if path[0] != "x"}
    assert os.access(tmp_path / "got/ck/1/a.pt", os.X_OK)
    assert not os.access(tmp_path / "got/log.txt", os.X_OK)


@pytest.mark.parametrize(
    ("path", "files", "parts"), [("ck/2", ["ck/2/b.pt"], 2), ("log.txt", ["log.txt"], 1), ("**/e*", ["ck/empty"], 0)]
)
def test_one_path_costs_only_the_parts_that_it_is_in(tmp_path: Path, path: str, files: list[str], parts: int) -> None:
    fill(tmp_path / "work")

    async def scenario(core: Core, job: JobRecord) -> int:
        before = core.store.usage.snapshot()
        await pull_outputs(core, job, tmp_path / "got", path)
        return (core.store.usage - before).reads

    assert with_outputs(tmp_path, ["ck", "log.txt"], scenario) == 1 + parts
    assert content(tmp_path / "got") == {path: FILES[path] for path in files}


def test_any_range_of_a_file_costs_only_the_parts_that_it_is_in(tmp_path: Path) -> None:
    whole, begin = bytes(range(25)), 25

    async def scenario(core: Core, job: JobRecord) -> None:
        manifest = await read_manifest(core, job)
        place = next(each for each in slices_of(manifest) if each.file.path == "x/b.bin")
        for start in range(len(whole) + 1):
            for end in [None, *range(len(whole) + 3)]:
                before = core.store.usage.snapshot()
                file = JobFile(job, manifest, place)
                assert b"".join([piece async for piece in file_pieces(core, file, start, end)]) == whole[start:end]
                last = min(len(whole), len(whole) if end is None else end)
                touched = {(begin + each) // 10 for each in range(start, last)}
                assert (core.store.usage - before).reads == len(touched)

    with mock.patch.dict(FILES, {"x/b.bin": whole}):
        fill(tmp_path / "work")
        with_outputs(tmp_path, ["ck/1", "x/b.bin"], scenario)


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "ck/../../up", "ck//a", "./a", "", "a\0b"])
def test_a_path_in_a_manifest_never_leads_outside(tmp_path: Path, path: str) -> None:
    fill(tmp_path / "work")

    async def scenario(core: Core, job: JobRecord) -> None:
        manifest = {"files": [{"path": "fine", "size": 1}, {"path": path, "size": 1}]}
        await core.store.put(MANIFEST, msgspec.json.encode(manifest), ANY)
        with pytest.raises(NoOutputs, match="leads out of the folder"):
            await pull_outputs(core, job, tmp_path / "deep/got")

    with_outputs(tmp_path, ["ck"], scenario)
    assert not (tmp_path / "deep").exists()


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    fill(tmp_path / "work")
    for name in ("got", "elsewhere", "replaced"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere/file").write_text("mine")
    (tmp_path / "got/ck").symlink_to("../elsewhere")
    (tmp_path / "replaced/log.txt").symlink_to("../elsewhere/file")

    async def scenario(core: Core, job: JobRecord) -> None:
        with pytest.raises(NoOutputs, match="is a link"):
            await pull_outputs(core, job, tmp_path / "got")
        await pull_outputs(core, job, tmp_path / "replaced")

    with_outputs(tmp_path, ["ck", "log.txt"], scenario)
    assert content(tmp_path / "elsewhere") == {"file": b"mine"}
    assert (tmp_path / "replaced/log.txt").read_bytes() == b"log"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({MANIFEST: None}, "there is no object"),
        ({MANIFEST: b"{"}, "lists no outputs"),
        ({MANIFEST: b'{"files":[{"path":"a","size":1}],"part_bytes":0}'}, "part_bytes: 0 is not accepted"),
        ({MANIFEST: b'{"files":[{"path":"a","size":9007199254740992}]}'}, "too short"),
        ({MANIFEST: b'{"files":[{"path":"a","size":1},{"path":"a/b","size":1}],"part_bytes":10}'}, "a is a file"),
        ({WorkKeys.output_part(MANIFEST, 2): None}, "there is no object"),
        ({WorkKeys.output_part(MANIFEST, 2): b"xxx"}, "part 2 is too short"),
    ],
)
def test_outputs_that_are_gone_or_damaged_are_told_in_words(
    tmp_path: Path, damage: dict[str, bytes | None], words: str
) -> None:
    fill(tmp_path / "work")

    async def scenario(core: Core, job: JobRecord) -> None:
        for key, data in damage.items():
            await (core.store.delete(key) if data is None else core.store.put(key, data, ANY))
        with pytest.raises(NoOutputs, match=words):
            await pull_outputs(core, job, tmp_path / "got")

    with_outputs(tmp_path, ["ck"], scenario)
    assert set(content(tmp_path / "got")) <= {"a"}, "no file is there by half"


def test_a_job_without_outputs_says_how_it_would_have_some(tmp_path: Path) -> None:
    fill(tmp_path / "work")

    async def scenario(core: Core, job: JobRecord) -> None:
        for changes, words in (
            ({"status": "running"}, "is running"),
            ({"outputs": None}, r"JobRequest\(outputs="),
        ):
            with pytest.raises(NoOutputs, match=words):
                await pull_outputs(core, msgspec.structs.replace(job, **changes), tmp_path / "got")
        with pytest.raises(NoOutputs, match=r"no output nix; there is ck/1/a.pt, ck/2/b.pt, ck/empty"):
            await pull_outputs(core, job, tmp_path / "got", "nix")

    with_outputs(tmp_path, ["ck"], scenario)


def test_many_small_files_cost_few_calls_to_threads_and_each_folder_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"d/{n % 3}/{n}": b"%d" % n for n in range(1000)}
    for path, data in files.items():
        (tmp_path / "work" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / path).write_bytes(data)
    calls: list[str] = []
    made: list[Path] = []
    seen: list[int] = []
    to_thread, mkdir = asyncio.to_thread, Path.mkdir

    async def counted(call: Callable[..., Any], *words: Any, **options: Any) -> Any:
        calls.append(call.__module__)
        return await to_thread(call, *words, **options)

    def noted(folder: Path, *words: Any, **options: Any) -> None:
        made.append(folder)
        mkdir(folder, *words, **options)

    async def pull(core: Core, job: JobRecord) -> None:
        monkeypatch.setattr(asyncio, "to_thread", counted)
        monkeypatch.setattr(Path, "mkdir", noted)
        await pull_outputs(core, job, tmp_path / "there", on_bytes=lambda done, total: seen.append(done))

    with_outputs(tmp_path, ["d"], pull, part_bytes=100)
    assert content(tmp_path / "there") == files
    assert calls.count(pulling.__name__) <= 1000 / pulling.SMALL_FILES_AT_ONCE
    assert sorted(folder.name for folder in made if folder.parent.name == "d") == ["0", "1", "2"]
    assert seen == sorted(seen)
    assert seen[-1] == sum(map(len, files.values()))


def fill(folder: Path) -> None:
    for path, data in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read(found: FoundOutputs, path: str) -> bytes:
    file = next(file for file in found.files if file.path == path)
    with file.open() as opened:
        return opened.read()


@pytest.mark.parametrize("name", ["logs", "logs/day"])
def test_an_output_named_logs_takes_the_place_of_the_log(tmp_path: Path, name: str) -> None:
    async def scenario(core: Core, job: JobRecord) -> None:
        await core.records.write(JobKeys.key(job.id), JobRecord, job, None)
        is_folder = name != "logs"
        assert await list_entries(core, job.id) == [Entry(f"{job.id}/logs", 0 if is_folder else 4, is_folder)]
        if is_folder:
            with pytest.raises(NoOutputs, match="is a folder"):
                await find_file(core, f"{job.id}/logs")
        file = await find_file(core, f"{job.id}/{name}")
        assert b"".join([piece async for piece in file_pieces(core, file)]) == b"mine"

    with mock.patch.dict(FILES, {name: b"mine"}, clear=True):
        fill(tmp_path / "work")
        with_outputs(tmp_path, ["logs/**", "logs"], scenario)


def with_outputs(
    folder: Path, patterns: list[str], scenario: Callable[[Core, JobRecord], Awaitable[Any]], part_bytes: int = 10
) -> Any:
    """The scenario's result, for a succeeded job whose outputs are the files in `work` that match the patterns."""

    async def run() -> Any:
        core = await open_core(f"memory://outputs-{folder}")
        spec = parse_spec({"name": "j", "entrypoint": {"command": ["true"]}, "outputs": patterns})
        job = JobRecord(id="j-1", spec=spec, status="succeeded", attempt=2)
        task = mock.Mock(spec=TaskHandle, find_outputs=lambda patterns: find_outputs(folder / "work", patterns))
        kept = await upload_outputs(core, job, 0, task, lambda request: request())
        return await scenario(core, msgspec.structs.replace(job, outputs=kept))

    with mock.patch("fray_agents.tasks.upload.OutputManifest", lambda **f: OutputManifest(part_bytes=part_bytes, **f)):
        return asyncio.run(run())
