"""The record of the reconciler: its lease, and the state that one pass hands to the next."""

from __future__ import annotations

import msgspec

from fray_layouts.bounds import Count, MaybeId, Seconds, Time
from fray_layouts.records.agent import HintEndpoint
from fray_layouts.records.base import Record


class Suspect(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An agent whose heartbeat does not advance.

    Attributes:
        beat: the value at which the heartbeat stands.
        age: seconds for which observers have seen that value.
        deferred: it timed out together with too many others, and got one more full time-out.
    """

    beat: Count
    age: Seconds = 0.0
    deferred: bool = False


class PoolSummary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A pool as the last pass saw it.

    Attributes:
        agents: number of live agents.
        slots: number of one-core tasks that they can run at once.
        hint_endpoints: endpoints of a few agents, those with room first; submitters may send hints there.
    """

    agents: Count = 0
    slots: Count = 0
    hint_endpoints: list[HintEndpoint] = msgspec.field(default_factory=list)


class ReconcilerRecord(Record, kw_only=True):
    """`coordinator/reconciler.json`: the lease of the reconciler, and the suspects that it knows of.

    Attributes:
        holder: agent id, or "once-<token>" of a `fray coordinate --once`; "" when free.
        progress: raised by the holder after each pass; the lease's heartbeat.
        interval: seconds within which the holder promises its next renewal; 0: `pass_interval`. It is longer while the
            cluster is quiet.
        hint_endpoint: where the holder takes hints, so that a submitter of a gang can wake it; None: nowhere.
        holder_beat: the holder's own beat when it wrote this; with it, a successor can count the holder's silence so
            far.
        suspects: by agent id.
        pools: by pool name; a hint for claimers.
        problems: some of the objects that raised an error in the last pass, with the error; `fray fsck` and `fray
            doctor` show them.
        problems_omitted: number of further such objects.
        repaired_at: start of the last complete repair (indexes, children, retention).
    """

    holder: MaybeId = ""
    progress: Count = 0
    holder_beat: Count = 0
    interval: Seconds = 0.0
    hint_endpoint: HintEndpoint | None = None
    suspects: dict[str, Suspect] = msgspec.field(default_factory=dict)
    pools: dict[str, PoolSummary] = msgspec.field(default_factory=dict)
    problems: dict[str, str] = msgspec.field(default_factory=dict)
    problems_omitted: Count = 0
    repaired_at: Time = 0.0
