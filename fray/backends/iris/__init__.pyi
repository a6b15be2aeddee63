from fray.backends.iris.actors import IrisActorGroup as IrisActorGroup, IrisActorHandle as IrisActorHandle
from fray.backends.iris.client import FrayIrisClient as FrayIrisClient
from fray.backends.iris.cluster import IrisCluster as IrisCluster
