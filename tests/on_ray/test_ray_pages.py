"""The examples that need Ray run as README.md and docs/ show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import PAGES, program, run

WITH_EXAMPLES = [page for page in PAGES if program(page, "ray").strip()]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.stem)
def test_the_examples_run_on_ray(page: Path, local_ray: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", local_ray)
    run(program(page, "ray"), page, tmp_path)
