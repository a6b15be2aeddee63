from fray.actor import (
    ActorFuture as ActorFuture,
    ActorGroup as ActorGroup,
    ActorHandle as ActorHandle,
    ActorMethod as ActorMethod,
    current_actor as current_actor,
)
from fray.client import (
    Client as Client,
    JobAlreadyExists as JobAlreadyExists,
    JobHandle as JobHandle,
    StorageClient as StorageClient,
    wait_all as wait_all,
    wait_all_async as wait_all_async,
)
from fray.cluster import (
    Cluster as Cluster,
    LocalCluster as LocalCluster,
    StorageCluster as StorageCluster,
    current_cluster as current_cluster,
    open_cluster as open_cluster,
)
from fray.current_client import current_client as current_client, set_current_client as set_current_client
from fray.errors import (
    FrayError as FrayError,
    InvalidInput as InvalidInput,
    JobFailed as JobFailed,
)
from fray.local_backend import LocalClient as LocalClient
from fray.types import (
    ANY_REGION as ANY_REGION,
    ActorConfig as ActorConfig,
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
    JobId as JobId,
    JobInfo as JobInfo,
    JobRequest as JobRequest,
    JobStatus as JobStatus,
    Namespace as Namespace,
    ResourceConfig as ResourceConfig,
    TpuConfig as TpuConfig,
    TpuTopologyInfo as TpuTopologyInfo,
    TpuType as TpuType,
    create_environment as create_environment,
    get_tpu_topology as get_tpu_topology,
)
