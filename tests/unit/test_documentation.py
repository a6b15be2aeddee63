"""The pages name only modules, files, links and a drawing that exist in the code."""

from __future__ import annotations

import ast
import re
import runpy
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from fray.cli import cli
from tests.support.pages import ROOT
from tests.support.sources import FOLDERS, texts

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "layouts").glob("*.md")]
PACKAGES = [ROOT / folder for folder in FOLDERS]
CODE = ("layouts", "coordinator", "agents", "rpc", "runtime", "fray", "tests", "benchmarks", "examples", "docs")
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
SECOND_NAMES = ("fray/cluster/ray", "fray/v1", "fray/v2")
ABSENT = {"entry_point", "fn_thunk", "iris_backend", "isolated_env", "set_job_backend"}


def path_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def files() -> list[str]:
    """Every file of the code, from the repository's root."""
    found = (path for folder in CODE for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts)
    return [f"/{path.relative_to(ROOT)}" for path in found]


def prose(page: Path) -> str:
    """A page without its blocks of code and without the names of other projects' code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^\| [^|]+", "", text, flags=re.MULTILINE) if page.name == "coming-from.md" else text


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from package.rglob("*.py")


def test_every_module_of_the_glossary_exists() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([\w.]+)` \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert len(rows) >= 50
    paths = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts)
        for package in PACKAGES
        for path in package.rglob("*.py")
    }
    assert [f"{term}: {module}" for term, module in rows if module not in paths] == []


def test_every_module_that_a_docstring_names_exists() -> None:
    """Docstrings name the modules of other folders as `folder.module`."""
    there = {f"{path.parent.name}.{path.stem}" for path in modules()}
    there |= {f"{path.parents[1].name}.{path.parent.name}" for path in modules()}
    named = re.compile(r"`((?:protocol|placements|scaling|jobs|reconcile|store|actors|fsck|tasks|runner)\.\w+)")
    found = [(path, name) for path in modules() for name in named.findall(path.read_text())]
    assert len(found) >= 10
    assert [f"{path_of(path)}: {name}" for path, name in found if name not in there] == []


def test_no_term_of_the_glossary_is_there_twice() -> None:
    terms = Counter(
        re.findall(r"^\| ([^|]+) \| [^|]+ \| `[\w.]+` \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    )
    assert [term for term, times in terms.items() if times > 1] == []


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for path, text in texts().items():
        for name in re.findall(r"^class (\w+)", text, re.MULTILINE):
            places.setdefault(name, []).append(path)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_every_folder_has_its_place_in_the_reading_order() -> None:
    folders = {str(path.parent.relative_to(ROOT)) for path in modules()}
    text = ARCHITECTURE.read_text()
    assert [
        folder for folder in sorted(folders) if not folder.startswith(SECOND_NAMES) and f"`{folder}/`" not in text
    ] == []


def test_every_file_to_begin_with_is_in_its_folder() -> None:
    rows = re.findall(r"^\| `([\w/]+)/` \| [^|]+ \| ([^|]+) \|$", ARCHITECTURE.read_text(), re.MULTILINE)
    named = [f"{folder}/{name}" for folder, names in rows for name in re.findall(r"`([^`]+)`", names)]
    assert len(named) > 25
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_every_file_that_a_flow_crosses_exists() -> None:
    _, _, after = ARCHITECTURE.read_text().partition("## Six flows")
    flows = after.partition("\n## ")[0].split("\n### ")[1:]
    assert len(flows) == 6
    for flow in flows:
        crossed = re.findall(r"`((?:fray|agents|coordinator|layouts|rpc|runtime)/[\w/]+\.py)`", flow)
        assert 5 < len(set(crossed)) <= 8, "a flow that crosses more files is not held in the head"
        assert [path for path in crossed if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"`([\w./-]+\.(?:py|txt|mjs|svg))(?:::\w+)?`", prose(page))) - {"requirements.txt"}  # users'
    assert [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in files())] == []


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_every_name_with_an_underscore_is_one_of_the_code(page: Path) -> None:
    """Fields, functions and settings. docs/jobs.md also has some names that programs ask for in vain."""
    named = {name for span in re.findall(r"`([^`\n]+)`", prose(page)) for name in re.findall(r"[A-Za-z]*_\w+", span)}
    assert sorted(named - words() - ABSENT) == []


@cache
def words() -> set[str]:
    """Every word of the code, and of the names of its files."""
    texts = [path.read_text() for path in map(ROOT.joinpath, ("Makefile", "pyproject.toml"))]
    texts += [(ROOT / path[1:]).read_text() for path in files() if path.endswith((".py", ".pyi", ".mjs"))]
    return set(re.findall(r"\w+", "\n".join([*texts, *files()])))


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def paragraphs(page: Path) -> Iterator[str]:
    """The paragraphs and the items of lists, without tables and indented code; of a link only its text."""
    text = re.sub(r"\]\(\S+?\)", "]", prose(page))
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=\s*\|)", text):
        if not re.match(r" {4}|\s*[|#]", block):
            yield " ".join(block.split())


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_no_paragraph_is_long(page: Path) -> None:
    assert [block for block in paragraphs(page) if len(block.split()) > 120] == []


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_a_page_names_the_section_that_it_means(page: Path) -> None:
    vague = re.compile(r"\b(?:as|see|described|mentioned|shown|listed) (?:above|below|earlier|later)\b", re.IGNORECASE)
    assert vague.findall(" ".join(prose(page).split())) == []


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that may follow '#': the headings, as GitHub and GitLab write them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_drawing_matches_its_text() -> None:
    draw = runpy.run_path(str(ROOT / "docs/draw.py"))["draw"]
    drawn = draw((ROOT / "docs/architecture.txt").read_text())
    assert drawn == (ROOT / "docs/architecture.svg").read_text(), "run `make drawing`"


def test_the_list_of_pages_has_every_page() -> None:
    listed = set(re.findall(r"\]\((\S+?)\)", (ROOT / "docs/README.md").read_text()))
    assert listed >= {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}


HEADS = ("main.py", "README.md", "src/*/__init__.py", "*/fray.yaml")
"""Where an example says what it is, from its folder."""


@pytest.mark.parametrize("example", sorted((ROOT / "examples").iterdir()), ids=lambda example: example.name)
def test_the_first_lines_of_an_example_say_how_it_runs_on_ray(example: Path) -> None:
    heads = [path for pattern in HEADS for path in example.glob(pattern)]
    assert heads
    for head in heads:
        text = head.read_text()
        said = ast.get_docstring(ast.parse(text)) if head.suffix == ".py" else text[:1000]
        assert re.search(r"\bRay\b", said or ""), head


def test_the_readme_names_every_command() -> None:
    named = set(re.findall(r"\bfray (\w+)", (ROOT / "README.md").read_text()))
    assert named >= set(cli.list_commands(click.Context(cli)))
