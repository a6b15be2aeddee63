"""Ray's side of the actors bench: a local head without dashboard."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

import ray
import ray_side
from calls import AsyncSubject, Side, Subject


class Handle:
    """An actor."""

    def __init__(self, kind: type, concurrency: int) -> None:
        self._actor = ray.remote(kind).options(max_concurrency=concurrency, num_cpus=0).remote()

    def call(self, method: str, *args: Any) -> Any:
        return ray.get(getattr(self._actor, method).remote(*args))

    def start(self, method: str, *args: Any) -> Any:
        return getattr(self._actor, method).remote(*args)

    def gather(self, started: Iterable[Any]) -> list[Any]:
        return list(ray.get(list(started)))


def main() -> None:
    answers = ray_side.answers()
    here = {"env_vars": {"PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}}
    with ray_side.running(runtime_env=here, logging_level="ERROR"):
        side = Side(Handle(Subject, 1), Handle(Subject, 100), Handle(AsyncSubject, 100), "--quick" in sys.argv)
        print(json.dumps({"version": ray.__version__}), file=answers, flush=True)
        side.serve(answers)


main()
