"""The part of a cluster's interface that places jobs together: launch groups and reservations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fray.types import JobGroupConfig, JobId, JobRequest, ReservationConfig, ReservationId, ReservationInfo


class PlacingCluster(Protocol):
    """The methods of every `Cluster` that launch jobs together and hold hosts for jobs."""

    def launch_group(
        self, requests: Sequence[JobRequest], group: JobGroupConfig, reservation_id: str | None = None
    ) -> list[JobId]:
        """Submit jobs that start together or not at all, and return their ids in the same order.

        Their requests may differ in every way. If not all of them can start now, all of them wait. A private cluster
        starts each as there is room.

            ids = cluster.launch_group([trainer, *rollouts], JobGroupConfig("rl"))

        Args:
            requests: the jobs, all of one pool, none with an `id`.
            group: the group's name, the namespace of all its jobs if it names one, and whether all run in one zone or
                region.
            reservation_id: id of a reservation of the same namespace, in which the jobs start. None: anywhere.

        Raises:
            InvalidInput: as `launch`; or a job is larger than every host of its kind, no agent states its zone, the
                reservation has ended or belongs to another namespace, or a request names a namespace other than the
                group's. Nothing was submitted.
            ReservationNotFound: there is no such reservation.
            ParentNotRunning: as `launch`.
        """

    def create_reservation(self, config: ReservationConfig) -> ReservationId:
        """Hold hosts for the jobs of `namespace`, and return the reservation's id at once.

        It begins once its minimum is available. From then on, jobs of the namespace that ask for the same device and
        fit start in it, and wait in it while it is full; other jobs run as before. Between its minimum and its maximum
        it has as much as there is room for. It ends after `ttl_seconds` without a renewal, when it is released, or with
        the job that created it, if a job did; then its jobs are stopped.

            held = cluster.create_reservation(ReservationConfig(min_resources=two_slices, max_resources=eight_slices))

        Args:
            config: how much to hold, and for how long; see `ReservationConfig`.

        Raises:
            InvalidInput: a value is out of bounds, or the minimum is more than the maximum.
        """

    def get_reservation(self, reservation_id: str) -> ReservationInfo:
        """Read what a reservation has, what it lacks, its jobs, and when it ends.

        Args:
            reservation_id: the id that `create_reservation` returned or that `fray reservations` shows.

        Raises:
            ReservationNotFound: there is no such reservation.
        """

    def renew_reservation(self, reservation_id: str, ttl_seconds: float | None = None) -> ReservationInfo:
        """Extend a reservation, so that it ends `ttl_seconds` from now.

        Args:
            reservation_id: as for `get_reservation`.
            ttl_seconds: seconds from now on; None: as many as it was created with.

        Raises:
            InvalidInput: the reservation has ended, or `ttl_seconds` is out of bounds.
            ReservationNotFound: there is no such reservation.
        """

    def release_reservation(self, reservation_id: str) -> None:
        """End a reservation: its jobs are stopped, and its hosts are free for others. Nothing happens if it has ended.

        Args:
            reservation_id: as for `get_reservation`.

        Raises:
            ReservationNotFound: there is no such reservation.
        """
