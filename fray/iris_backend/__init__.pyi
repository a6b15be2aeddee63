from fray.cluster.iris.cluster import IrisCluster as IrisCluster
from fray.iris_backend.actor_group import IrisActorGroup as IrisActorGroup
from fray.iris_backend.actor_handle import IrisActorHandle as IrisActorHandle
from fray.iris_backend.client import FrayIrisClient as FrayIrisClient
