"""Records of names, of the endpoints published under them, and of the checkpoints of durable actors."""

from __future__ import annotations

from typing import Any

import msgspec

from fray_layouts.bounds import Attempts, Count, Time
from fray_layouts.records.base import Record
from fray_layouts.states import NameState


class NameRecord(Record, kw_only=True):
    """`names/<namespace>/<kind>/<name>.json`: the holder of a name. It is never deleted, so incarnations only grow.

    Attributes:
        state: "held" or "free". A name that is held for a job that has ended is free too.
        job: id of the job that the name is held for; "" if it is held without a job, as by a queue.
        incarnation: increases each time the name is taken.
        attempt: the highest attempt of the job that has announced an endpoint under this incarnation; 0 before the
            first.
        since: when the name was taken.
    """

    state: str = NameState.HELD
    job: str = ""
    incarnation: Count = 1
    attempt: Attempts = 0
    since: Time = 0.0


class EndpointRecord(Record, kw_only=True):
    """`actors/<namespace>/<name>/<actor_id>.json`: the address at which an actor takes calls.

    A caller that has seen an (incarnation, attempt) of a name never goes back to a lower one.

    Attributes:
        job: the job that serves the actor; for a program outside of jobs, the job that stands for that program.
        attempt: the job's attempt.
        incarnation: of the name, or of the name of the group; 0 if no name was taken.
        nonce: identity of the server, new with each start.
        address: "host:port" as advertised.
        unix: path of the server's Unix socket, for callers on `host`; "" if there is none.
        host: identity of the host, equal for processes that share its file system and memory.
        fingerprint: SHA-256 of the server's TLS certificate, in hex; "" without TLS.
        metadata: chosen by the actor's owner.
        published_at: when this was written.
    """

    namespace: str
    name: str
    actor_id: str
    job: str = ""
    attempt: Attempts = 0
    incarnation: Count = 0
    nonce: str
    address: str
    unix: str = ""
    host: str = ""
    fingerprint: str = ""
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    published_at: Time = 0.0


class CheckpointHead(msgspec.Struct, kw_only=True, omit_defaults=True):
    """First line of `work/<job_id>/checkpoints/<actor>/<number>`; the state's bytes follow.

    Attributes:
        attempt: attempt of the job whose process wrote it.
        writer: unique id of that process.
        fence: it was written to keep earlier attempts from writing, and repeats the state that was restored.
        empty: there is no state yet.
    """

    attempt: Attempts
    writer: str
    fence: bool = False
    empty: bool = False
