"""Build submissions, and divide them into requests."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from ffdl_batch.client.errors import InputUnusable
from ffdl_batch.client.submissions.exported_variables import ExportError, select_variables
from ffdl_batch.client.submissions.manifest_source import ManifestText, find_references
from ffdl_batch.client.submissions.submit_options import OWN_DIRECTORY, AllowedReferences
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.job.submission import Expected, Submission
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.permissions import read_umask
from ffdl_batch.host.time_zone import read_utc_offsets

OptionValue = str | int | float | bool | None
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*)", re.ASCII)
MAX_PER_REQUEST = 500
MAX_REQUEST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """The values that all manifests of one command share. Most are fields of
    :class:`~ffdl_batch.domain.job.submission.Submission`."""

    options: Mapping[str, str] = field(default_factory=dict)
    environment_options: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    """The variables that ``--export`` selected."""
    backend: str = ""
    strict: bool = False
    expected: Expected = Expected.ANY
    """Whether a job or an array is expected. The other one is refused."""
    allowed: AllowedReferences = OWN_DIRECTORY
    """The references that the manifests may use."""
    cluster: Mapping[str, str] | None = None


def wanted_from_keywords(backend: str, strict: bool, keywords: Mapping[str, OptionValue]) -> Wanted:
    """Convert ``cpus_per_task=4, hold=True`` into options of sbatch. Raises :class:`InputUnusable` for --export."""
    options: dict[str, str] = {}
    for keyword, value in keywords.items():
        if value is not None and value is not False:
            options[keyword.replace("_", "-")] = "" if value is True else str(value)
    try:
        exported = select_variables(options["export"], os.environ).values if "export" in options else {}
    except ExportError as error:
        raise InputUnusable(f"export: {error}", code="C101", exit_code=ExitCode.USAGE) from error
    if "export" in options:  # the names alone: values may be secret and travel in `environ`
        options["export"] = ",".join(sorted(exported))
    return Wanted(options, {}, exported, backend, strict)


def in_keywords(problem: Problem) -> Problem:
    """Replace the names of options in a refusal by Python's keywords. The daemon names them as the command line."""
    if not any(_is_option(finding) for finding in problem.findings):
        return problem
    return replace(
        problem,
        message=_pythonic(problem.message),
        findings=tuple(
            replace(finding, path=finding.path and _pythonic(finding.path), message=_pythonic(finding.message),
                    cure=finding.cure and _pythonic(finding.cure))
            if _is_option(finding) else finding
            for finding in problem.findings
        ),
    )  # fmt: skip


def _is_option(finding: Finding) -> bool:
    return finding.file is None and (finding.path or finding.message).startswith("--")


def _pythonic(text: str) -> str:
    return _OPTION.sub(lambda match: match[1].replace("-", "_"), text)


def build_submission(manifest: ManifestText, digest: str, wanted: Wanted) -> Submission:
    """Return a submission with a key of its own, so that sending it twice creates one job.

    Raises InputUnusable if `wanted` does not allow a reference of the manifest.
    """
    return Submission(
        manifest=manifest.text,
        manifest_name=manifest.name,
        base_dir=manifest.origin.base_dir,
        archive=digest,
        key=uuid.uuid4().hex,
        options=wanted.options,
        environment_options=wanted.environment_options,
        environ=wanted.environ,
        backend=wanted.backend,
        strict=wanted.strict,
        expected=wanted.expected,
        references=find_references(manifest, os.environ, wanted.allowed),
        umask=read_umask(),
        gid=os.getegid(),
        utc_offsets=read_utc_offsets(time.time()),
        cluster=wanted.cluster,
    )


def cut_into_requests(submissions: Sequence[Submission]) -> Iterator[Sequence[Submission]]:
    """Yield groups of at most 100 submissions and about 8 MiB, in order."""
    start, size = 0, 0
    for index, submission in enumerate(submissions):
        carried = (*submission.environ.items(), *submission.references.items())
        weight = len(submission.manifest) + sum(len(k) + len(v) for k, v in carried) + 1000
        if index > start and (index - start >= MAX_PER_REQUEST or size + weight > MAX_REQUEST_BYTES):
            yield submissions[start:index]
            start, size = index, 0
        size += weight
    if submissions:
        yield submissions[start:]
