"""Plans the launch of an attempt, and refuses what the site or the data stores rule out. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ffdl_batch.attempt.layout import Root
from ffdl_batch.config.images import UnknownImage, resolve_image, resolve_oci_image
from ffdl_batch.config.settings import Settings
from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.job import JobId, attempt_token
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.domain.outcome.continuation import Checkpoint, Spent
from ffdl_batch.domain.quantity import parse_size
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerMissing, SchedulerUnreachable
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.data.data_directories import leaving_links, wrong_dirs, wrong_output
from ffdl_batch.services.data.data_store_checks import StoreChecks
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.outcome.retry_budget import budget_of, lead_of
from ffdl_batch.services.refusals import Refused, bad_request, try_again, unavailable
from ffdl_batch.services.secrets.job_secrets import values_at_hand
from ffdl_batch.services.submission.job_dependencies import strip_dependency
from ffdl_batch.services.submission.validation import Candidate, locate, refusal_of


def facts_or_refuse(adapters: Adapters, backend: str) -> BackendFacts:
    """Return the facts of the backend's site. Raises :class:`Refused` if there is no such backend or it never
    answered."""
    try:
        adapters.get(backend)
    except InvalidRequest as error:
        raise bad_request("S101", str(error), error.findings) from error
    try:
        return adapters.facts(backend)
    except InvalidRequest as error:
        raise unavailable(str(error), error.findings) from error
    except SchedulerMissing as error:
        raise unavailable(str(error)) from error
    except SchedulerUnreachable as error:
        message = f"the backend {backend} has never answered, so nothing was accepted: {error}"
        raise try_again("S200", message, cure="submit again when the scheduler answers") from error


def plan_or_refuse(
    storage: JobStorage,
    adapters: Adapters,
    candidate: Candidate,
    job_id: JobId,
    environ: Mapping[str, str],
    attempt: int = 1,
) -> LaunchPlan:
    """Plan an attempt. Raises :class:`Refused` with the adapter's reasons.

    If the adapter refuses it, the plan is tried once more with newer facts: a partition may have been created a minute
    ago.
    """
    facts_or_refuse(adapters, candidate.backend)
    for last in (False, True):
        try:
            request = launch_request(
                storage,
                adapters,
                candidate.spec,
                candidate.backend,
                job_id,
                attempt,
                environ=environ,
            )
            plan = adapters.get(candidate.backend).plan(request)
            for finding in _wrong_dirs(adapters, candidate, plan):
                if finding.severity is Severity.ERROR:
                    raise bad_request(finding.code, str(finding), (*candidate.warnings, finding))
            return plan
        except UnknownImage as error:
            raise _no_image(candidate, error) from error
        except InvalidRequest as error:
            if last:
                raise refusal_of(candidate, error) from error
            adapters.refresh(candidate.backend)
    raise AssertionError("unreachable")


def _wrong_dirs(adapters: Adapters, candidate: Candidate, plan: LaunchPlan) -> list[Finding]:
    """Return the errors and warnings about directories of data, results and output."""
    spec, later, is_node = candidate.spec, candidate.is_later, adapters.facts(candidate.backend).is_this_machine
    found = list(wrong_dirs(spec.data_stores, plan.launch, later=later, is_node=is_node))
    if is_node and spec.batch.output:
        found.extend(wrong_output(spec.batch.output, spec.base_dir, later=later))
    return [locate(candidate, finding) for finding in found]


def check_stores(
    root: Root, adapters: Adapters, store_checks: StoreChecks, candidate: Candidate, plan: LaunchPlan
) -> tuple[Finding, ...]:
    """Check the data stores of a job and return warnings. Raises :class:`Refused` for errors."""
    links = (locate(candidate, one) for one in leaving_links(candidate.spec.data_stores, plan.launch))
    seen = (*_wrong_dirs(adapters, candidate, plan), *links)
    if not plan.launch.fetches and not plan.launch.uploads:
        return seen
    secrets = values_at_hand(root, candidate.spec, candidate.secrets)
    asked = store_checks.findings(plan.launch, candidate.spec.data_stores, secrets, later=candidate.is_later)
    found = [locate(candidate, finding) for finding in asked]
    wrong = tuple(finding for finding in found if finding.severity is Severity.ERROR)
    if wrong:
        raise bad_request(wrong[0].code, "; ".join(map(str, wrong)), (*candidate.warnings, *wrong))
    return (*seen, *found)


def launch_request(  # noqa: PLR0913 - one value per column of the attempt
    storage: JobStorage,
    adapters: Adapters,
    spec: JobSpec,
    backend: str,
    job_id: JobId,
    attempt: int = 1,
    *,
    environ: Mapping[str, str],
    checkpoints: Sequence[Checkpoint] = (),
    spent: Spent | None = None,
    carry: str = "",
) -> LaunchRequest:
    """Return the request for an adapter's `plan`. Raises UnknownImage for an image that is missing or forbidden, and
    InvalidRequest for an unsupported dependency.

    `checkpoints` are those of earlier attempts, `spent` is the used part of the retry budget, and `carry` the results
    directory of the attempt before. A first attempt has none of them.
    """
    facts = adapters.facts(backend)
    job_dir = storage.root.job(job_id)
    lead = lead_of(spec, checkpoints)
    return LaunchRequest(
        job_id=job_id,
        attempt=attempt,
        token=attempt_token(job_id, attempt),
        spec=strip_dependency(storage, spec),
        job_dir=job_dir,
        attempt_dir=job_dir.attempt(attempt),
        doorbell=storage.root.doorbell,
        facts=facts,
        image=_image(adapters.settings, spec, facts),
        signers=adapters.settings.image_policy.signers,
        user_env={**environ, **spec.batch.env},
        minimum_network=adapters.settings.network_minimum,
        lead_s=lead.seconds,
        lead_from=lead.origin,
        budget=budget_of(spec.batch.retry),
        spent=spent or Spent(),
        carry=carry,
        confirmed=next((c.newest for c in reversed(checkpoints) if c.confirmed and c.newest), ""),
        array_dir=storage.root.array(spec.element.array) if spec.element is not None and attempt == 1 else None,
        logs=_log_limits(adapters.settings),
        cache_dir=adapters.settings.cache_dir,
        cache_bytes=adapters.settings.cache_bytes,
        images_dir=storage.root.images,
        mounting=adapters.settings.data_mount,
        user=storage.user,
    )


def _log_limits(settings: Settings) -> LogLimits:
    return LogLimits(parse_size(settings.log_file_size), settings.log_files, parse_size(settings.log_rate))


def _image(settings: Settings, spec: JobSpec, facts: BackendFacts) -> str:
    if not facts.needs_image:
        return ""
    return (resolve_oci_image if facts.pulls_images else resolve_image)(settings, spec.framework)


def _no_image(candidate: Candidate, error: UnknownImage) -> Refused:
    finding = locate(candidate, Finding(Severity.ERROR, str(error), path="framework.version", code=error.code))
    return bad_request(error.code, str(finding), (*candidate.warnings, finding))
