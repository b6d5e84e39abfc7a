"""From a submission to a job that could be deployed: parsed, checked against the site, planned. Writes nothing."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ffdl_batch.attempt.layout import Root
from ffdl_batch.config.images import UnknownImage, known_frameworks, resolve_image, resolve_oci_image
from ffdl_batch.config.settings import Settings
from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.environment_variables import why_too_long, why_too_many
from ffdl_batch.domain.job.job import JobId, attempt_token
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.job.submission import Submission
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.domain.outcome.continuation import Checkpoint, Spent
from ffdl_batch.domain.quantity import parse_size
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerMissing, SchedulerUnreachable
from ffdl_batch.host.permissions import (
    MAX_GID,
    MAX_UMASK,
    PRIVATE_UMASK,
    find_old_groups,
    group_name,
    groups_of_process,
    groups_of_user,
)
from ffdl_batch.ports.capabilities import HasOwnKeys
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.data.data_directories import leaving_links, wrong_dirs
from ffdl_batch.services.data.data_store_checks import StoreChecks
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.outcome.retry_budget import budget_of, lead_of
from ffdl_batch.services.refusals import Refused, bad_input, bad_request, try_again, unavailable
from ffdl_batch.services.secrets.job_secrets import bring_along, missing_secrets, values_at_hand
from ffdl_batch.services.submission.job_dependencies import ArrayDependency, strip_dependency
from ffdl_batch.services.submission.shell_context import check_cluster, read_times

_NOT_UTF8 = re.compile("[\ud800-\udfff]")
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Candidate:
    """A submission that could run.

    `notes` say where we differ from FfDL without harm; a plan shows them, a submission does not repeat them.
    `secrets` are the values that it brings along, by name; they go into a 0600 file only.
    """

    spec: JobSpec
    backend: str
    warnings: tuple[Finding, ...]
    notes: tuple[str, ...]
    secrets: Mapping[str, str]
    manifest_name: str

    @property
    def is_later(self) -> bool:
        """Whether the job waits for something that may make what it needs."""
        batch = self.spec.batch
        return bool(batch.dependency or batch.begin or batch.hold)


def read_submission(storage: JobStorage, adapters: Adapters, submission: Submission) -> Candidate:
    """Parse and check what a user sent; raises :class:`Refused`."""
    from ffdl_batch.manifest import Defaults, ManifestSource, parse_manifest

    _check_text(submission, storage.root.path)
    _check_permissions(submission)
    settings = adapters.settings
    name = submission.backend or adapters.default_name()
    check_cluster(adapters, name, submission)
    source = ManifestSource(submission.manifest, submission.manifest_name, submission.base_dir)
    defaults = Defaults(
        memory_bytes=parse_size(settings.default_memory),
        cpus=settings.default_cpus,
        known_frameworks=known_frameworks(settings),
        own_keys=_own_keys(adapters, name),
    )
    parsed = parse_manifest(
        source,
        options=submission.options,
        environment_options=submission.environment_options,
        defaults=defaults,
        strict=submission.strict,
    )
    if parsed.spec is None:
        raise bad_input(parsed.findings)
    _check_environment(submission.environ, parsed.spec.batch.env)
    spec = dataclasses.replace(
        parsed.spec,
        manifest_text=parsed.redacted_text,
        umask=PRIVATE_UMASK if submission.umask is None else submission.umask,
        gid=submission.gid,
    )
    warnings = (*(f for f in parsed.findings if f.severity is Severity.WARNING), *_foreign_group(submission.gid))
    notes = tuple(str(f) for f in parsed.findings if f.severity is Severity.NOTE)
    spec, secrets, wrong = bring_along(spec, parsed.inline_secrets, submission.references)
    batch, unreadable = read_times(spec.batch, submission, storage.clock.now())
    spec, wrong = dataclasses.replace(spec, batch=batch), [*wrong, *unreadable]
    candidate = Candidate(spec, name, warnings, notes, secrets, submission.manifest_name)
    wrong += missing_secrets(storage.root, spec, secrets)
    if wrong:
        raise bad_input([*warnings, *(_located(candidate, finding) for finding in wrong)])
    return candidate


def _check_text(submission: Submission, jobs_dir: str) -> None:
    """Refuse text that UTF-8 cannot represent, because scripts, files and Kubernetes objects cannot hold it.

    Python represents bytes that are not UTF-8 in command lines, variables and file names as lone surrogates (PEP 383).
    The manifest's text is checked where it is parsed. Values of variables may be secret and are not shown.
    """
    again, unset = "write it in UTF-8 (see locale)", "unset it, or leave it out of --export"
    texts = [
        *((f"--{name}", value, value, again) for name, value in submission.options.items()),
        *((name, value, value, again) for name, value in submission.environment_options.items()),
        *((name, value, "", unset) for name, value in submission.environ.items()),
        *((name, value, "", again) for name, value in submission.references.items()),
        *(
            (subject, value, value, cure)
            for subject, value, cure in (
                ("the manifest's directory", submission.base_dir, "rename it, or submit from another directory"),
                ("the manifest's name", submission.manifest_name, "rename it"),
                ("the backend", submission.backend, again),
                ("the key of the submission", submission.key, again),
                ("jobs_dir", jobs_dir, "set FFDL_JOBS_DIR to a directory with a UTF-8 name"),
            )
        ),
    ]
    wrong = [
        Finding(Severity.ERROR, f"{_escaped(shown) or 'the variable'} is not UTF-8 text", cure, path=_escaped(subject))
        for subject, value, shown, cure in texts
        if _NOT_UTF8.search(subject + value)
    ]
    if wrong:
        raise bad_input(wrong)


def _check_permissions(submission: Submission) -> None:
    """Refuse a umask or a group id that no process can have."""
    if submission.umask is not None and not 0 <= submission.umask <= MAX_UMASK:
        raise bad_request("C101", f"umask: {submission.umask} is not between 0 and {MAX_UMASK} (0o777)")
    if submission.gid is not None and not 0 <= submission.gid <= MAX_GID:
        raise bad_request("C101", f"gid: {submission.gid} is not between 0 and {MAX_GID}")


def _foreign_group(gid: int | None) -> Iterator[Finding]:
    """Yield a warning if processes of this daemon cannot give files to the submitter's group."""
    if gid is None or gid in groups_of_process():
        return
    name, old = group_name(gid), find_old_groups() if gid in groups_of_user() else None
    why = old.why if old else f"user {os.geteuid()}, who runs the daemon, is not a member of it"
    cure = old.cure if old else "select another group with newgrp before you submit"
    yield Finding(Severity.WARNING, f"results may not get the submitter's group '{name}': {why}", cure)


def _check_environment(environ: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Refuse variables of the submitter with which no program can be started. The manifest's own are checked where it
    is parsed."""
    brought = {name: value for name, value in environ.items() if name not in own}
    found = [why for name, value in brought.items() if (why := why_too_long(name, value))]
    if not found and (why := why_too_many({**brought, **own})):
        found = [why]
    if found:
        cure = "unset it, or leave it out of --export"
        raise bad_input([Finding(Severity.ERROR, why, cure) for why in found])


def _escaped(text: str) -> str:
    """Return the beginning of a text, with escapes for the bytes that are not UTF-8."""
    return _NOT_UTF8.sub(lambda match: f"\\x{ord(match[0]) & 0xFF:02x}", text[:_SHOWN])


def _own_keys(adapters: Adapters, backend: str) -> frozenset[str] | None:
    """None for a backend that cannot be used, which is said when it is asked for a plan."""
    try:
        adapter = adapters.get(backend)
    except InvalidRequest:
        return None
    return adapter.own_keys if isinstance(adapter, HasOwnKeys) else frozenset()


def name_elements(storage: JobStorage, candidate: Candidate, specs: Sequence[JobSpec]) -> list[Candidate]:
    """The candidates of one submission, for each of `specs`: arrays that they depend on are the trainings that are
    their elements. Raises :class:`Refused`."""
    text = candidate.spec.batch.dependency
    try:
        dependency = ArrayDependency(storage, text, len(specs))
        indexes = [spec.element.index if spec.element is not None else None for spec in specs]
        texts = [dependency.of(index) for index in indexes] if text else [""] * len(specs)
    except InvalidRequest as error:
        raise _refusal(candidate, error) from error
    return [
        dataclasses.replace(
            candidate,
            spec=spec
            if named == text
            else dataclasses.replace(spec, batch=dataclasses.replace(spec.batch, dependency=named)),
        )
        for spec, named in zip(specs, texts, strict=True)
    ]


def facts_or_refuse(adapters: Adapters, backend: str) -> BackendFacts:
    """What the backend's site is; raises :class:`Refused` where there is no such backend or it never answered."""
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
        message = f"the backend {backend} has never told what its site is, so nothing was accepted: {error}"
        raise try_again("S200", message, cure="submit again when the scheduler answers") from error


def plan_or_refuse(
    storage: JobStorage,
    adapters: Adapters,
    candidate: Candidate,
    job_id: JobId,
    environ: Mapping[str, str],
    attempt: int = 1,
) -> LaunchPlan:
    """The plan of an attempt; raises :class:`Refused` with the adapter's reasons.

    A request that names something unknown (a partition made a minute ago) is tried once more on fresh facts.
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
                raise _refusal(candidate, error) from error
            adapters.refresh(candidate.backend)
    raise AssertionError("unreachable")


def _wrong_dirs(adapters: Adapters, candidate: Candidate, plan: LaunchPlan) -> list[Finding]:
    """What is wrong with directories of data and results."""
    found = wrong_dirs(
        candidate.spec.data_stores,
        plan.launch,
        later=candidate.is_later,
        is_node=adapters.facts(candidate.backend).is_this_machine,
    )
    return [_located(candidate, finding) for finding in found]


def check_stores(
    root: Root, adapters: Adapters, store_checks: StoreChecks, candidate: Candidate, plan: LaunchPlan
) -> tuple[str, ...]:
    """Ask the stores of what will be submitted; what is doubtful. Raises :class:`Refused` for what is wrong."""
    links = (_located(candidate, one) for one in leaving_links(candidate.spec.data_stores, plan.launch))
    seen = tuple(map(str, (*_wrong_dirs(adapters, candidate, plan), *links)))
    if not plan.launch.fetches and not plan.launch.uploads:
        return seen
    secrets = values_at_hand(root, candidate.spec, candidate.secrets)
    asked = store_checks.findings(plan.launch, candidate.spec.data_stores, secrets, later=candidate.is_later)
    found = [_located(candidate, finding) for finding in asked]
    wrong = tuple(finding for finding in found if finding.severity is Severity.ERROR)
    if wrong:
        raise bad_request(wrong[0].code, "; ".join(map(str, wrong)), (*candidate.warnings, *wrong))
    return (*seen, *map(str, found))


def _refusal(candidate: Candidate, error: InvalidRequest) -> Refused:
    code = error.findings[0].code if error.findings else "C104"
    located = [_located(candidate, finding) for finding in error.findings]
    return bad_request(code, str(error), (*candidate.warnings, *located))


def all_warnings(candidate: Candidate, plan: LaunchPlan) -> tuple[str, ...]:
    """What the submitter is told. The job's record has a plan's warnings as the adapter says them: the manifest's lines
    mean nothing there after a resume."""
    return (*map(str, candidate.warnings), *(_placed(candidate, warning) for warning in plan.warnings))


def _placed(candidate: Candidate, warning: str) -> str:
    """An adapter's warning about a field of the manifest, as ``field: sentence``, with file and line."""
    path, _, sentence = warning.partition(": ")
    if not candidate.spec.sources.get(path, "").startswith("manifest:"):
        return warning
    return str(_located(candidate, Finding(Severity.WARNING, sentence, path=path)))


def _located(candidate: Candidate, finding: Finding) -> Finding:
    """`finding` with the line of its field, or of the nearest block around it that the manifest has."""
    if finding.file is not None or finding.path is None:
        return finding
    ends = [len(finding.path), *(found.start() for found in reversed(list(re.finditer(r"[.\[]", finding.path))))]
    places = (candidate.spec.sources.get(finding.path[:end], "") for end in ends)
    lines = (int(place.removeprefix("manifest:")) for place in places if place.startswith("manifest:"))
    return dataclasses.replace(finding, file=candidate.manifest_name, line=next(lines, None))


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
    """Everything an adapter's `plan` may know; raises UnknownImage for an image that is not there, and InvalidRequest
    for a dependency that cannot be waited for.

    `checkpoints` are what earlier attempts did, `spent` is what the chain has used up, and `carry` the results
    directory of the attempt before: a first attempt has none of them.
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
    finding = _located(candidate, Finding(Severity.ERROR, str(error), path="framework.version", code="S103"))
    return bad_request("S103", str(finding), (*candidate.warnings, finding))
