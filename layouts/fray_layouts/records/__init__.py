"""The records: every JSON object under a root, as msgspec structs. `queue_records` has those of queues.

The docstrings define each field's meaning, and the JSON Schemas beside `layouts/README.md` are generated from them; the
README says who writes which object under which condition. Times are seconds since the epoch on the *storage's* clock
unless a field says otherwise; sizes are bytes. `bounds` has the limits of values.

All other code imports the structs from here. Modules in reading order: `base`, `job`, `outputs`, `agent`,
`machine`, `placement`, `index`, `actor`, `cluster`.
"""

from __future__ import annotations

from fray_layouts.records.actor import (
    CheckpointHead as CheckpointHead,
    EndpointRecord as EndpointRecord,
    NameRecord as NameRecord,
)
from fray_layouts.records.agent import (
    MAX_ASKS as MAX_ASKS,
    AgentRecord as AgentRecord,
    Ask as Ask,
    HintEndpoint as HintEndpoint,
    Holding as Holding,
    KeptRoom as KeptRoom,
    Resources as Resources,
    Software as Software,
)
from fray_layouts.records.base import (
    MAX_RECENT_OPS as MAX_RECENT_OPS,
    CheckedStruct as CheckedStruct,
    Record as Record,
)
from fray_layouts.records.cluster import (
    LAYOUT_VERSION as LAYOUT_VERSION,
    AgentPoolRecord as AgentPoolRecord,
    ClusterSettings as ClusterSettings,
    PoolSummary as PoolSummary,
    ReconcilerRecord as ReconcilerRecord,
    RpcSecret as RpcSecret,
    RpcSecrets as RpcSecrets,
    Suspect as Suspect,
)
from fray_layouts.records.index import ChildEntry as ChildEntry, Doorbell as Doorbell, PendingEntry as PendingEntry
from fray_layouts.records.job import (
    MAX_HISTORY as MAX_HISTORY,
    AttemptExit as AttemptExit,
    InboxOrigin as InboxOrigin,
    JobLease as JobLease,
    JobRecord as JobRecord,
    JobResult as JobResult,
    ParentLink as ParentLink,
    PastAttempt as PastAttempt,
    Rejection as Rejection,
    ReplicaExit as ReplicaExit,
    ResourceUsage as ResourceUsage,
    StopRequest as StopRequest,
    total_usage as total_usage,
)
from fray_layouts.records.machine import (
    CloudRunSettings as CloudRunSettings,
    CommandSettings as CommandSettings,
    MachineRecord as MachineRecord,
    MachineSettings as MachineSettings,
    PoolScaling as PoolScaling,
    ProvisioningSpec as ProvisioningSpec,
    ScalerRecord as ScalerRecord,
    TpuSettings as TpuSettings,
    ZoneAnswer as ZoneAnswer,
)
from fray_layouts.records.outputs import (
    MAX_OUTPUT_BYTES as MAX_OUTPUT_BYTES,
    MAX_OUTPUT_FILES as MAX_OUTPUT_FILES,
    OUTPUT_PART_BYTES as OUTPUT_PART_BYTES,
    KeptOutputs as KeptOutputs,
    LeftOut as LeftOut,
    OutputFile as OutputFile,
    OutputManifest as OutputManifest,
)
from fray_layouts.records.placement import (
    MAX_ANCESTORS as MAX_ANCESTORS,
    MAX_FAMILIES_FIRST as MAX_FAMILIES_FIRST,
    FamilyFirst as FamilyFirst,
    Placement as Placement,
    PlacementEntry as PlacementEntry,
    PlacementMember as PlacementMember,
    PoolPlan as PoolPlan,
    ReservationRecord as ReservationRecord,
    ReservedPart as ReservedPart,
    SliceMember as SliceMember,
    ancestors_of_child as ancestors_of_child,
    root_of as root_of,
)
