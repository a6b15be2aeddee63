"""What is announced in a namespace of a cluster, as its records say now; to call it, programs use a resolver."""

from __future__ import annotations

from functools import partial

from fray.cluster.endpoint import ActorEndpoint
from fray.cluster.run_service import RunService
from fray_coordinator.actors import discovery
from fray_layouts.spec import check_name


class Metadata:
    """See `Cluster.metadata`. What an `ActorServer` has registered is here while it serves."""

    def __init__(self, run: RunService, namespace: str) -> None:
        self._run = run
        self._namespace = namespace

    def lookup(self, name: str) -> ActorEndpoint | None:
        """One actor of that name; None if there is none. Raises InvalidInput for what cannot be a name."""
        return next(iter(self.lookup_all(name)), None)

    def lookup_all(self, name: str) -> list[ActorEndpoint]:
        """All actors of that name. Raises InvalidInput for what cannot be a name."""
        check_name("name", name)
        found = self._run(partial(discovery.lookup, namespace=self._namespace, name=name))
        return [ActorEndpoint.of(record) for record in found]

    def list_actors(self, prefix: str = "") -> list[ActorEndpoint]:
        """All actors whose names begin with `prefix`, by name."""
        found = self._run(partial(discovery.lookup_prefix, namespace=self._namespace, prefix=prefix))
        return [ActorEndpoint.of(record) for record in found]
