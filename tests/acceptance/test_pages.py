"""The programs in README.md and docs/ run, and every public name is described there and used in an example."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import fray
from tests.support.pages import NEEDS, PAGES, README, described, program, public_names, run, used

QUICK = {"queues"}
WITH_EXAMPLES = [
    pytest.param(page, id=page.stem, marks=[] if page.stem in QUICK else [pytest.mark.slow])
    for page in PAGES
    if page != README and program(page)
]
NAMES = public_names()


@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_the_examples_run(page: Path, tmp_path: Path) -> None:
    run(program(page), page, tmp_path)


def test_the_readmes_programs_print_the_expected_output(tmp_path: Path) -> None:
    counted = [len(Path(path).read_text().splitlines()) for path in ("/etc/hosts", "/etc/passwd")]
    items = "".join(f"{number}\n" for number in range(10))
    assert run(program(README), README, tmp_path) == f"{counted}\neasy\nhard\n{items}[1, 2, 3]\n[0, 1, 2]\n"


def test_every_block_has_a_known_mark() -> None:
    marks = {mark for page in PAGES for mark in re.findall(r"^```python ?(.*)$", page.read_text(), re.MULTILINE)}
    assert marks <= set(NEEDS)


@pytest.mark.parametrize("module", NAMES)
def test_every_public_name_is_described(module: str) -> None:
    names = set().union(*map(described, PAGES))
    missing = ", ".join(name for name in NAMES[module] if name not in names)
    assert not missing, f"no page describes {missing} of {module}"


@pytest.mark.parametrize("module", NAMES)
def test_every_public_name_is_used_in_an_example_that_runs(module: str) -> None:
    names = set().union(*(used(program(page, needs)) for page in PAGES for needs in ("", "zephyr")))
    missing = ", ".join(name for name in NAMES[module] if name not in names)
    assert not missing, f"no example uses {missing} of {module}"


def test_every_method_of_a_public_class_has_a_docstring() -> None:
    classes = [found for found in (getattr(fray, name) for name in dir(fray)) if inspect.isclass(found)]
    missing = [
        f"{found.__name__}.{name}"
        for found in classes
        for name, _ in inspect.getmembers(found, lambda it: inspect.isroutine(it) or isinstance(it, property))
        if not name.startswith("_") and not inspect.getdoc(inspect.getattr_static(found, name))
    ]
    assert not missing
