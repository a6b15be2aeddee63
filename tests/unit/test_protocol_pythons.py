"""Which version of Python a job runs with, and who may claim it."""

from typing import Any

import pytest

from fray_coordinator.jobs.claiming import Claimed, NotClaimed, try_claim
from fray_coordinator.jobs.why_waiting import why_waiting
from fray_coordinator.protocol.claiming import CLAIM_RETRY_SECONDS, Skip, claim
from fray_coordinator.protocol.environments import chosen_python, python_shortage, some_other_has_python
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.stopping import ChildVerdict
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import AgentRecord, JobLease, JobRecord, Resources, Software
from fray_layouts.spec import CallableSpec, EntrypointSpec, JobSpec
from fray_layouts.spec_parsing import parse_spec
from tests.support.virtual import Cluster

HERE = Software(python="3.11", pythons=["3.11", "3.12", "3.13"])
BARE = Software(python="3.11")


def job(pickled_by: str | None = None, **environment: Any) -> JobSpec:
    entrypoint = {"command": ["x"]} if pickled_by is None else {"callable": {"pickle": "AA==", "python": pickled_by}}
    return parse_spec({"name": "j", "entrypoint": entrypoint, "environment": environment})


@pytest.mark.parametrize(
    ("spec", "chosen"),
    [
        (job(), "3.11"),
        (job(""), "3.11"),
        (job("3.11"), "3.11"),
        (job("3.12"), "3.12"),
        (job("3.14"), ""),
        (job(python=">=3.11"), "3.11"),
        (job(python=">=3.11.9"), "3.11"),
        (job(python=">3.11.99"), "3.13"),
        (job(python="==3.12.*"), "3.12"),
        (job(python=">=3.12,<3.13"), "3.12"),
        (job(python=">=3.14"), ""),
        (job("3.12", python=">=3.13"), ""),
    ],
)
def test_the_agents_own_version_is_taken_if_it_will_do_else_the_newest(spec: JobSpec, chosen: str) -> None:
    assert chosen_python(spec, HERE) == chosen


def test_the_shortage_names_both_versions_and_why() -> None:
    assert python_shortage(job("3.12"), HERE) == ""
    assert python_shortage(job("3.14"), HERE) == (
        "Python: 3.14 (which pickled the callable) wanted, 3.11, 3.12, 3.13 here"
    )
    assert (
        python_shortage(job(python=">=3.12"), BARE) == "Python: >=3.12 wanted, 3.11 here, and no uv to use another one"
    )


def test_images_bring_their_own_and_agents_that_say_nothing_are_not_judged() -> None:
    assert python_shortage(job("3.14", docker_image="python:3.14"), HERE) == ""
    assert python_shortage(job("3.14"), Software()) == ""
    assert not some_other_has_python(job("3.14"), [Software(), HERE])
    assert some_other_has_python(job("3.12"), [BARE, HERE])


def test_a_specifier_that_is_none_is_refused_and_in_a_record_fits_no_host() -> None:
    with pytest.raises(InvalidInput, match=r"environment.python: 'newest' is not accepted; give versions as in"):
        job(python="newest")
    written = JobSpec(name="j", entrypoint=EntrypointSpec(command=["x"]))
    written.environment.python = "newest"
    assert python_shortage(written, HERE).startswith("Python: newest wanted")


@pytest.mark.parametrize("requirement", ["--index-url=http://elsewhere", " -r file", "", "a\n-r b"])
def test_pip_packages_are_requirements_only(requirement: str) -> None:
    with pytest.raises(InvalidInput, match=r"environment\.pip_packages"):
        job(pip_packages=[requirement])


def test_a_claimer_leaves_the_job_to_others_that_have_its_python() -> None:
    record = JobRecord(id="j-1", spec=job("3.12"), status="pending", submitted_at=90.0)
    lease = JobLease(agent="a", host="h", since=100.0)
    assert claim(record, 1, lease, ChildVerdict.KEEP, for_others=True) == Skip(100.0 + CLAIM_RETRY_SECONDS)
    assert isinstance(claim(record, 1, lease, ChildVerdict.KEEP), JobRecord)


async def test_a_job_whose_python_no_agent_has_is_claimed_so_that_it_fails_with_the_reason(cluster: Cluster) -> None:
    core = await cluster.core()
    spec = JobSpec(name="j", entrypoint=EntrypointSpec(callable=CallableSpec(pickle="AA==", python="3.12")))

    async def pending(number: int) -> JobRecord:
        record = JobRecord(id=f"j-{number}", spec=spec, status="pending", submitted_at=core.now())
        await core.records.write(JobKeys.key(record.id), JobRecord, record, None)
        return record

    first, second = await pending(1), await pending(2)
    me = AgentRecord(id="a", host="h", pool="default", software=BARE)
    assert isinstance(await try_claim(core, entry_of(first), "a", "h", me=me), Claimed)
    other = AgentRecord(id="b", host="g", pool="default", software=HERE)
    await core.records.write(AgentKeys.key("b"), AgentRecord, other, None)
    answer = await try_claim(core, entry_of(second), "a", "h", me=me)
    assert isinstance(answer, NotClaimed)
    assert answer.until is not None


def test_the_reason_why_a_job_waits_has_the_versions() -> None:
    record = JobRecord(id="j-1", spec=job("3.12"), status="pending", submitted_at=90.0)
    agent = AgentRecord(id="a", host="h", pool="default", capacity=Resources(cpu=8000), software=BARE)
    assert "could ever run it: a (Python: 3.12 (which pickled the callable) wanted, 3.11 here" in (
        why_waiting(record, [agent], 100.0)
    )
    able = AgentRecord(id="b", host="h", pool="default", capacity=Resources(cpu=8000), software=HERE)
    assert "b (cpu: 1 core wanted, 0 free)" in why_waiting(record, [agent, able], 100.0)


def test_without_uv_the_reason_says_that_packages_need_it() -> None:
    record = JobRecord(id="j-1", spec=job(pip_packages=["x"]), status="pending", submitted_at=90.0)
    agent = AgentRecord(id="a", host="h", pool="default", capacity=Resources(cpu=8000), software=BARE)
    assert "a (a host with uv (`pip install uv`), because it has packages of its own)" in why_waiting(
        record, [agent], 100.0
    )
