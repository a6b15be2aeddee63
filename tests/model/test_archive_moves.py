"""The archive: two movers, one of which may die, a reader, and an admission that comes late, and a sweep of blobs."""

from __future__ import annotations

import pytest

from tests.model.archiveworld import ArchiveWorld, Rules
from tests.model.explorer import Found, explore


def explored(rules: Rules, until: str = "") -> Found:
    world = ArchiveWorld(rules)
    return explore(world.start, world.steps, world.good, world.broken, until=until)


def test_a_record_is_always_found_moves_with_its_last_change_and_keeps_its_blob() -> None:
    assert explored(Rules()).holes == {}


@pytest.mark.parametrize(
    ("rule", "hole"),
    [
        ("copies_first", "the job has no record"),
        ("deletes_by_version", "a change was lost"),
        ("copies_by_version", "a change was lost"),
        ("jobs_first", "a reader found no record"),
        ("admission_looks", "the job runs again"),
        ("keeps_blobs", "a blob was swept that a job needs"),
        ("keeps_blobs_first", "a blob was swept that a job needs"),
        ("sweep_reads_jobs_first", "a blob was swept that a job needs"),
    ],
)
def test_without_the_rule_a_record_is_lost_missed_or_runs_again_or_a_blob_is_lost(rule: str, hole: str) -> None:
    assert hole in explored(Rules(**{rule: False}), until=hole).holes
