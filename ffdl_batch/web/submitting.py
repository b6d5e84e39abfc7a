"""Submit a job: an editor with the checks of ``ffdl validate`` as one types, a plan, and the upload of a model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ffdl_batch.cli.commands.manifest import site_defaults
from ffdl_batch.client import Client, ClientError, InputUnusable
from ffdl_batch.client.submissions.manifest_source import MAX_MANIFEST_BYTES
from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.job.array import is_array_id
from ffdl_batch.domain.job.views import PlanView, Problem
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.manifest import ManifestSource, parse_manifest, starter_manifest
from ffdl_batch.web.pages import Site

MOST_FILES, MOST_FIELDS = 1, 10
_NAME = "manifest.yml"
"""In findings, which have lines only for a text with a name."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What the form has."""

    manifest: str
    model: str = ""
    """A directory of the host on which the page server runs; "" = an uploaded archive."""


class Submitting:
    """Routes for submissions."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        """Return the form, with a first manifest, or with that of the job ``job``."""
        job_id = request.query_params.get("job", "")
        if not job_id:
            return self._form(request, Draft(starter_manifest("my-training")))
        parts = await self._site.client.output.support(job_id)
        text = next((part.text for part in parts if part.name.endswith("manifest.yml")), "")
        return self._form(request, Draft(text), source=job_id)

    async def check(self, request: Request) -> Response:
        """Return the findings about the manifest as HTML."""
        async with request.form(max_files=0, max_fields=MOST_FIELDS, max_part_size=MAX_MANIFEST_BYTES) as form:
            findings = await run_in_threadpool(check_manifest, str(form.get("manifest", "")))
        return self._site.render(request, "findings.html", {"findings": findings})

    async def submit(self, request: Request) -> Response:
        """Submit the job, or with ``plan`` return what would be sent."""
        async with request.form(max_files=MOST_FILES, max_fields=MOST_FIELDS, max_part_size=MAX_MANIFEST_BYTES) as form:
            draft = Draft(str(form.get("manifest", "")), str(form.get("model", "")).strip())
            is_plan = bool(form.get("plan"))
            with _model(form, draft) as model:
                if model is None:
                    return self._form(request, draft, message="Name a model directory, or choose a zip archive.")
                try:
                    done = await self._site.client.run(lambda client: _carry_out(client, draft, model, is_plan=is_plan))
                except ClientError as error:
                    return self._form(request, draft, problem=error.problem)
        if isinstance(done, PlanView):
            return self._form(request, draft, plan=done)
        return RedirectResponse(f"/?array={done}" if is_array_id(done) else f"/jobs/{done}", 303)

    def _form(
        self,
        request: Request,
        draft: Draft,
        *,
        source: str = "",
        message: str = "",
        problem: Problem | None = None,
        plan: PlanView | None = None,
    ) -> Response:
        findings: Sequence[Finding] = problem.findings if problem is not None else check_manifest(draft.manifest)
        if problem is not None:
            message = problem.message
        values = {
            "draft": draft, "findings": findings, "message": message, "plan": plan, "source": source,
            "home": str(Path.home()),
        }  # fmt: skip
        return self._site.render(request, "submit.html", values, 422 if problem is not None or message else 200)


def check_manifest(text: str) -> Sequence[Finding]:
    """Return what ``ffdl validate`` finds in a manifest."""
    source = ManifestSource(text.replace("\r\n", "\n").encode(), _NAME, str(Path.cwd()))
    return parse_manifest(source, defaults=site_defaults()).findings


@contextmanager
def _model(form: FormData, draft: Draft) -> Iterator[Path | None]:
    """Yield the model's directory or archive; None if the form has neither."""
    upload = form.get("archive")
    if draft.model:
        yield Path(draft.model).expanduser()
    elif isinstance(upload, UploadFile) and upload.size:
        with tempfile.NamedTemporaryFile(prefix="ffdl-web-", suffix=".zip") as copy:
            _copy(upload.file, copy)
            yield Path(copy.name)
    else:
        yield None


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    while data := source.read(1 << 20):
        target.write(data)
    target.flush()


def _carry_out(client: Client, draft: Draft, model: Path, *, is_plan: bool) -> str | PlanView:
    """Return the id of the job or array, or the plan. Raises ClientError."""
    text = draft.manifest.replace("\r\n", "\n")
    if "\n" not in text:
        raise InputUnusable("the manifest is empty", code="C101")
    if is_plan:
        return client.plan(text, model)
    (result,) = client.submit_many([text], model)
    if result.problem is not None:
        raise ClientError(result.problem)
    return result.id
