"""The examples that need Zephyr run as README.md and docs/ show them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.pages import PAGES, program, run

WITH_EXAMPLES = [page for page in PAGES if program(page, "zephyr")]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.stem)
def test_the_examples_run(page: Path, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for part in range(3):
        lines = [json.dumps({"text": f"{part} {number} " * 40}) for number in range(5)]
        (tmp_path / "raw" / f"{part}.jsonl").write_text("\n".join(lines))
    run(program(page, "zephyr"), page, tmp_path)
    assert len([*(tmp_path / "clean").glob("part-*")]) == 3
