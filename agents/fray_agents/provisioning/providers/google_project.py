"""A project's rights and quotas on Google Cloud, checked before anything is ordered.

Both come from APIs that a project need not have enabled. If one does not answer, its checks are skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from requests.exceptions import RequestException

from fray_agents.provisioning.provider import ProviderError
from fray_agents.provisioning.providers.google_calls import ATTEMPT_TIMEOUT, GoogleAccess, role_for
from fray_coordinator.variables import read_variable

EMULATOR_VARIABLE = "GOOGLE_PROJECT_EMULATOR_HOST"
"""Variable with the host and port to call instead of Google. If only another API is emulated, checks are skipped."""

_RIGHTS = "https://cloudresourcemanager.googleapis.com"
_QUOTAS = "https://cloudquotas.googleapis.com"


async def missing_rights(access: GoogleAccess, permissions: Sequence[str]) -> Sequence[ProviderError]:
    """The permissions that the account lacks in the project: an error for each role that has them."""
    url = f"{_host(_RIGHTS)}/v3/projects/{access.project}:testIamPermissions"
    answer = await _request_json(access, "POST", url, {"permissions": [*permissions]})
    if answer is None:
        return []
    missing = [name for name in permissions if name not in answer.get("permissions", ())]
    by_role: dict[str, list[str]] = {}
    for name in missing:
        by_role.setdefault(role_for(name), []).append(name)
    return [
        ProviderError(
            "denied",
            f"{', '.join(names)} {'are' if len(names) > 1 else 'is'} missing: grant {role} in project "
            f"{access.project} to {access.account}, if machines are to be created with it",
        )
        for role, names in by_role.items()
    ]


async def quotas_of_zero(
    access: GoogleAccess, service: str, quotas: Iterable[str], zones: Sequence[str]
) -> Sequence[ProviderError]:
    """An error for each zone in which one of these quotas is 0 for the project.

    Args:
        service: such as "tpu.googleapis.com".
        quotas: ids; a project need not have all of them.
    """
    base = f"{_host(_QUOTAS)}/v1/projects/{access.project}/locations/global/services/{service}/quotaInfos"
    ids = [*quotas]
    answers = await asyncio.gather(*(_request_json(access, "GET", f"{base}/{quota}") for quota in ids))
    return [
        ProviderError(
            "quota",
            f"project {access.project} may have nothing of this kind in {zone}: its quota {quota} is 0 there; ask for "
            f"more at https://console.cloud.google.com/iam-admin/quotas?project={access.project}, or take the zone out",
        )
        for quota, answer in zip(ids, answers, strict=True)
        for zone in zones
        if 0 in _values(answer or {}, zone)
    ]


def _values(quota: Mapping[str, Any], zone: str) -> Iterator[int]:
    """The values of the quota in a zone and in its region."""
    for each in quota.get("dimensionsInfos", ()):
        if {zone, zone.rpartition("-")[0]} & {*each.get("applicableLocations", ())}:
            yield int(each.get("details", {}).get("value", 0))


def _host(of_google: str) -> str:
    emulator = read_variable(EMULATOR_VARIABLE)
    return f"http://{emulator}" if emulator else of_google


async def _request_json(access: GoogleAccess, method: str, url: str, body: object = None) -> dict[str, Any] | None:
    """The answer to a request; None if there is none."""
    if access.emulator and url.startswith("https:"):
        return None
    return await asyncio.to_thread(_request_json_blocking, access, method, url, body)


def _request_json_blocking(access: GoogleAccess, method: str, url: str, body: object) -> dict[str, Any] | None:
    with AuthorizedSession(access.credentials) as session:  # type: ignore[no-untyped-call]
        try:
            answer = session.request(method, url, json=body, timeout=ATTEMPT_TIMEOUT)  # type: ignore[no-untyped-call]
            found = answer.json() if answer.ok else None
        except (RequestException, GoogleAuthError, ValueError):
            return None
    return found if isinstance(found, dict) else None
