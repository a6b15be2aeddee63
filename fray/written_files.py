"""The files that people write for Fray, in YAML or JSON: what is wrong in one is said with its file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fray_layouts.errors import InvalidInput, Malformed
from fray_layouts.parsing import REDACTED, parse_json

_LONGEST_NAME = 100
"""Characters of a file's path in an error; of a longer one only the name is shown, so that the field is."""

_REMEDIES = {
    r"found character '\\t'": "indent with blanks: YAML allows no tabs there",
    "mapping values are not allowed": "put text that holds ': ' in quotes, and indent all fields of an object alike",
    "could not find expected ':'": "write each field as NAME: VALUE",
    "found undefined alias": "put text that begins with * in quotes",
    r"found character '[%@`]'": "put text that begins with this character in quotes",
    "found unexpected end of stream": "close the quotes",
    r"expected ',' or '[\]}]'": "close the bracket, and put a comma between two entries",
}
"""By pattern of what PyYAML finds: what to do about it."""


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Name the file, or a part of it, in the InvalidInput that is raised for a field in it."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{_shown(file)}: {error.field}", error.value, error.remedy) from None


def read_documents(text: str, file: str) -> list[Any]:
    """The documents in a file's text: one of JSON, or those of YAML that are not empty.

    Raises:
        InvalidInput: it is neither, or an object in it has a field twice. The error names the file and the line.
    """
    try:
        parse_json(text)
    except Malformed as error:
        if file.endswith(".json"):
            raise InvalidInput(_place(file, text, str(error)), REDACTED, f"it is not JSON: {error}") from None
        return _read_yaml(text, file)
    with naming(file):
        return [json.loads(text, object_pairs_hook=_once)]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise InvalidInput(name, REDACTED, "it is there twice in one object; keep one of them")
        made[name] = value
    return made


def _read_yaml(text: str, file: str) -> list[Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads plain values, and refuses a key that is there twice."""

        def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
            node = super().compose_mapping_node(anchor)
            lines: dict[str, int] = {}
            for key, _ in node.value:
                line = key.start_mark.line + 1
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if before := lines.get(key.value):
                        remedy = f"it is there twice, in line {before} and in line {line}; keep one of them"
                        raise InvalidInput(f"{_shown(file)}: {key.value}", REDACTED, remedy)
                    lines[key.value] = line
            return node

    try:
        return [document for document in yaml.load_all(text, Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        problem = error.problem or "it cannot be read"
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        remedy = next((words for found, words in _REMEDIES.items() if re.search(found, problem)), problem)
        raise InvalidInput(f"{_shown(file)}{where}", REDACTED, f"it is not YAML: {remedy}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # its conversion of numbers raises the last two
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(_shown(file), REDACTED, f"it is not YAML: {' '.join(str(error).split())}") from None


def _place(file: str, text: str, error: str) -> str:
    """The file, with the line and column of an error of JSON that names a byte."""
    found = re.search(r"\(byte (\d+)\)", error)
    if not found:
        return _shown(file)
    before = text.encode()[: int(found[1])].decode(errors="replace")
    return f"{_shown(file)}, line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def _shown(file: str) -> str:
    return file if len(file) <= _LONGEST_NAME else Path(file).name
