"""The checks of a pool's provisioning that the types and bounds of its fields cannot express."""

from __future__ import annotations

import difflib
import re

from fray_layouts.errors import InvalidInput
from fray_layouts.records import ProvisioningSpec, TpuSettings
from fray_layouts.topology import get_tpu_topology

PROVIDERS = {
    "local": "agents as processes on this machine",
    "tpu": "TPU slices of Google Cloud",
    "cloud_run": "containers of Google Cloud Run",
    "command": "machines made by your own commands",
}
"""Providers of machines, with what each makes."""
_SETTINGS = ("tpu", "cloud_run", "command")
_NEEDS_SETTINGS = {
    "cloud_run": "give at least the image of its agents' containers: cloud_run: {image: ...}",
    "command": "give the programs: command: {list: [...], create: [...], delete: [...]}",
}
_HOW_HOSTS_GET_FRAY = (
    "say how its hosts get Fray: build a wheel with `pip wheel --no-deps .` in a clone, copy it into your bucket, and "
    'give its URL and hash, "gs://BUCKET/fray_cluster-VERSION-py3-none-any.whl#sha256=HASH"; or give tpu.image, a '
    "container image with Fray in it"
)
_WHEEL = re.compile(r"(gs|https)://[!-~]+/[A-Za-z0-9_.+-]+\.whl#sha256=[0-9a-f]{64}")
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
_ZONE = re.compile(rf"{_REGION.pattern}-[a-z0-9]+")


def checked_provisioning(spec: ProvisioningSpec) -> ProvisioningSpec:
    """Return the same settings. Raises InvalidInput for the first fault, by the name of its field."""
    _check_provider(spec)
    _check_settings(spec)
    _check_type(spec)
    _check_zones(spec)
    _check_bounds(spec)
    for name in spec.labels:
        if not name:
            raise InvalidInput("labels", spec.labels, "a label has a name, such as disk: ssd")
    if spec.provider == "tpu":
        check_tpu_software(spec.tpu or TpuSettings())
    return spec


def _check_provider(spec: ProvisioningSpec) -> None:
    if spec.provider not in PROVIDERS:
        near = difflib.get_close_matches(spec.provider.lower().replace("-", "_"), PROVIDERS, n=1)
        known = ", ".join(f"{name} ({what})" for name, what in PROVIDERS.items())
        raise InvalidInput("provider", spec.provider, f"did you mean {near[0]}?" if near else f"there are {known}")


def _check_settings(spec: ProvisioningSpec) -> None:
    for name in _SETTINGS:
        given = getattr(spec, name)
        if given is not None and name != spec.provider:
            raise InvalidInput(name, "...", f"these are settings of provider {name}, and the pool has {spec.provider}")
        if given is None and name == spec.provider and name in _NEEDS_SETTINGS:
            raise InvalidInput(name, None, _NEEDS_SETTINGS[name])
    if spec.command is not None:
        for field in ("list", "create", "delete"):
            words = getattr(spec.command, field)
            if not words or not words[0] or any("\0" in word for word in words):
                raise InvalidInput(f"command.{field}", words, "give a program and its arguments, each by itself")
    if spec.cloud_run is not None and not spec.cloud_run.image:
        raise InvalidInput("cloud_run.image", "", "name a container with Fray in it")
    if spec.spot and spec.provider in ("local", "cloud_run"):
        raise InvalidInput("spot", True, f"{PROVIDERS[spec.provider]} are not sold as spot; leave it out")


def check_tpu_software(settings: TpuSettings) -> None:
    """Raise InvalidInput unless the hosts get Fray from an image or a wheel.

    Nothing is installed by its name: there is no release in an index, and anybody could register the name there.
    """
    if settings.image and settings.package:
        raise InvalidInput("tpu.package", settings.package, "the hosts run tpu.image; give one of the two")
    if not settings.image and not _WHEEL.fullmatch(settings.package):
        raise InvalidInput("tpu.package", settings.package, _HOW_HOSTS_GET_FRAY)


def _check_type(spec: ProvisioningSpec) -> None:
    kind = spec.machine_type
    if spec.provider == "cloud_run" and kind:
        raise InvalidInput("machine_type", kind, "Cloud Run has none; give each container's resources as capacity")
    if spec.provider == "tpu" and not kind:
        raise InvalidInput("machine_type", kind, "give the type of its slices, such as v5litepod-16")
    if spec.provider == "tpu":
        try:
            get_tpu_topology(kind)
        except InvalidInput as error:
            raise InvalidInput("machine_type", kind, error.remedy) from None


def _check_zones(spec: ProvisioningSpec) -> None:
    zones = spec.zones
    if spec.provider == "local" and zones:
        raise InvalidInput("zones", zones, "a local pool is on this machine; leave them out")
    if len(set(zones)) < len(zones):
        raise InvalidInput("zones", zones, "one zone is listed twice; give each once, in order of preference")
    if spec.provider == "tpu":
        if not zones:
            raise InvalidInput("zones", zones, "give zones in order of preference, such as [us-east5-a]")
        for zone in zones:
            if not _ZONE.fullmatch(zone):
                raise InvalidInput("zones", zone, "a zone is a region and a letter, such as us-east5-a")
    if spec.provider == "cloud_run":
        if not zones:
            raise InvalidInput("zones", zones, "give regions in order of preference, such as [us-central1]")
        for region in zones:
            if not _REGION.fullmatch(region):
                raise InvalidInput("zones", region, "Cloud Run has regions, such as us-central1, and no zones")


def _check_bounds(spec: ProvisioningSpec) -> None:
    spec.check()
    if spec.hourly_cost is not None and spec.hourly_cost < 0:
        raise InvalidInput("hourly_cost", spec.hourly_cost, "give dollars an hour of one machine, at least 0")
    limit = spec.max_hourly_cost
    if limit is not None and limit <= 0:
        raise InvalidInput("max_hourly_cost", limit, "give dollars an hour above 0; for no machines, give max: 0")
