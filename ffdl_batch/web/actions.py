"""Cancel, halt and continue jobs: each after a page that asks for confirmation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ffdl_batch.cli.arrays import resumable_jobs
from ffdl_batch.client import Client, RequestRefused
from ffdl_batch.domain.job.array import is_array_id
from ffdl_batch.domain.job.views import ArrayView, JobView
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.web.pages import Site

MOST = 1000
"""Jobs in one request."""


@dataclass(frozen=True, slots=True)
class Verb:
    """What can be done to jobs, and how the page says it."""

    title: str
    meaning: str
    job: Callable[[Client, str], object]
    array: Callable[[Client, str], object] | None
    """None: of an array, continue the jobs that can."""


VERBS: Mapping[str, Verb] = {
    "cancel": Verb(
        "Cancel", "They end without a checkpoint, and cannot be continued.", Client.cancel,
        lambda client, one: client.arrays.cancel(one),
    ),
    "halt": Verb(
        "Halt", "They save a checkpoint and end. Their GPUs become free, and they can be continued later.",
        Client.halt, lambda client, one: client.arrays.halt(one),
    ),
    "resume": Verb("Continue", "They continue from their newest checkpoints.", Client.resume, None),
}  # fmt: skip


class Actions:
    """The route for actions on jobs."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def act(self, request: Request) -> Response:
        """Ask for confirmation, or carry out the confirmed action: form fields ``verb``, ``id`` (repeatable),
        ``confirmed``, and ``gpus`` and ``time`` for one job that continues."""
        form = await request.form(max_fields=MOST + 10)
        ids = list(dict.fromkeys(value for value in form.getlist("id") if isinstance(value, str)))
        name = str(form.get("verb", ""))
        verb = VERBS.get(name)
        if verb is None or not ids:
            return self._site.render(request, "error.html", {"message": "Select one or more jobs first."}, 400)
        if not form.get("confirmed"):
            found = await self._site.client.run(lambda client: [_find(client, one) for one in ids])
            return self._site.render(request, "confirm.html", {"verb": verb, "name": name, "found": found})
        changes = {key: str(form.get(key, "")).strip() for key in ("gpus", "time")}
        failed = await self._site.client.run(lambda client: _carry_out(client, verb, ids, changes))
        if failed:
            message = "\n".join(f"{job_id}: {why}" for job_id, why in failed.items())
            return self._site.render(request, "error.html", {"message": message}, 409)
        return RedirectResponse(f"/jobs/{ids[0]}" if len(ids) == 1 and not is_array_id(ids[0]) else "/", 303)


def _find(client: Client, job_id: str) -> JobView | ArrayView:
    return client.arrays.get(job_id) if is_array_id(job_id) else client.get(job_id)


def _carry_out(client: Client, verb: Verb, ids: list[str], changes: Mapping[str, str]) -> dict[str, str]:
    """Return why jobs were refused, by their ids. The others are done. Raises ClientError if the daemon is away."""
    failed: dict[str, str] = {}
    for job_id in resumable_jobs(client, ids) if verb.array is None else ids:
        try:
            if verb.array is None:
                gpus = float(changes["gpus"]) if changes["gpus"] else None
                client.resume(job_id, gpus=gpus, time=changes["time"] or None)
            elif is_array_id(job_id):
                verb.array(client, job_id)
            else:
                verb.job(client, job_id)
        except RequestRefused as error:
            failed[job_id] = str(error)
        except ValueError:
            failed[job_id] = "the number of GPUs must be a number, such as 2 or 0.5"
    return failed
