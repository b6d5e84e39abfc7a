"""Calls that submit jobs, or plan them. What they need is imported when they run."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

from ffdl_batch.client.api_calls.requests import StreamCalls, read_answer, unreadable
from ffdl_batch.client.connection.daemon_start import Dialling
from ffdl_batch.client.connection.http_client import Request, Wire, json_request
from ffdl_batch.client.errors import RequestRefused, SubmissionWarning
from ffdl_batch.client.submissions.submit_options import (
    OWN_DIRECTORY,
    AllowedReferences,
    SubmitOptions,
    with_explicit_signature,
)
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.job.submission import Expected, SubmissionResult
from ffdl_batch.domain.job.views import PlanView

if TYPE_CHECKING:
    from ffdl_batch.client.api import Client
    from ffdl_batch.client.handles import ArrayHandle, JobHandle
    from ffdl_batch.client.submissions.submission_builder import OptionValue, Wanted
    from ffdl_batch.domain.job.submission import Submission

ManifestLike = str | Path | Mapping[str, object]
"""A manifest: the path of a file, a text of several lines, or a mapping such as a
:class:`~ffdl_batch.client.submissions.manifest_types.Manifest`."""


class SubmitCalls(StreamCalls):
    """Calls that submit jobs, or plan them."""

    _wire: Wire
    _dialling: Dialling

    @with_explicit_signature
    def submit(
        self,
        manifest: ManifestLike,
        model: str | Path,
        *,
        backend: str = "",
        strict: bool = False,
        allowed: AllowedReferences = OWN_DIRECTORY,
        **options: Unpack[SubmitOptions],
    ) -> JobHandle:
        """Submit one job. `manifest` is a path, a text, or a mapping such as a :class:`~ffdl_batch.Manifest`; `model`
        is a directory or a zip archive.

        The other keywords are the options of ``ffdl-submit`` with underscores; see
        :class:`~ffdl_batch.client.SubmitOptions`. `allowed` has the references that the manifest may use besides files
        in its directory. When this returns, the daemon has stored the job. Each warning of the submission is also
        issued as a :class:`~ffdl_batch.SubmissionWarning`. Raises RequestRefused with all findings, and for an array;
        InputUnusable for a reference that is not allowed.
        """
        from ffdl_batch.client.handles import JobHandle

        wanted = replace(self._wanted(backend, strict, allowed, options), expected=Expected.JOB)
        result = self._submit([manifest], model, wanted)[0]
        return JobHandle(cast("Client", self), _accepted(result).id, result.warnings, result.network)

    @with_explicit_signature
    def submit_array(
        self,
        manifest: ManifestLike,
        model: str | Path,
        *,
        backend: str = "",
        strict: bool = False,
        allowed: AllowedReferences = OWN_DIRECTORY,
        **options: Unpack[SubmitOptions],
    ) -> ArrayHandle:
        """Submit an array as :meth:`submit` does a job: a manifest with `batch.array` or `batch.sweep`, or the option
        ``array="0-9"``. Raises RequestRefused with all findings, and if it is no array."""
        from ffdl_batch.client.handles import ArrayHandle, JobHandle

        wanted = replace(self._wanted(backend, strict, allowed, options), expected=Expected.ARRAY)
        result = _accepted(self._submit([manifest], model, wanted)[0])
        client = cast("Client", self)
        jobs = [JobHandle(client, job_id, (), result.network) for job_id in result.elements]
        return ArrayHandle(client, result.id, jobs, result.warnings, result.network)

    @with_explicit_signature
    def submit_many(
        self,
        manifests: Sequence[ManifestLike],
        model: str | Path,
        *,
        backend: str = "",
        strict: bool = False,
        allowed: AllowedReferences = OWN_DIRECTORY,
        **options: Unpack[SubmitOptions],
    ) -> list[SubmissionResult]:
        """Submit several jobs (or arrays) that share a model. Return the results in order: each an id or a problem."""
        return self._submit(manifests, model, self._wanted(backend, strict, allowed, options))

    def _submit(self, manifests: Sequence[ManifestLike], model: str | Path, wanted: Wanted) -> list[SubmissionResult]:
        from ffdl_batch.client.submissions.manifest_source import read_manifest
        from ffdl_batch.client.submissions.submission_builder import build_submission, in_keywords

        submissions = [build_submission(read_manifest(manifest), "", wanted) for manifest in manifests]
        digest = self.upload(model, warn=_warn)
        results = self.send([replace(submission, archive=digest) for submission in submissions])
        for result in results:
            for warning in result.warnings:
                _warn(f"{result.id}: {warning}" if result.id else warning)
        return [replace(result, problem=result.problem and in_keywords(result.problem)) for result in results]

    def upload(
        self,
        model: str | Path,
        report: Callable[[str], None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> str:
        """Pack the model, upload it unless the daemon has it, and return its digest. `report` gets progress messages,
        and `warn` a warning if the model is large."""
        from ffdl_batch.client.submissions.model_archive import open_model

        note = report or (lambda _: None)
        with open_model(Path(model)) as archive:
            path = f"/api/v1/archives/{archive.digest}"
            note(f"model {model}: {archive.describe()}")
            if warn is not None and (warning := archive.warning(model)):
                warn(warning)
            if self._wire.ask_status(Request("HEAD", path)) != 200:
                note("uploading it")
                request = Request("PUT", path, archive.file, archive.size, "application/zip", timeout_s=600.0)
                self._wire.ask(request)
            return archive.digest

    def send(self, submissions: Sequence[Submission]) -> list[SubmissionResult]:
        """Send submissions whose archive is uploaded, at most 500 in a request. Return the results in order."""
        from ffdl_batch.client.submissions.submission_builder import cut_into_requests

        results: list[SubmissionResult] = []
        for part in cut_into_requests(submissions):
            body = {"submissions": [to_plain(submission) for submission in part]}
            reply = self._wire.ask(json_request("POST", "/api/v1/jobs", body))
            answers = [read_answer(SubmissionResult, plain) for plain in reply.get("results", ())]
            if len(answers) != len(part):
                raise unreadable(f"{len(answers)} results for {len(part)} submissions")
            results.extend(answers)
        return results

    @with_explicit_signature
    def plan(
        self,
        manifest: ManifestLike,
        model: str | Path,
        *,
        backend: str = "",
        strict: bool = False,
        allowed: AllowedReferences = OWN_DIRECTORY,
        trial: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> PlanView:
        """Return exactly what a submission would send, without sending it. `trial`: ask the scheduler when it would
        start."""
        from ffdl_batch.client.submissions.manifest_source import read_manifest
        from ffdl_batch.client.submissions.model_archive import open_model
        from ffdl_batch.client.submissions.submission_builder import build_submission, in_keywords

        wanted = self._wanted(backend, strict, allowed, options)
        text = read_manifest(manifest)
        with open_model(Path(model)) as archive:
            digest = archive.digest
        try:
            return self.plan_submission(build_submission(text, digest, wanted), trial=trial)
        except RequestRefused as error:
            raise type(error)(in_keywords(error.problem)) from error

    def _wanted(self, backend: str, strict: bool, allowed: AllowedReferences, options: SubmitOptions) -> Wanted:
        """Return the options. FFDL_BACKEND is the default of this program, as on the command line, not of the
        daemon."""
        from ffdl_batch.client.submissions.submission_builder import wanted_from_keywords

        named = backend or self._dialling.environ.get("FFDL_BACKEND", "")
        wanted = wanted_from_keywords(named, strict, cast("Mapping[str, OptionValue]", options))
        return replace(wanted, allowed=allowed, cluster=self._dialling.cluster())

    def plan_submission(self, submission: Submission, *, trial: bool = False) -> PlanView:
        """Plan a submission; see :meth:`plan`."""
        body = {"submission": to_plain(submission), "trial": trial}
        return read_answer(PlanView, self._wire.ask(json_request("POST", "/api/v1/plan", body)).get("plan"))


def _accepted(result: SubmissionResult) -> SubmissionResult:
    if result.problem is not None:
        raise RequestRefused(result.problem)
    return result


def _warn(text: str) -> None:
    """Warn at the line of the program that called the client."""
    depth, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("ffdl_batch."):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, SubmissionWarning, stacklevel=depth)
