"""The record of the reconciler: its lease, and what its passes hand on."""

from __future__ import annotations

import msgspec

from fray_layouts.bounds import Count, MaybeId, Seconds, Time
from fray_layouts.records.agent import HintEndpoint
from fray_layouts.records.base import Record


class Suspect(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An agent whose heartbeat has stood still.

    Attributes:
        beat: at which it stands.
        age: seconds for which it was seen to.
        deferred: it had timed out together with too many others, and was given one more full time-out.
    """

    beat: Count
    age: Seconds = 0.0
    deferred: bool = False


class PoolSummary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A pool as the last pass saw it.

    Attributes:
        agents: live ones.
        slots: one-core tasks that they can run at once.
        hint_endpoints: of a few of them, those with room first: submitters may send hints there.
    """

    agents: Count = 0
    slots: Count = 0
    hint_endpoints: list[HintEndpoint] = msgspec.field(default_factory=list)


class ReconcilerRecord(Record, kw_only=True):
    """`coordinator/reconciler.json`: the lease of the coordinator's pass, and the suspects that it knows of.

    Attributes:
        holder: agent id, or "once-<token>" of a `fray coordinate --once`; "" when free.
        progress: raised by the holder after each pass; the lease's heartbeat.
        hint_endpoint: where the holder takes hints, so that who submits a gang can wake it; None: nowhere.
        holder_beat: the holder's own beat when it wrote this; lets a successor credit its observation.
        suspects: by agent id.
        pools: by pool name; a hint for claimers.
        problems: objects that raised in the last pass, with the error, for `fray fsck` and `fray doctor`; some of them.
        problems_omitted: how many more there were.
        repaired_at: when the last full repair (indexes, children, retention) that has ended was begun.
    """

    holder: MaybeId = ""
    progress: Count = 0
    holder_beat: Count = 0
    hint_endpoint: HintEndpoint | None = None
    suspects: dict[str, Suspect] = msgspec.field(default_factory=dict)
    pools: dict[str, PoolSummary] = msgspec.field(default_factory=dict)
    problems: dict[str, str] = msgspec.field(default_factory=dict)
    problems_omitted: Count = 0
    repaired_at: Time = 0.0
