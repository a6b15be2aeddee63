"""Dask's side of the actors bench: a scheduler and a worker, each a process. It does not keep the order of calls."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

import distributed
from calls import Side, Subject


class Handle:
    """An actor in the worker."""

    def __init__(self, client: distributed.Client, kind: type) -> None:
        self._actor = client.submit(kind, actor=True).result()

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._actor, method)(*args).result()

    def start(self, method: str, *args: Any) -> Any:
        return getattr(self._actor, method)(*args)

    def gather(self, started: Iterable[Any]) -> list[Any]:
        return [future.result() for future in started]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        with distributed.Client(cluster) as client:
            side = Side(Handle(client, Subject), None, None, "--quick" in sys.argv, ordered=False)
            print(json.dumps({"version": distributed.__version__}), file=answers, flush=True)
            side.serve(answers)


if __name__ == "__main__":
    main()
