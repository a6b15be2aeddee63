"""The names and labels of machines: unique, and valid for every provider."""

import re
from itertools import product

from fray_agents.provisioning.identity import (
    MAX_LABEL,
    MAX_PROVIDER_NAME,
    is_of_pool,
    machine_labels,
    pool_labels,
    provider_name,
)
from fray_layouts.object_keys import MachineKeys

CLUSTERS = ("abcdef012345", "abcdef012346", "")
POOLS = ("default", "TPU_v5", "tpu.v5", "tpu-v5", "t" * 128, "t" * 127, "~" + "r" * 144, "~.", "a-b", "a")
MACHINES = ("m01jbcdefghijkl0", "m01jbcdefghijkl1", "b-m01jbcdefghijkl0", "M.1", "x" * 144)


def test_provider_names_are_unique_and_valid_for_every_provider() -> None:
    names = [provider_name(*of) for of in product(CLUSTERS, POOLS, MACHINES)]
    assert all(re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) and len(name) <= MAX_PROVIDER_NAME for name in names)
    assert len(set(names)) == len(names)


def test_a_name_tells_people_the_pool_and_the_machine() -> None:
    machine = MachineKeys.fresh(1.8e9, "0123456789ab")
    name = provider_name("abcdef012345", "trainers", machine)
    assert name.startswith("fray-trainers-")
    assert name.endswith(f"-{machine}")
    assert name == provider_name("abcdef012345", "trainers", machine)


def test_labels_tell_the_pools_of_two_clusters_apart() -> None:
    owners = list(product(CLUSTERS, POOLS))
    for cluster, pool in owners:
        labels = machine_labels(cluster, pool, "m1", "m0")
        assert [owner for owner in owners if is_of_pool({**labels, "team": "a"}, *owner)] == [(cluster, pool)]
        assert all(re.fullmatch(r"[a-z0-9-]*", value) and len(value) <= MAX_LABEL for value in labels.values())


def test_labels_without_a_machines_name_are_no_machine() -> None:
    assert not is_of_pool(pool_labels("abcdef012345", "default"), "abcdef012345", "default")
