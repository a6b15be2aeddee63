"""Generates JSON Schemas of the records and of the spec from the structs: `python -m fray_layouts.schemas DIRECTORY`.

The schemas of records allow unknown fields, because a newer version may have added them. The schemas of files that
people write refuse unknown fields, because there these are typing errors. Schemas describe shapes; `parse_spec` checks
values.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fray_layouts import parsing, pool_file, queue_records, records, spec, spec_parsing

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS: dict[str, type[msgspec.Struct]] = {
    "agent": records.AgentRecord,
    "agent-pool": records.AgentPoolRecord,
    "checkpoint-head": records.CheckpointHead,
    "child-entry": records.ChildEntry,
    "cluster": records.ClusterSettings,
    "doorbell": records.Doorbell,
    "endpoint": records.EndpointRecord,
    "fray-file": pool_file.FrayFile,
    "job": records.JobRecord,
    "machine": records.MachineRecord,
    "name": records.NameRecord,
    "reconciler": records.ReconcilerRecord,
    "output-manifest": records.OutputManifest,
    "pending-entry": records.PendingEntry,
    "placement-entry": records.PlacementEntry,
    "plan": records.PoolPlan,
    "pool": queue_records.PoolRecord,
    "queue": queue_records.QueueRecord,
    "queue-finished": queue_records.FinishedSegments,
    "queue-receipt": queue_records.Receipt,
    "queue-lease": queue_records.QueueLease,
    "queue-segment-header": queue_records.SegmentHeader,
    "rejection": records.Rejection,
    "replica-exit": records.ReplicaExit,
    "reservation": records.ReservationRecord,
    "rpc-keys": records.RpcSecrets,
    "scaler": records.ScalerRecord,
    "spec": spec.JobSpec,
}
"""By name of the schema's file, without `.json`: the struct that it describes."""
CLOSED_SCHEMAS = frozenset({"fray-file", "spec"})

_OTHER_NAMES = {spec.ResourceSpec.__name__: spec_parsing.ALIASES["resources"]}
"""The other names of fields that are accepted, by struct."""

_STRUCTS = {
    name: kind
    for module in (pool_file, queue_records, queue_records, records, spec)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
}
_ATTRIBUTE = re.compile(r" {4}(?P<names>\w+(?:, \w+)*): (?P<text>.*(?:\n {8}.*)*)")


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema `name` of `SCHEMAS`."""
    made = msgspec.json.schema(SCHEMAS[name])
    for title, part in made["$defs"].items():
        _describe(part, _STRUCTS[title])
    if name in CLOSED_SCHEMAS:
        _close(made["$defs"])
    return {"$schema": SCHEMA_DIALECT, **made}


def files() -> Iterator[tuple[str, bytes]]:
    """File name and content of every schema."""
    for name in SCHEMAS:
        yield f"{name}.json", msgspec.json.format(msgspec.json.encode(schema(name)), indent=2) + b"\n"


def _describe(part: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    """Put the text of the docstrings into the schema as descriptions."""
    part["description"] = _docstring(kind).partition("\n\nAttributes:")[0]
    for base in reversed(kind.__mro__):
        for field, text in _attributes(base):
            if field in part["properties"]:
                part["properties"][field] = {"description": text, **part["properties"][field]}


def _attributes(kind: type) -> Iterator[tuple[str, str]]:
    section = _docstring(kind).partition("\n\nAttributes:\n")[2]
    for entry in _ATTRIBUTE.finditer(section):
        for field in entry["names"].split(", "):
            yield field, " ".join(entry["text"].split())


def _docstring(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "")


def _close(parts: dict[str, Any]) -> None:
    """Refuse unknown fields in every part, and add the accepted other names of fields, and text with a unit."""
    for title, part in parts.items():
        part["additionalProperties"] = False
        properties = part["properties"]
        for field, kind in parsing.types_of(_STRUCTS[title]).items():
            if kind.unit:
                number = properties[field]
                about = {key: number.pop(key) for key in ("description", "default")}
                properties[field] = {**about, "anyOf": [*number.get("anyOf", [number]), {"type": "string"}]}
        properties |= {other: properties[usual] for other, usual in _OTHER_NAMES.get(title, {}).items()}


def main(directory: Path) -> None:
    """Write every schema into `directory`, and delete all other JSON files there."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.glob("*.json"):
        path.unlink()
    for name, content in files():
        (directory / name).write_bytes(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
