"""The keys of the objects that the attempts of a job write, and of files in the inbox; see `object_keys`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fray_layouts.key_encoding import (
    ATTEMPT_PATTERN,
    BASE32_DIGITS,
    MAX_KEY_PART_BYTES,
    NUMBER_PATTERN,
    RANDOM_DIGITS,
    TIME_DIGITS,
    decode_time,
    encode_time,
    is_id,
    is_name,
)

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


_VISIBLE = r"[^/\x00-\x1f\x7f\ud800-\udfff]"
_DROP = re.compile(rf"inbox/(?!\.){_VISIBLE}+\.json")
_REJECTED = re.compile(rf"inbox/rejected/({_VISIBLE}+)\.([A-Za-z0-9-]{{0,64}})\.json")
_ASIDE = re.compile(rf"inbox/aside/({_VISIBLE}+)~([A-Za-z0-9-]{{0,64}})~([A-Za-z0-9-]{{1,32}})")
_TAKEN_IN = re.compile(rf"~([{BASE32_DIGITS}]{{{TIME_DIGITS}}})[{BASE32_DIGITS}]{{{RANDOM_DIGITS}}}\.json$")
_MAX_STEM_BYTES = 150
"""Bytes of a drop's name that its derived names keep, so that these fit into a key as well."""


class InboxKeys:
    """The keys `inbox/<name>.json`, written by people, and `inbox/rejected/` and `inbox/aside/`, written by Fray."""

    area = "inbox/"
    rejected_prefix = "inbox/rejected/"
    behind_rejections = "inbox/rejected0"
    """Sorts after all names under `rejected_prefix`."""
    aside_prefix = "inbox/aside/"

    @staticmethod
    def is_drop(key: str) -> bool:
        """Whether the key is a submission: `*.json` right under `inbox/`, not starting with a dot."""
        return _DROP.fullmatch(key) is not None and len(key.encode()) <= len(InboxKeys.area) + MAX_KEY_PART_BYTES

    @staticmethod
    def key(name: str) -> str:
        return f"inbox/{name}.json"

    @staticmethod
    def staged(key: str, now: float, token: str) -> str:
        """The key to which a local drop is renamed before it becomes a job; nobody edits the file under that name."""
        return f"inbox/{InboxKeys._stem(key)}~{encode_time(now)}{token[:RANDOM_DIGITS]}.json"

    @staticmethod
    def staged_at(key: str) -> float | None:
        """When a drop was staged; None for one that was not."""
        found = _TAKEN_IN.search(key)
        return decode_time(found[1]) if found else None

    @staticmethod
    def dropped_as(key: str) -> str:
        """The key under which a person dropped the file."""
        return InboxKeys.key(InboxKeys._stem(key)) if _TAKEN_IN.search(key) else key

    @staticmethod
    def rejected(key: str, version: str) -> str:
        return f"inbox/rejected/{InboxKeys._stem(key)}.{_key_safe(version)}.json"

    @staticmethod
    def aside(key: str, version: str, token: str) -> str:
        """The key to which a local drop is moved once `version` was handled; the token keeps two movers apart."""
        return f"inbox/aside/{InboxKeys._stem(key)}~{_key_safe(version)}~{token}"

    @staticmethod
    def parse_aside(key: str) -> tuple[str, str] | None:
        """(stem of the drop, version that was handled) of a key under `inbox/aside/`; None for any other key."""
        found = _ASIDE.fullmatch(key)
        if (
            found is None
            or InboxKeys.aside(found[1], found[2], found[3]) != key
            or not InboxKeys.is_drop(InboxKeys.key(found[1]))
        ):
            return None
        return found[1], found[2]

    @staticmethod
    def is_rejection(key: str) -> bool:
        """Whether the key is one that `rejected` builds."""
        found = _REJECTED.fullmatch(key)
        return found is not None and InboxKeys.rejected(found[1], found[2]) == key

    @staticmethod
    def _stem(key: str) -> str:
        stem = _TAKEN_IN.sub("", key).removeprefix("inbox/").removesuffix(".json").replace("~", "-")
        return stem.encode()[:_MAX_STEM_BYTES].decode(errors="ignore")


def _key_safe(version: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "", version)[:64]
