"""The actors that are announced in a namespace, as the cluster's records say now."""

from functools import partial

from fray.cluster.endpoint import ActorEndpoint
from fray.cluster.run_service import RunService
from fray_coordinator.actors import discovery
from fray_layouts.spec import check_name


class Metadata:
    """Finds the endpoints of actors: `Cluster.metadata`. To call an actor, use a resolver.

    What an `ActorServer` has registered is here while it serves. Each method reads the storage and may raise
    `StoreUnavailable` or `StoreRefused`.
    """

    def __init__(self, run: RunService, namespace: str) -> None:
        self._run = run
        self._namespace = namespace

    def lookup(self, name: str) -> ActorEndpoint | None:
        """Look up one actor of that name; None if there is none.

        Raises:
            InvalidInput: no actor can have that name.
        """
        return next(iter(self.lookup_all(name)), None)

    def lookup_all(self, name: str) -> list[ActorEndpoint]:
        """Look up all actors of that name, of the latest incarnation.

        Raises:
            InvalidInput: no actor can have that name.
        """
        check_name("name", name)
        found = self._run(partial(discovery.lookup, namespace=self._namespace, name=name))
        return [ActorEndpoint.of(record) for record in found]

    def list_actors(self, prefix: str = "") -> list[ActorEndpoint]:
        """List all actors of the namespace whose names begin with `prefix`, in order of their names."""
        found = self._run(partial(discovery.lookup_prefix, namespace=self._namespace, prefix=prefix))
        return [ActorEndpoint.of(record) for record in found]
