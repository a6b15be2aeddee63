"""The test vectors in the repository match what the code computes, and the contract names each file."""

from __future__ import annotations

import json
from pathlib import Path

import fray_layouts
from tests.vectors.__main__ import files

LAYOUTS = Path(fray_layouts.__file__).parents[1]


def test_the_vectors_match_the_code() -> None:
    found = {path.name: path.read_bytes() for path in (LAYOUTS / "vectors").iterdir()}
    assert found == dict(files()), (
        "run `make vectors`, commit what it changes, and see whether the contract says it too"
    )


def test_the_contract_names_every_file_of_vectors() -> None:
    text = "".join(path.read_text() for path in LAYOUTS.glob("*.md"))
    assert [name for name, _ in files() if f"`{name.removesuffix('.json')}`" not in text] == []


def test_every_file_says_what_it_is_about() -> None:
    for name, content in files():
        told = json.loads(content)
        assert told["about"], name
        assert all(case.keys() == {"case", "input", "expected"} for case in told["cases"]), name
