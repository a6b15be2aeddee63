"""The part of a cluster's interface that places jobs together: launch groups and reservations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fray.types import JobGroupConfig, JobId, JobRequest, ReservationConfig, ReservationId, ReservationInfo


class PlacingCluster(Protocol):
    """Launches jobs that start together, and holds hosts for jobs; every `Cluster` does."""

    def launch_group(
        self, requests: Sequence[JobRequest], group: JobGroupConfig, reservation_id: str | None = None
    ) -> list[JobId]:
        """Submit jobs that start all at once, or none of them; their ids come back in the same order.

        Their requests may differ in every way. What cannot start now waits, as one. A private cluster starts them as
        there is room.

            ids = cluster.launch_group([trainer, *rollouts], JobGroupConfig("rl"))

        Args:
            requests: the jobs, all of one pool, none with an `id`.
            group: its name; its `namespace`, if it has one, is that of all its jobs; and whether all run in one zone or
                region.
            reservation_id: of a reservation of the same namespace, in which they start; None: they start anywhere.

        Raises:
            InvalidInput: as `launch`; or a job is larger than every host of its kind, no agent tells a zone, the
                reservation is another namespace's or has ended, or a request names a namespace other than the group's.
                Nothing was submitted.
            ReservationNotFound: there is no such reservation.
            ParentNotRunning: as `launch`.
        """

    def create_reservation(self, config: ReservationConfig) -> ReservationId:
        """Hold hosts for the jobs of `namespace`, and return the reservation's id at once.

        Once all that it needs at least is there, jobs of the namespace that ask for the same device and fit start in
        it, and wait in it while it is full; others run as ever. Between its minimum and its maximum it has what there
        is room for. It ends after `ttl_seconds` without a renewal, when it is released, and with the job that made it,
        if one did; then its jobs are stopped.

            held = cluster.create_reservation(ReservationConfig(min_resources=two_slices, max_resources=eight_slices))

        Args:
            config: how much, for how long; see `ReservationConfig`.

        Raises:
            InvalidInput: a value is out of bounds, or the minimum is more than the maximum.
        """

    def get_reservation(self, reservation_id: str) -> ReservationInfo:
        """Read what a reservation has, what it lacks, its jobs, and when it ends.

        Args:
            reservation_id: as `create_reservation` returned it, or `fray reservations` shows it.

        Raises:
            ReservationNotFound: there is no such reservation.
        """

    def renew_reservation(self, reservation_id: str, ttl_seconds: float | None = None) -> ReservationInfo:
        """Begin the time of a reservation anew.

        Args:
            reservation_id: as for `get_reservation`.
            ttl_seconds: seconds from now on; None: as many as it was made with.

        Raises:
            InvalidInput: it has ended, or so few seconds are of no use.
            ReservationNotFound: there is no such reservation.
        """

    def release_reservation(self, reservation_id: str) -> None:
        """End a reservation: jobs in it are stopped, and its hosts are free for others. One that has ended stays so.

        Args:
            reservation_id: as for `get_reservation`.

        Raises:
            ReservationNotFound: there is no such reservation.
        """
