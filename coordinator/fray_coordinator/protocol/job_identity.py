"""The id, the namespace and the user of a submitted job.

**Invariant.** A top-level job that names no namespace shares its own with its descendants alone; the same words
submitted again under an id of one's own find the first job.

**Unsafe sequence.** The namespace is made of the job's name. Two people run jobs of one name; what the second launches
finds the names that the first has taken, adopts the first one's jobs and returns their results.

**Why this cannot happen.** The namespace is the job's id. An own `id` makes the job's id from the namespace that was
named, if any, so that it is the same at every submission.
"""

from msgspec.structs import replace

from fray_layouts.object_keys import JobIds
from fray_layouts.records import JobRecord
from fray_layouts.spec import JobSpec


def identify(spec: JobSpec, parent: JobRecord | None, fresh: str) -> tuple[str, JobSpec]:
    """The job's id, and its spec with namespace and user filled in.

    fresh: the id of a job that has no `id` of its own.
    """
    namespace = spec.namespace or (parent.spec.namespace if parent else "")
    job = JobIds.given(namespace, spec.name, spec.id) if spec.id else fresh
    return job, replace(spec, namespace=namespace or job, user=spec.user or (parent.spec.user if parent else ""))
