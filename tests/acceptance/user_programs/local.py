"""LocalClient: jobs and actors in this process."""

from __future__ import annotations

from typing import assert_type

from fray import ActorGroup, ActorHandle, Client, JobHandle, JobRequest, LocalClient, current_client, set_current_client
from fray.types import Entrypoint


class Greeter:
    def greet(self, name: str) -> str:
        return f"hello {name}"


def main() -> None:
    with set_current_client(LocalClient()) as client:
        assert_type(current_client(), Client)
        print(client)
    local = LocalClient()
    assert_type(local.submit(JobRequest("job", Entrypoint.from_callable(print, args=["hello"]))), JobHandle)
    assert_type(local.create_actor(Greeter, name="greeter"), ActorHandle[Greeter])
    assert_type(local.create_actor_group(Greeter, name="greeters", count=2), ActorGroup[Greeter])
    client_of_all: Client = local
    client_of_all.shutdown(wait=True)
