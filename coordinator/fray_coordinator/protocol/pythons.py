"""The version of Python that a job runs with.

**Invariant.** A callable is loaded by the minor version that pickled it: its code is bytecode, which no other version
reads.

**Unsafe sequence.**

1. A client on Python 3.12 submits a callable.
2. An agent on Python 3.11 unpickles it, and crashes or runs something else.

**Why this cannot happen.** The spec names the client's version, and `chosen_python` gives no other one. A claimer whose
host lacks the version leaves the job to hosts that have it. If no host has it, the job fails with a message that says
so.
"""

from __future__ import annotations

from collections.abc import Iterable

from fray_layouts.records import Software
from fray_layouts.spec import JobSpec

_PATCHES = 40
"""Patch releases of a minor version that are tried against a specifier such as ">=3.11.4". Python 3.9 had the
most so far, 26."""


def chosen_python(spec: JobSpec, software: Software) -> str:
    """The minor version for the job on this host: the agent's own if it fits, else the newest that does; "" if none."""
    have = [software.python, *reversed(software.pythons)]
    return next((minor for minor in have if minor and will_do(spec, minor)), "")


def will_do(spec: JobSpec, minor: str) -> bool:
    """Whether the job can run on some release of this minor version."""
    call = spec.entrypoint.callable
    if call is not None and call.python not in ("", minor):
        return False
    return not spec.environment.python or _allows(spec.environment.python, minor)


def _allows(specifier: str, minor: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # costs 10 ms, and most jobs ask for none

    try:
        allowed = SpecifierSet(specifier)
    except InvalidSpecifier:  # somebody wrote it by hand, and no version satisfies it
        return False
    return any(allowed.contains(f"{minor}.{patch}") for patch in range(_PATCHES))


def python_shortage(spec: JobSpec, software: Software) -> str:
    """The reason why a host has no Python for the job; "" if it has one.

    It is "" also if the job has an image, or if nothing is known of the host.
    """
    if spec.environment.docker_image or not software.python or chosen_python(spec, software):
        return ""
    call, wanted = spec.entrypoint.callable, spec.environment.python
    asks = [f"{call.python} (which pickled the callable)"] if call is not None and call.python else []
    asks += [wanted] if wanted else []
    has = ", ".join(dict.fromkeys([software.python, *software.pythons]))
    no_uv = "" if software.pythons else ", and no uv to use another one"
    return f"Python: {' and '.join(asks)} wanted, {has} here{no_uv}"


def some_other_has_python(spec: JobSpec, others: Iterable[Software]) -> bool:
    """Whether one of the other known hosts has a Python for the job."""
    return any(software.python and not python_shortage(spec, software) for software in others)
