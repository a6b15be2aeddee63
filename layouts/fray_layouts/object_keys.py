"""The keys of everything under a root. Only this module and its siblings build keys or take them apart.

`work_keys` has the keys of attempts and of the inbox, `index_keys` of index entries, `queue_keys` of queues and worker
pools.

There is one class per area. `check_name` has checked every part that came from a person, so a part has no '/', no '~'
and is never '..'. A root may hold foreign objects, so every `parse` accepts only keys that are built here and returns
None for all others; building a key from what it returns gives the same key again.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from fray_layouts.bounds import MAX_JOB_ID
from fray_layouts.errors import InvalidInput
from fray_layouts.key_encoding import (
    BASE32_DIGITS,
    ID_DIGEST_DIGITS,
    MAX_KEY_PART_BYTES,
    NUMBER_PATTERN,
    RANDOM_DIGITS,
    TIME_DIGITS,
    decode_time,
    digest_text,
    encode_time,
    id_of,
    is_id,
    is_name,
    is_namespace,
    is_pool,
    stem_of,
)
from fray_layouts.records import AgentRecord, EndpointRecord, JobRecord, MachineRecord, Record, ReservationRecord

CLUSTER_KEY = "cluster.json"

_FRESH_ID = re.compile(rf".+-[{BASE32_DIGITS}]{{{TIME_DIGITS + RANDOM_DIGITS}}}")


class JobIds:
    """Ids of jobs, `<name>-<time><random>`: sortable within a name, never reused."""

    @staticmethod
    def fresh(name: str, now: float, token: str) -> str:
        """An id for a job submitted at `now` (storage's clock); `token`: at least six random base-32 digits."""
        return f"{name}-{encode_time(now)}{token[:RANDOM_DIGITS]}"

    @staticmethod
    def is_fresh(text: str) -> bool:
        """Whether the text has the form of an id made by `fresh`, so that no person chose it."""
        return _FRESH_ID.fullmatch(text) is not None

    @staticmethod
    def time_of(job_id: str) -> float | None:
        """The time of submission in an id made by `fresh`; None for ids that a submitter chose."""
        if not JobIds.is_fresh(job_id):
            return None
        return decode_time(job_id[-TIME_DIGITS - RANDOM_DIGITS : -RANDOM_DIGITS])

    @staticmethod
    def given(namespace: str, name: str, own_id: str) -> str:
        """The id of a job whose submitter chose `own_id`: the same three words always give the same id.

        A digest keeps other words apart: the words alone may hold hyphens. A fresh id ends in more digits than this.
        """
        digest = hashlib.sha256(f"{namespace}\n{name}\n{own_id}".encode()).digest()
        return f"{name}-{own_id}-{digest_text(digest)[:ID_DIGEST_DIGITS]}"

    @staticmethod
    def unique(namespace: str, name: str, now: float, token: str) -> str:
        """An id in the form of `given` for a job that takes a name, from an own id that nobody else chooses.

        If the name is long, fewer digits of the time fit; those of the token always do.
        """
        room = MAX_JOB_ID - len("--") - ID_DIGEST_DIGITS - len(name)
        return JobIds.given(namespace, name, f"{encode_time(now)}{token[:RANDOM_DIGITS]}"[-room:])

    @staticmethod
    def own(name: str, given: str) -> str:
        """The inverse of `given`: the submitter's own id in the id `given` of a job of that name."""
        return given.removeprefix(f"{name}-").rpartition("-")[0]

    @staticmethod
    def checked(text: str, field: str = "job") -> str:
        """Return `text` if it can be a job id; otherwise raise InvalidInput naming `field`."""
        if not is_id(text):
            raise InvalidInput(field, text, "a job id is a name and a suffix, as `fray ps` shows it")
        return text


class JobKeys:
    """The keys of jobs, `jobs/<job_id>.json`."""

    area = "jobs/"

    @staticmethod
    def key(job_id: str) -> str:
        return f"jobs/{job_id}.json"

    @staticmethod
    def parse(key: str) -> str | None:
        """The job id of a key under `jobs/`; None for any other key."""
        return id_of(key, JobKeys.area)


class ArchiveKeys:
    """The keys of jobs that ended long ago, `archive/<day>/<job_id>.json`.

    The day is that of the submission, and stands in the ids that `JobIds.fresh` makes. Other ids have no time in them,
    so their jobs have a folder of their own, `archive/own/`.
    """

    area = "archive/"
    own_ids = "archive/own/"
    """The folder of the jobs whose ids have no time in them; it sorts behind all days."""

    @staticmethod
    def key(job_id: str) -> str:
        submitted = JobIds.time_of(job_id)
        return f"{ArchiveKeys.own_ids if submitted is None else ArchiveKeys.folder(submitted)}{job_id}.json"

    @staticmethod
    def folder(submitted: float) -> str:
        """The folder of the jobs submitted on the day of this time (storage's clock); text order is time order."""
        return f"archive/{datetime.fromtimestamp(submitted, UTC):%Y-%m-%d}/"

    @staticmethod
    def parse(key: str) -> str | None:
        """The job id of a key under `archive/`; None for any other key."""
        job = id_of(key, f"{key.rpartition('/')[0]}/")
        return job if job is not None and ArchiveKeys.key(job) == key else None


class AgentKeys:
    """The keys of agents, `agents/<agent_id>.json`; each start of an agent process has a new id, never used again."""

    area = "agents/"

    @staticmethod
    def fresh(host: str, now: float, token: str) -> str:
        """An id for an agent that starts at `now` (storage's clock); it keeps 60 characters of the host name."""
        safe = re.sub(r"[^A-Za-z0-9-]", "-", host).strip("-")[:60] or "host"
        return f"{safe}-{encode_time(now)}{token[:RANDOM_DIGITS]}"

    @staticmethod
    def key(agent_id: str) -> str:
        return f"agents/{agent_id}.json"

    @staticmethod
    def parse(key: str) -> str | None:
        """The agent id of a key under `agents/`; None for any other key."""
        return id_of(key, AgentKeys.area)


class ReservationKeys:
    """The keys of reservations, `reservations/<id>.json`; their ids are made like those of jobs."""

    area = "reservations/"

    @staticmethod
    def checked(text: str) -> str:
        """Return `text` if it can be the id of a reservation; otherwise raise InvalidInput."""
        if not is_id(text):
            remedy = "an id is a name and a suffix, as `fray reserve` prints and `fray reservations` shows it"
            raise InvalidInput("reservation_id", text, remedy)
        return text

    @staticmethod
    def key(reservation: str) -> str:
        return f"reservations/{reservation}.json"

    @staticmethod
    def parse(key: str) -> str | None:
        """The id of a key under `reservations/`; None for any other key."""
        return id_of(key, ReservationKeys.area)

    @staticmethod
    def pool(reservation: str) -> str:
        """The private pool in which the jobs of a reservation wait."""
        return f"~{reservation}"

    @staticmethod
    def of_pool(pool: str) -> str:
        """The reservation that the private pool belongs to; "" for a pool of agents."""
        return pool[1:] if pool.startswith("~") else ""


class SecretKeys:
    """The keys under `secrets/`. A reader of them may call actors; local files are as private as the root's mode allows
    (`store.file_tree`).
    """

    area = "secrets/"
    rpc = "secrets/rpc.json"


class NameKeys:
    """The keys of names, `names/<namespace>/<kind>/<name>.json`. The kinds are "actor", "job" and "queue"."""

    area = "names/"
    kinds = frozenset({"actor", "job", "queue"})

    @staticmethod
    def key(namespace: str, kind: str, name: str) -> str:
        return f"names/{namespace}/{kind}/{name}.json"

    @staticmethod
    def parse(key: str) -> tuple[str, str, str] | None:
        """(namespace, kind, name) of a key under `names/`; None for any other key."""
        namespace, kind, name = [*(stem_of(key, NameKeys.area) or "").split("/"), "", ""][:3]
        if kind not in NameKeys.kinds or not is_namespace(namespace) or not is_name(name):
            return None
        return (namespace, kind, name) if NameKeys.key(namespace, kind, name) == key else None


_MAX_ACTOR_ID = MAX_KEY_PART_BYTES - len(".json")


@dataclass(frozen=True, slots=True)
class EndpointKey:
    """`actors/<namespace>/<name>/<actor_id>.json`: the key of an actor's endpoint."""

    namespace: str
    name: str
    actor_id: str

    area: ClassVar[str] = "actors/"

    def key(self) -> str:
        return f"{EndpointKey.folder(self.namespace, self.name)}{self.actor_id}.json"

    @staticmethod
    def folder(namespace: str, name: str) -> str:
        """The prefix of the keys of all actors of this name."""
        return f"{EndpointKey.namespace_folder(namespace)}{name}/"

    @staticmethod
    def namespace_folder(namespace: str) -> str:
        """The prefix of the keys of all actors of this namespace."""
        return f"actors/{namespace}/"

    @staticmethod
    def parse(key: str) -> EndpointKey | None:
        """The endpoint that a key names; None for any other key."""
        parts = (stem_of(key, EndpointKey.area) or "").split("/")
        if len(parts) != 3:
            return None
        namespace, name, actor_id = parts
        if not is_namespace(namespace) or not is_name(name) or not is_id(actor_id, _MAX_ACTOR_ID):
            return None
        return EndpointKey(namespace, name, actor_id)


class CoordinatorKeys:
    """The keys of the leases of the reconciler and the scaler, `coordinator/reconciler.json` and `.../scaler.json`."""

    area = "coordinator/"
    reconciler = "coordinator/reconciler.json"
    scaler = "coordinator/scaler.json"


class DoctorKeys:
    """The keys under `doctor/`, written and deleted to test the storage; `fray doctor` uses `doctor/<token>/...`."""

    area = "doctor/"
    clock = "doctor/clock"
    """An object that never exists: a read of it gives the storage's time, and shows that the root may be read."""
    conditions = "doctor/conditions"
    """An object that only ever is written on a version which it never had: if that works, the storage is unsafe."""
    written = "doctor/written"
    """An object that exists for a moment: if it can be written, another write's failure is not the storage's."""

    @staticmethod
    def folder(token: str) -> str:
        """The folder of one run's probes, without the final slash."""
        return f"doctor/{token}"


_ASIDE_KEY = re.compile(rf"aside/[{BASE32_DIGITS}]{{{TIME_DIGITS + RANDOM_DIGITS}}}/([^/].*)")


class AsideKeys:
    """The keys `aside/<time><random>/<key>`: unreadable objects that `fray fsck --repair` has moved from `<key>`."""

    area = "aside/"

    @staticmethod
    def key(key: str, now: float, token: str) -> str:
        """The key to which the object `key` is moved at `now` (storage's clock); the token keeps two movers apart."""
        return f"aside/{encode_time(now)}{token[:RANDOM_DIGITS]}/{key}"

    @staticmethod
    def parse(key: str) -> str | None:
        """The key that the object had before; None for any other key."""
        found = _ASIDE_KEY.fullmatch(key)
        return found[1] if found else None


_POOL_KEY = re.compile("pools/([^/]+)/([^/]+)")


class PoolKeys:
    """The keys of a pool: `pools/<pool>/doorbell`, `pools/<pool>/pool.json` and `pools/<pool>/plan.json`."""

    area = "pools/"

    @staticmethod
    def record(pool: str) -> str:
        return f"pools/{pool}/pool.json"

    @staticmethod
    def parse_record(key: str) -> str | None:
        """The pool whose record the key names; None for any other key."""
        pool = PoolKeys._pool_of(key, "pool.json")
        return pool if is_name(pool) else None

    @staticmethod
    def doorbell(pool: str) -> str:
        return f"pools/{pool}/doorbell"

    @staticmethod
    def parse_doorbell(key: str) -> str | None:
        """The pool whose doorbell the key names; None for any other key."""
        pool = PoolKeys._pool_of(key, "doorbell")
        return pool if is_pool(pool) else None

    @staticmethod
    def plan(pool: str) -> str:
        return f"pools/{pool}/plan.json"

    @staticmethod
    def parse_plan(key: str) -> str | None:
        """The pool whose plan the key names; None for any other key."""
        pool = PoolKeys._pool_of(key, "plan.json")
        return pool if is_name(pool) else None

    @staticmethod
    def _pool_of(key: str, object_name: str) -> str:
        """The `<pool>` of the key `pools/<pool>/<object_name>`; "" for any other key."""
        found = _POOL_KEY.fullmatch(key)
        return found[1] if found and found[2] == object_name else ""


_MONTH = "[0-9]{4}-(?:0[1-9]|1[0-2])"
_BLOB_KEY = re.compile(f"blobs/({_MONTH})/[0-9a-f]{{64}}")
_KEPT_BLOB_KEY = re.compile(f"blobs/kept/({_MONTH})/({_MONTH}/[0-9a-f]{{64}})")


class BlobKeys:
    """The keys of blobs, `blobs/<month>/<sha256>`: large callables, workspaces and standard input, named by content."""

    area = "blobs/"

    @staticmethod
    def key(now: float, digest: str) -> str:
        """The key of a blob stored at `now` (storage's clock)."""
        return f"blobs/{BlobKeys.month(now)}/{digest}"

    @staticmethod
    def month(now: float) -> str:
        """The month as YYYY-MM; text order is time order."""
        return datetime.fromtimestamp(now, UTC).strftime("%Y-%m")

    @staticmethod
    def parse(key: str) -> str | None:
        """The month of a blob's key; None for any other key."""
        found = _BLOB_KEY.fullmatch(key)
        return found[1] if found else None


@dataclass(frozen=True, slots=True)
class KeptBlobKey:
    """`blobs/kept/<month>/<blob's month>/<sha256>`: a job that was archived in the month names that older blob.

    Attributes:
        month: in which the job's record moved to the archive, as YYYY-MM.
        blob: the blob's key.
    """

    month: str
    blob: str

    def key(self) -> str:
        return f"{BlobKeys.area}kept/{self.month}/{self.blob.removeprefix(BlobKeys.area)}"

    @staticmethod
    def parse(key: str) -> KeptBlobKey | None:
        found = _KEPT_BLOB_KEY.fullmatch(key)
        return KeptBlobKey(found[1], f"{BlobKeys.area}{found[2]}") if found else None


def keys_of(record: Record) -> tuple[str, ...]:
    """The keys under which the record may lie by its own fields; none for kinds of records whose fields do not say."""
    match record:
        case JobRecord():
            return JobKeys.key(record.id), ArchiveKeys.key(record.id)
        case AgentRecord():
            return (AgentKeys.key(record.id),)
        case ReservationRecord():
            return (ReservationKeys.key(record.id),)
        case MachineRecord():
            return (MachineKeys.key(record.pool, record.name),)
        case EndpointRecord():
            return (EndpointKey(record.namespace, record.name, record.actor_id).key(),)
    return ()


_MACHINE_KEY = re.compile(r"machines/([^/]+)/([^/]+)\.json")
_BOOT_LOG = re.compile(rf"machines/([^/]+)/([^/]+)/boot-{NUMBER_PATTERN}\.log")


class MachineKeys:
    """`machines/<pool>/<name>.json`, and beside it `machines/<pool>/<name>/boot-<host>.log`."""

    area = "machines/"

    @staticmethod
    def fresh(now: float, token: str) -> str:
        """A new name for a machine wanted at `now` (storage's clock); it is short because providers limit names."""
        return f"m{encode_time(now)}{token[:RANDOM_DIGITS]}"

    @staticmethod
    def folder(pool: str) -> str:
        """The prefix of the keys of a pool's machines."""
        return f"machines/{pool}/"

    @staticmethod
    def key(pool: str, name: str) -> str:
        return f"{MachineKeys.folder(pool)}{name}.json"

    @staticmethod
    def parse(key: str) -> tuple[str, str] | None:
        """(pool, name) of a machine's key; None for any other key."""
        found = _MACHINE_KEY.fullmatch(key)
        return (found[1], found[2]) if found and is_name(found[1]) and is_id(found[2]) else None

    @staticmethod
    def boot_log(pool: str, name: str, host: int) -> str:
        """The key of the output of a host that started but could not start its agent."""
        return f"{MachineKeys.folder(pool)}{name}/boot-{host}.log"

    @staticmethod
    def is_boot_log(key: str) -> bool:
        """Whether the key is one that `boot_log` builds."""
        found = _BOOT_LOG.fullmatch(key)
        return found is not None and is_name(found[1]) and is_id(found[2])
