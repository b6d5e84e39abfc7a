"""Jobs that wait for other jobs of ours."""

from __future__ import annotations

from ffdl_batch.domain.job import JobId
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.planning import plan_submission
from ffdl_batch.services.submit import submit
from tests.unit.services.conftest import Site


def after(site: Site, key: str, *others: str) -> str:
    """Submit a job that depends on others; its id, or the refusal."""
    option = ",".join(f"afterok:{other}" for other in others)
    (result,) = submit(site.platform, site.caller, [site.submission(key, options={"dependency": option})])
    return result.id or str(result.problem)


def test_a_job_may_depend_on_one_that_the_scheduler_has(site: Site) -> None:
    first = site.deployed("first")
    second = after(site, "second", first.id)
    assert site.scheduler.planned[-1].native_dependencies == {first.id: first.native_id}
    assert site.job(second).state == "PENDING"


def test_a_job_may_depend_on_one_that_the_scheduler_will_have(site: Site) -> None:
    """Two commands in a row, as people type them: the first job has no scheduler's id yet."""
    first = site.accept("first")
    second = after(site, "second", first.id)
    assert site.job(second).state == "PENDING"
    deployer = Deployer(site.platform)
    deployer.step()
    site.clock.tick(60)
    deployer.step()
    assert site.job(second).state == "QUEUED"
    sent = [request for request in site.scheduler.planned if request.token == f"{second}-1"][-1]
    assert sent.native_dependencies == {first.id: site.job(first.id).native_id}


def test_a_job_that_never_was_is_nobodys_id(site: Site) -> None:
    after(site, "second", "training-00000000z")
    assert site.scheduler.planned[-1].native_dependencies == {}


def test_a_job_of_another_backend_is_nobodys_id(site: Site) -> None:
    first = site.deployed("first")
    site.platform.adapters.use("other", site.scheduler)
    option = {"dependency": f"afterok:{first.id}"}
    submit(site.platform, site.caller, [site.submission("second", options=option, backend="other")])
    assert site.scheduler.planned[-1].native_dependencies == {}


def test_a_plan_knows_the_dependencies_too(site: Site) -> None:
    first = site.deployed("first")
    option = {"dependency": f"afterok:{first.id}"}
    plan_submission(site.platform, site.caller, site.submission("x", options=option), trial=False)
    assert site.scheduler.planned[-1].native_dependencies == {JobId(first.id): first.native_id}
