"""The keys of the objects that the attempts of a job write; see `object_keys`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fray_layouts.key_encoding import ATTEMPT_PATTERN, NUMBER_PATTERN, is_id, is_name

_OF_ATTEMPT = "(?:log-[0-9]{8}|result|outputs(?:-[0-9]{8})?)"
_ATTEMPT_KEY = re.compile(rf"work/([^/]+)/{ATTEMPT_PATTERN}/(?:{NUMBER_PATTERN}/{_OF_ATTEMPT}|exits/{NUMBER_PATTERN})")
_EXIT_KEY = re.compile(rf"work/[^/]+/{ATTEMPT_PATTERN}/exits/{NUMBER_PATTERN}")


class WorkKeys:
    """`work/<job_id>/<attempt>/<replica>/...`: the objects of an attempt; only its holder creates them."""

    area = "work/"

    @staticmethod
    def prefix(job_id: str) -> str:
        return f"work/{job_id}/"

    @staticmethod
    def log(job_id: str, attempt: int, replica: int, number: int) -> str:
        """The key of log chunk `number`, counted from 1."""
        return f"{WorkKeys.log_prefix(job_id, attempt, replica)}{number:08d}"

    @staticmethod
    def log_prefix(job_id: str, attempt: int, replica: int) -> str:
        return f"work/{job_id}/{attempt}/{replica}/log-"

    @staticmethod
    def parse_log(key: str) -> int | None:
        """The number of a log chunk by its key; None for any other key."""
        head, _, number = key.rpartition("-")
        return int(number) if head.endswith("/log") and WorkKeys.parse(key) is not None else None

    @staticmethod
    def result(job_id: str, attempt: int, replica: int) -> str:
        return f"work/{job_id}/{attempt}/{replica}/result"

    @staticmethod
    def exit(job_id: str, attempt: int, replica: int) -> str:
        """The key of the end of one replica of a gang."""
        return f"{WorkKeys.exits(job_id, attempt)}{replica}"

    @staticmethod
    def exits(job_id: str, attempt: int) -> str:
        """The prefix of the keys of all replicas' ends in an attempt."""
        return f"work/{job_id}/{attempt}/exits/"

    @staticmethod
    def parse_exit(key: str) -> int | None:
        """The number of the replica; None for any other key."""
        found = _EXIT_KEY.fullmatch(key)
        return int(found[2]) if found else None

    @staticmethod
    def outputs(job_id: str, attempt: int, replica: int) -> str:
        """The key of the manifest of an attempt's output files."""
        return f"work/{job_id}/{attempt}/{replica}/outputs"

    @staticmethod
    def output_part(manifest: str, number: int) -> str:
        """The key of part `number`, counted from 1, of the files that the manifest lists."""
        return f"{manifest}-{number:08d}"

    @staticmethod
    def parse(key: str) -> tuple[str, int] | None:
        """(job, attempt) of a key; attempt 0 for checkpoints, which belong to all attempts; None for any other key."""
        if (number := CheckpointKey.parse(key)) is not None:
            return number.job, 0
        found = _ATTEMPT_KEY.fullmatch(key)
        return (found[1], int(found[2])) if found and is_id(found[1]) else None


_CHECKPOINT_KEY = re.compile(r"work/([^/]+)/checkpoints/([^/]+)/([0-9]{12})")


@dataclass(frozen=True, slots=True)
class CheckpointKey:
    """`work/<job_id>/checkpoints/<actor>/<number>`: one create-only sequence for all attempts of a durable actor."""

    job: str
    actor: str
    number: int

    @staticmethod
    def prefix(job_id: str, actor: str) -> str:
        return f"work/{job_id}/checkpoints/{actor}/"

    def key(self) -> str:
        """`number` counts from 1."""
        return f"{CheckpointKey.prefix(self.job, self.actor)}{self.number:012d}"

    @staticmethod
    def parse(key: str) -> CheckpointKey | None:
        found = _CHECKPOINT_KEY.fullmatch(key)
        if found is None or not is_id(found[1]) or not is_name(found[2]):
            return None
        return CheckpointKey(found[1], found[2], int(found[3]))
