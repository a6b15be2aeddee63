"""Without git, the files of a workspace are those that git would list, whatever its ignore files say."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from fray.errors import InvalidInput
from fray.workspace.selection import IgnoreRules, workspace_files

FILES = (
    *(
        "abc",
        "cab",
        "bc",
        "c",
        "a/a",
        "a/b/c",
        "a/ab/abc",
        "ab/a",
        "ab/b/c",
        "b/a",
        "b/c/d",
        "b/x/a",
        "x/y/z/a",
        "a.py",
    ),
    *("!", "#x", "a]b", "a-c", "[a]", "a*b", "a\\b", "sp ", "tab\t", "c\xe4/\xe4", "\xe9/a", "b/a.py", "two words"),
)
WORDS = (
    *("a", "b", "c", "ab", "x", "z", ".py", "\xe4", "\xe9", "*", "**", "***", "?", "/", "/**", "**/", "/*", "!", "#"),
    *(" ", "\t", "\r", "\ufeff", "\\", "\\*", "\\ ", "[", "]", "-", "[ab]", "[!a]", "[^b-c]", "[a-", "[]a]", "[a\\]]"),
    *("[[:alpha:]]", "[[:foo:]]", "[[:]", "[\\b-c]", "[--0]", "[!]a-]", "[\xe4]"),
)
"""Parts of patterns. Any sequence of them is a line that git takes somehow."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with files that are named like patterns; it is no repository, but one elsewhere can list it."""
    for name in FILES:
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    subprocess.run(["git", "init", "--quiet", "--bare", tmp_path / "git"], check=True)
    return tmp_path / "project"


def seen_by_git(project: Path) -> set[str]:
    places = [f"--git-dir={project.parent}/git", f"--work-tree={project}", "-c", "core.bare=false"]
    listing = subprocess.run(
        ["git", *places, "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=project,
        env={"PATH": os.environ["PATH"], "HOME": str(project.parent)},
        check=True,
        capture_output=True,
    ).stdout
    return {os.fsdecode(name) for name in listing.split(b"\0") if name}


def seen_without_git(project: Path) -> set[str]:
    try:
        return {file.name for file in workspace_files(project)}
    except InvalidInput:  # nothing is left
        return set()


@pytest.mark.parametrize(
    ("rules", "kept", "left_out"),
    [
        ({"": "*\n!*/\n!*.py\n"}, ["a.py", "b/a.py"], ["abc", "b/a"]),
        ({"": "\ufeffabc\nbc\n"}, ["c"], ["abc", "bc", "a/ab/abc"]),
        ({"": "a/**\n!a/b/\n!a/b/c\n"}, ["a/b/c"], ["a/a", "a/ab/abc"]),
        ({"": "b/\n!b/c/d\n"}, ["a/a"], ["b/c/d", "a/b/c"]),
        ({"": "*\n", "a": "!a\n"}, [], ["a/a", "c"]),
        ({"": "sp \ntab\t\ntwo\\ words\n"}, ["sp "], ["tab\t", "two words"]),
        ({"": "abc\r\nbc\x0bc\r\n"}, ["bc"], ["abc"]),
    ],
)
def test_forms_that_are_easily_mistaken(
    project: Path, rules: dict[str, str], kept: list[str], left_out: list[str]
) -> None:
    for folder, text in rules.items():
        (project / folder / ".gitignore").write_text(text, newline="")
    found = seen_without_git(project)
    assert found == seen_by_git(project)
    assert found.issuperset(kept)
    assert found.isdisjoint(left_out)


def test_any_patterns_mean_what_they_mean_to_git(project: Path) -> None:
    chance, results = random.Random(5), set()
    for _ in range(60):
        folders = chance.sample(["", "a", "ab", "b"], k=chance.choice([1, 1, 2]))
        for folder in folders:
            lines = [
                chance.choice(["", "!", "/"]) + "".join(chance.choices(WORDS, k=chance.randint(1, 4))) for _ in "123"
            ]
            (project / folder / ".gitignore").write_text("\n".join(lines) + chance.choice(["", "\n"]), newline="")
        written = {folder: (project / folder / ".gitignore").read_bytes() for folder in folders}
        expected = seen_by_git(project)
        assert seen_without_git(project) == expected, written
        results.add(frozenset(expected))
        for folder in folders:
            (project / folder / ".gitignore").unlink()
    assert len(results) > 15, "the patterns hardly matter"


def test_an_ignore_file_that_is_a_link_counts_for_nothing_as_for_git(project: Path) -> None:
    (project.parent / "rules").write_text("*\n")
    (project / ".gitignore").symlink_to("../rules")
    found = seen_by_git(project)
    assert "abc" in found
    assert seen_without_git(project) == found


def test_a_frayignore_has_the_same_meaning_with_and_without_git(project: Path) -> None:
    (project / ".frayignore").write_text("\ufeff*\n!*/\n!*.py\n")
    assert seen_without_git(project) == {"a.py", "b/a.py"}
    shutil.copytree(project.parent / "git", project / ".git")
    subprocess.run(["git", "-C", project, "config", "core.bare", "false"], check=True)
    assert seen_without_git(project) == {"a.py", "b/a.py"}


def test_lines_that_can_match_nothing_are_known() -> None:
    rules = IgnoreRules(b"[b-a]\na\n[\n\\\n/\n# x\n\n[[:foo:]]\n")
    assert rules.meaningless == [b"[", b"\\", b"/", b"[[:foo:]]"]
