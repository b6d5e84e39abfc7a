"""Parses and checks submissions. Writes nothing."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence

from ffdl_batch.config.images import known_frameworks
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.environment_variables import why_too_long, why_too_many
from ffdl_batch.domain.job.spec import BatchOptions, JobSpec
from ffdl_batch.domain.job.submission import Submission
from ffdl_batch.domain.quantity import parse_size
from ffdl_batch.domain.sbatch.script_options import with_absolute_times
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.permissions import (
    MAX_GID,
    MAX_UMASK,
    PRIVATE_UMASK,
    find_old_groups,
    group_name,
    groups_of_process,
    groups_of_user,
)
from ffdl_batch.host.time_zone import read_utc_offsets
from ffdl_batch.ports.capabilities import ChoosesCluster
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.refusals import Refused, bad_input, bad_request, unavailable
from ffdl_batch.services.secrets.job_secrets import bring_along, missing_secrets
from ffdl_batch.services.submission.job_dependencies import ArrayDependency

_NOT_UTF8 = re.compile("[\ud800-\udfff]")
_SHOWN = 60
_MOST_OFFSETS = 1000
_FURTHEST_S = 86_400


@dataclass(frozen=True, slots=True)
class Candidate:
    """A submission that has been parsed and checked."""

    spec: JobSpec
    backend: str
    warnings: tuple[Finding, ...]
    notes: tuple[str, ...]
    """Harmless differences from FfDL. A plan shows them, a submission does not."""
    secrets: Mapping[str, str]
    """The values of secrets in the submission, by name. They are written only to a file of mode 0600."""
    manifest_name: str
    lines: Mapping[str, int | str]
    """Place of each value that the manifest gives → its line, or the option that gives it; 0 = neither is known."""

    @property
    def is_later(self) -> bool:
        """Whether the job waits for something that may create its input."""
        batch = self.spec.batch
        return bool(batch.dependency or batch.begin or batch.hold)


def read_submission(storage: JobStorage, adapters: Adapters, submission: Submission) -> Candidate:
    """Parse and check a submission. Raises :class:`Refused`."""
    from ffdl_batch.manifest import Defaults, ManifestSource, parse_manifest

    _check_text(submission, storage.root.path)
    _check_permissions(submission)
    settings = adapters.settings
    name = submission.backend or adapters.default_name()
    _check_cluster(adapters, name, submission)
    source = ManifestSource(submission.manifest, submission.manifest_name, submission.base_dir)
    defaults = Defaults(
        memory_bytes=parse_size(settings.default_memory),
        cpus=settings.default_cpus,
        known_frameworks=known_frameworks(settings),
        own_keys=_own_keys(adapters, name),
        pools=frozenset(settings.elastic),
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
    batch, unreadable = _read_times(spec.batch, submission, storage.clock.now())
    spec, wrong = dataclasses.replace(spec, batch=batch), [*wrong, *unreadable]
    candidate = Candidate(spec, name, warnings, notes, secrets, submission.manifest_name, parsed.lines)
    wrong += missing_secrets(storage.root, spec, secrets)
    if wrong:
        raise bad_input([*warnings, *(locate(candidate, finding) for finding in wrong)])
    return candidate


def _check_cluster(adapters: Adapters, backend: str, submission: Submission) -> None:
    """Refuse a submission from a shell whose sbatch would choose another cluster. Raises Refused."""
    try:
        adapter = adapters.get(backend)
    except InvalidRequest:
        return  # reported when the backend is asked for a plan
    if submission.cluster is not None and isinstance(adapter, ChoosesCluster):
        why, cure = adapter.compare_cluster(submission.cluster)
        if why:
            raise unavailable(why, cure=cure)


def _read_times(batch: BatchOptions, submission: Submission, now: float) -> tuple[BatchOptions, tuple[Finding, ...]]:
    """Resolve the times of `batch` in the submitter's time zone. Raises Refused for malformed offsets."""
    offsets = submission.utc_offsets
    if len(offsets) > _MOST_OFFSETS or any(len(one) != 2 or abs(one[1]) >= _FURTHEST_S for one in offsets):
        raise bad_request("C101", "utc_offsets is not a list of pairs: seconds since the epoch, seconds from UTC")
    return with_absolute_times(batch, now, offsets or read_utc_offsets(now))


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
    """Refuse a umask or a group id that no process can have, and a umask that takes the owner's own access."""
    if submission.umask is not None and not 0 <= submission.umask <= MAX_UMASK:
        raise bad_request("C101", f"umask: {submission.umask} is not between 0 and {MAX_UMASK} (0o777)")
    if submission.umask is not None and submission.umask & stat.S_IRWXU:
        why = f"umask {submission.umask:04o} denies you access to your own new files, and results could not be stored"
        cure = f"before you submit, run: umask {submission.umask & ~stat.S_IRWXU:04o}"
        raise bad_request("C101", why, cure=cure)
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
    """Refuse variables of the submitter with which no program can be started. The manifest's parser checks the
    manifest's own."""
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
    """Return the manifest keys of the backend; None if it cannot be used, which is reported when it plans."""
    try:
        adapter = adapters.get(backend)
    except InvalidRequest:
        return None
    return adapter.traits.own_keys


def name_elements(storage: JobStorage, candidate: Candidate, specs: Sequence[JobSpec]) -> list[Candidate]:
    """Return a candidate for each of `specs`, with arrays in its dependency replaced by their elements. Raises
    :class:`Refused`."""
    text = candidate.spec.batch.dependency
    try:
        dependency = ArrayDependency(storage, text, len(specs))
        indexes = [spec.element.index if spec.element is not None else None for spec in specs]
        texts = [dependency.of(index) for index in indexes] if text else [""] * len(specs)
    except InvalidRequest as error:
        raise refusal_of(candidate, error) from error
    return [
        dataclasses.replace(
            candidate,
            spec=spec
            if named == text
            else dataclasses.replace(spec, batch=dataclasses.replace(spec.batch, dependency=named)),
        )
        for spec, named in zip(specs, texts, strict=True)
    ]


def refusal_of(candidate: Candidate, error: InvalidRequest) -> Refused:
    """Return the error for the submitter: the adapter's findings with file and line, or with the option in their text
    (the option is used correctly, so it is no path, which would mean wrong usage), and the warnings so far."""
    code = error.findings[0].code if error.findings else "C104"
    located = [_in_text(locate(candidate, finding)) for finding in error.findings]
    return bad_request(code, str(error), (*candidate.warnings, *located))


def _in_text(finding: Finding) -> Finding:
    """Return a finding about the value of an option with the option in its text."""
    if finding.path is None or not finding.path.startswith("--"):
        return finding
    return dataclasses.replace(finding, path=None, message=f"{finding.path}: {finding.message}")


def all_warnings(candidate: Candidate, plan: LaunchPlan) -> tuple[str, ...]:
    """Return the warnings for the submitter. The job's record has the plan's warnings without lines of the manifest,
    because these mean nothing after a resume."""
    return (*map(str, candidate.warnings), *(_placed(candidate, warning) for warning in plan.warnings))


def _placed(candidate: Candidate, warning: str) -> str:
    """Add file and line to an adapter's warning about a field of the manifest, which has the form ``field:
    sentence``."""
    path, _, sentence = warning.partition(": ")
    if not candidate.lines.get(path):
        return warning
    return str(locate(candidate, Finding(Severity.WARNING, sentence, path=path)))


def locate(candidate: Candidate, finding: Finding) -> Finding:
    """Return `finding` with the option that gives its field, or with the line of its field or of the nearest enclosing
    block in the manifest."""
    if finding.file is not None or finding.path is None:
        return finding
    option = candidate.lines.get(finding.path)
    if isinstance(option, str):
        return dataclasses.replace(finding, path=option, message=finding.message.removeprefix(f"{option}: "))
    ends = [len(finding.path), *(found.start() for found in reversed(list(re.finditer(r"[.\[]", finding.path))))]
    lines = (candidate.lines[finding.path[:end]] for end in ends if finding.path[:end] in candidate.lines)
    line = next((found for found in lines if not isinstance(found, str)), None)
    if not candidate.manifest_name:
        return finding
    return dataclasses.replace(finding, file=candidate.manifest_name, line=line or None)
