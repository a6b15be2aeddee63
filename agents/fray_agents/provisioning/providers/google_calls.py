"""Calls of Google Cloud's APIs: credentials, retries, the meaning of errors, and a project's rights and quotas.

Rights and quotas are checked before anything is ordered. Both come from APIs that a project need not have enabled. If
one does not answer, its checks are skipped.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import google.auth
from google.api_core.exceptions import (
    Aborted,
    DeadlineExceeded,
    GoogleAPICallError,
    InternalServerError,
    ServiceUnavailable,
    TooManyRequests,
    Unknown,
)
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from google.rpc import code_pb2
from requests.exceptions import RequestException
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_random_exponential

from fray_agents.provisioning.provider import ProviderError
from fray_runtime.variables import check_for_libraries, read_variable

T = TypeVar("T")

ATTEMPT_TIMEOUT = 20.0
"""Most seconds for one request; a list of a thousand nodes takes some three."""
TOTAL_TIMEOUT = 45.0
"""Seconds after which a call is not repeated any more, so that a run can go on with other pools."""

SCOPE = "https://www.googleapis.com/auth/cloud-platform"

_ROLES = {
    "tpu": "roles/tpu.admin",
    "run": "roles/run.developer",
    "iam": "roles/iam.serviceAccountUser",
    "artifactregistry": "roles/artifactregistry.reader",
    "serviceusage": "roles/serviceusage.serviceUsageConsumer",
}
"""The predefined role that has the permissions providers need, by the service with which a permission begins."""

_PERMISSION = re.compile(r"[Pp]ermission '?([a-zA-Z]+(?:\.[a-zA-Z]+)+)'?|'([a-zA-Z]+(?:\.[a-zA-Z]+)+)' permission")
_NO_CAPACITY = re.compile(r"capacity|stock ?out|resource_pool_exhausted|insufficient resources", re.IGNORECASE)
_RATE = re.compile(r"per (minute|second|user)|rate limit", re.IGNORECASE)
_NO_LOCATION = re.compile(r"[Ll]ocation[s/ ]+'?([a-z0-9-]+)'? is not found|on 'locations/([a-z0-9-]+)'")

_PASSING = (Aborted, DeadlineExceeded, InternalServerError, ServiceUnavailable, TooManyRequests, Unknown)
_PERHAPS_FULL = (code_pb2.RESOURCE_EXHAUSTED, code_pb2.FAILED_PRECONDITION, code_pb2.UNAVAILABLE)
_DENIED = (code_pb2.PERMISSION_DENIED, code_pb2.UNAUTHENTICATED)
_INVALID = (
    code_pb2.INVALID_ARGUMENT,
    code_pb2.NOT_FOUND,
    code_pb2.FAILED_PRECONDITION,
    code_pb2.OUT_OF_RANGE,
    code_pb2.UNIMPLEMENTED,
    code_pb2.ALREADY_EXISTS,
)


@dataclass(frozen=True)
class GoogleAccess:
    """The credentials and the project for calls.

    Attributes:
        emulator: host and port of an emulator of the API, without encryption; "" for the real API.
    """

    project: str
    credentials: Credentials
    emulator: str = ""

    @property
    def account(self) -> str:
        """The account that needs a missing role."""
        return str(getattr(self.credentials, "service_account_email", "") or "the account that Fray runs as here")


async def find_access(project: str, emulator_variable: str) -> GoogleAccess:
    """The application's default credentials; finding them may need the network.

    Args:
        project: the pool's project; "" for that of the credentials.
        emulator_variable: environment variable with the address to call instead of Google, without credentials.

    Raises:
        ProviderError: "denied": there are no credentials, or they name no project.
    """
    emulator = read_variable(emulator_variable) or ""
    found, default = (AnonymousCredentials(), "emulated") if emulator else await asyncio.to_thread(_default)  # type: ignore[no-untyped-call]
    if not project and not default:
        raise ProviderError("denied", "the credentials name no Google Cloud project; name one in the pool's settings")
    return GoogleAccess(project or default, found, emulator)


def _default() -> tuple[Credentials, str]:
    check_for_libraries("GOOGLE_", "CLOUDSDK_", "GCE_", "GCLOUD_")
    try:
        credentials, project = google.auth.default(scopes=[SCOPE])
    except GoogleAuthError as error:
        raise ProviderError(
            "denied",
            f"no credentials of Google Cloud: {str(error).rstrip('.')}. Run `gcloud auth application-default login`, "
            "or scale on a machine of Google Cloud",
        ) from error
    return credentials, project or ""


class GoogleCalls:
    """Makes calls: repeats failures that may pass, and raises all others as a ProviderError."""

    def __init__(self, access: GoogleAccess) -> None:
        self.access = access

    async def repeat(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The answer of an idempotent call, which is repeated after failures that may pass."""

        async def attempt_again() -> T:  # tenacity awaits only functions that are declared async
            return await attempt()

        retrying = AsyncRetrying(
            stop=stop_after_delay(TOTAL_TIMEOUT),
            wait=wait_random_exponential(multiplier=0.2, max=5.0),
            retry=retry_if_exception(_may_pass),
            reraise=True,
        )
        return await self.once(lambda: retrying(attempt_again))

    async def repeat_unless(self, refusal: type[GoogleAPICallError], attempt: Callable[[], Awaitable[T]]) -> T | None:
        """As `repeat`, but None after this refusal, with which a repeated call ends if the first was carried out."""

        async def attempt_or_none() -> T | None:
            try:
                return await attempt()
            except refusal:
                return None

        return await self.repeat(attempt_or_none)

    async def once(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The answer of a call that must not be repeated before its outcome is known."""
        try:
            return await attempt()
        except GoogleAPICallError as error:
            self._refuse(error)
        except GoogleAuthError as error:
            raise ProviderError(
                "denied", f"Google Cloud does not accept the credentials of {self.access.account}: {error}"
            ) from error

    def _refuse(self, error: GoogleAPICallError) -> NoReturn:
        status = error.grpc_status_code
        code = int(status.value[0]) if status else code_pb2.UNKNOWN
        details: dict[str, Any] = dict(error.metadata or {})
        kind = kind_of(code, error.message, error.reason or "")
        remedy = self._remedy(kind, error.message, error.reason or "", details)
        text = f"{error.message.rstrip('.')}{remedy}" if remedy else error.message
        raise ProviderError(kind, text) from error

    def _remedy(self, kind: str, text: str, reason: str, details: dict[str, Any]) -> str:
        if reason == "SERVICE_DISABLED":
            return f"; run: gcloud services enable {details.get('service', '')} --project={self.access.project}"
        if kind == "quota":
            return (
                f"; ask for more at https://console.cloud.google.com/iam-admin/quotas?project={self.access.project}, "
                "or name another zone"
            )
        if kind != "denied":
            return ""
        match = _PERMISSION.search(text)
        permission = str(details.get("permission", "")) or (match and (match[1] or match[2])) or ""
        role = role_for(permission)
        if not role:
            return f"; see that {self.access.account} has the rights, and valid credentials"
        return (
            f"; {permission or 'it'} is missing: grant {role} in project {self.access.project} to {self.access.account}"
        )


def role_for(permission: str) -> str:
    """The predefined role for a permission that providers need; "" if there is none."""
    return _ROLES.get(permission.partition(".")[0], "")


def kind_of(code: int, text: str, reason: str = "") -> str:
    """The kind of a ProviderError for a status of Google Cloud.

    Args:
        code: the status's google.rpc.Code.
        text: its message.
        reason: that of its ErrorInfo; "" for none.
    """
    if code in _PERHAPS_FULL and _NO_CAPACITY.search(text):
        return "stockout"
    if code == code_pb2.RESOURCE_EXHAUSTED:
        return "unavailable" if reason == "RATE_LIMIT_EXCEEDED" or _RATE.search(text) else "quota"
    if code in _DENIED:
        return "invalid" if missing_location(text) else "denied"
    return "invalid" if code in _INVALID else "unavailable"


def missing_location(text: str) -> str:
    """The zone or region that does not exist, from the text of a refusal; "" for other refusals."""
    found = _NO_LOCATION.search(text)
    return (found[1] or found[2]) if found else ""


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, TooManyRequests):  # ResourceExhausted too
        return kind_of(code_pb2.RESOURCE_EXHAUSTED, str(error.message), error.reason or "") == "unavailable"
    return isinstance(error, _PASSING) and not _NO_CAPACITY.search(str(error))


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
