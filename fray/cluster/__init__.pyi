from fray.backends.ray.submission_api import RayCluster as RayCluster
from fray.cluster.api import Cluster as Cluster
from fray.cluster.current import (
    create_cluster as create_cluster,
    current_cluster as current_cluster,
    open_cluster as open_cluster,
    set_current_cluster as set_current_cluster,
    storage_cluster as storage_cluster,
)
from fray.cluster.current_job import Replica as Replica, current_replica as current_replica
from fray.cluster.local_cluster import LocalCluster as LocalCluster
from fray.cluster.storage import StorageCluster as StorageCluster
from fray.errors import JobFailed as JobFailed, NoResult as NoResult
from fray.rpc.resolver import (
    ClusterResolver as ClusterResolver,
    FixedResolver as FixedResolver,
    LocalResolver as LocalResolver,
)
from fray.types import (
    ANY_REGION as ANY_REGION,
    BinaryEntrypoint as BinaryEntrypoint,
    CallableEntrypoint as CallableEntrypoint,
    CpuConfig as CpuConfig,
    DeviceConfig as DeviceConfig,
    DeviceKind as DeviceKind,
    Entrypoint as Entrypoint,
    EnvironmentConfig as EnvironmentConfig,
    GpuConfig as GpuConfig,
    GpuType as GpuType,
    HealthCheck as HealthCheck,
    JobGroupConfig as JobGroupConfig,
    JobId as JobId,
    JobInfo as JobInfo,
    JobRequest as JobRequest,
    JobStatus as JobStatus,
    Namespace as Namespace,
    ReservationConfig as ReservationConfig,
    ReservationId as ReservationId,
    ReservationInfo as ReservationInfo,
    ResourceConfig as ResourceConfig,
    TpuConfig as TpuConfig,
    TpuTopologyInfo as TpuTopologyInfo,
    TpuType as TpuType,
    create_environment as create_environment,
    get_tpu_topology as get_tpu_topology,
)
