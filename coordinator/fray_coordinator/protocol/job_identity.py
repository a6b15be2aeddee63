"""The id, the namespace and the user of a submitted job.

**Invariant.** A top-level job that names no namespace shares its namespace only with its descendants. A job that is
submitted again with the same id of its own is found again.

**Unsafe sequence.**

1. The namespace is made of the job's name. Users U and V both run a job named "train".
2. V's job launches a child whose name U's job has taken in that namespace.
3. V's job adopts U's child and returns its result.

**Why this cannot happen.** The namespace is the job's id. If the spec has an `id` of its own, the job's id is made from
it and the namespace that was named, if any, so it is the same at every submission.
"""

from msgspec.structs import replace

from fray_layouts.object_keys import JobIds
from fray_layouts.records import JobRecord
from fray_layouts.spec import JobSpec


def identify(spec: JobSpec, parent: JobRecord | None, fresh: str) -> tuple[str, JobSpec]:
    """The job's id, and its spec with namespace and user filled in.

    fresh: the id for a job whose spec has no `id` of its own.
    """
    namespace = spec.namespace or (parent.spec.namespace if parent else "")
    job = JobIds.given(namespace, spec.name, spec.id) if spec.id else fresh
    return job, replace(spec, namespace=namespace or job, user=spec.user or (parent.spec.user if parent else ""))
