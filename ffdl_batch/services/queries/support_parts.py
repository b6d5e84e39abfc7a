"""Collects what is known about one job for a support archive, without secrets. Changes nothing.

The values of secrets are known here only, so everything is redacted before it leaves the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import MAX_CELL_BYTES, NO_FILE, list_names
from ffdl_batch.config import Settings
from ffdl_batch.config.daemon_location import LOG_NAME
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.daemon_health import Health
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import SupportPart
from ffdl_batch.domain.network_address import parse_url
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.pending.explanation import WhyView
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.ports.capabilities import HasAccounting
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.queries.jobs import detailed, get_events, own_job
from ffdl_batch.services.secrets.job_secrets import known_values
from ffdl_batch.support_bundle import END_BYTES, describe_versions, file_part, json_part, redacted, unremoved_part

MOST_BYTES = 8 * 1024**2
"""Maximum size of all parts together."""
MOST_NAMES = 200
"""Maximum number of files of one directory."""
_PRIVATE = frozenset({"secrets.json", "environment.json"})
_DIRECTORIES = frozenset(
    {"claim", "data", "events", "logs", "metrics", "model", "results", "staging", "state", "submit"}
)
"""Directories of an attempt. Those with controllers' files are listed by themselves."""
_PLANS = (".json", ".yaml", ".sh")
"""Endings of files that are useless without their beginning."""


def support_parts(
    storage: JobStorage,
    adapters: Adapters,
    caller: Caller,
    job_id: str,
    explain: Callable[[Caller, str], WhyView],
    health: Health,
) -> tuple[SupportPart, ...]:
    """Return the parts of the archive. Raises :class:`Refused` for an unknown job, StoreError, and OSError if the
    values of secrets cannot be read."""
    job = own_job(storage.store, caller, job_id)
    values, unknown = known_values(storage.root, job)
    parts, left = [unremoved_part(unknown)] if unknown else [], MOST_BYTES
    found = _parts(storage, adapters, caller, job, explain, health)
    for part in redacted(found, values | configured_secrets(adapters.settings)):
        left -= len(part.text.encode())
        if left < 0:
            why = f"omitted with all later parts: the archive would exceed {MOST_BYTES // 1024**2} MiB"
            parts.append(SupportPart(part.name, left_out=why))
            break
        parts.append(part)
    return tuple(parts)


def configured_secrets(settings: Settings) -> set[str]:
    """Return secrets of the configuration. Addresses of webhooks let anyone post there."""
    url = parse_url(settings.database)
    password = "" if url is None else url.authority.rpartition("@")[0].partition(":")[2]
    return {password, unquote(password), *settings.notices.webhooks}


def _parts(
    storage: JobStorage,
    adapters: Adapters,
    caller: Caller,
    job: Job,
    explain: Callable[[Caller, str], WhyView],
    health: Health,
) -> Iterator[SupportPart]:
    settings, directory = adapters.settings, storage.root.job(job.id)
    yield json_part("job.json", detailed(storage, adapters, job))
    yield json_part("events.json", get_events(storage.store, caller, job.id, 0)[0])
    yield json_part("why.json", explain(caller, job.id))
    yield _scheduler_part(storage, adapters, job)
    yield json_part("daemon.json", health)
    yield json_part("versions.json", describe_versions())
    yield json_part("configuration.json", {key: [value, origin] for key, value, origin in settings.explain()})
    try:
        yield json_part("backend.json", {k: str(v) for k, v in adapters.get(job.backend).effective_settings().items()})
    except InvalidRequest as error:
        yield SupportPart("backend.json", left_out=str(error))
    yield file_part("daemon.log", str(Path(settings.state_dir, LOG_NAME)), below=settings.state_dir, is_rotated=True)
    yield file_part("manifest.yml", directory.manifest, below=directory.path, most=MAX_CELL_BYTES)
    for one in reversed(storage.store.attempts(job.id)):
        learners = one.learners or job.spec.resources.learners
        yield from _attempt_parts(directory.attempt(one.number), directory.path, learners)


def _scheduler_part(storage: JobStorage, adapters: Adapters, job: Job) -> SupportPart:
    """Return what scheduler and accounting report about the attempts."""
    name = "scheduler.json"
    attempts = [one for one in storage.store.attempts(job.id) if one.native_id and one.backend == job.backend]
    tokens = {NativeId.parse(one.native_id): one.token for one in attempts}
    if not tokens:
        return SupportPart(name, left_out="the scheduler has not accepted the job yet")
    found: dict[str, object] = {}
    try:
        with adapters.asking(job.backend) as scheduler:
            found["observed"] = {str(native): to_plain(seen) for native, seen in scheduler.observe(tokens).items()}
        with adapters.asking(job.backend) as scheduler:
            if isinstance(scheduler, HasAccounting):
                runs = scheduler.accounted_runs(tokens) or {}
                found["accounted"] = {str(native): to_plain(some) for native, some in runs.items()}
    except (InvalidRequest, SchedulerUnreachable) as error:
        found["unreachable"] = str(error)
    return json_part(name, found)


def _attempt_parts(attempt: AttemptDir, below: str, learners: int) -> Iterator[SupportPart]:
    """Yield the files of an attempt. A learner may have written or replaced all of them."""
    top = attempt.path.rpartition("/")[2]
    for number in range(1, learners + 1):
        log, most = attempt.training_log(number), min(END_BYTES, MOST_BYTES // 4 // learners)
        yield file_part(f"{top}/logs/learner-{number}/training-log.txt", log, below=below, most=most, is_rotated=True)
    for directory in (attempt.submit, attempt.claim, attempt.events, attempt.path):
        place = top + directory.removeprefix(attempt.path)
        try:
            names = [name for name in list_names(directory, below=below) if not name.startswith(".")]
        except (*NO_FILE, OSError) as error:
            yield SupportPart(place, left_out=getattr(error, "why", "") or getattr(error, "strerror", "") or str(error))
            continue
        for name in names[:MOST_NAMES]:
            most = MAX_CELL_BYTES if name.endswith(_PLANS) else END_BYTES
            if name in _PRIVATE:
                yield SupportPart(f"{place}/{name}", left_out="may contain secrets or variables of the user")
            elif name not in _DIRECTORIES:
                yield file_part(f"{place}/{name}", f"{directory}/{name}", below=below, most=most)
        if len(names) > MOST_NAMES:
            yield SupportPart(place, left_out=f"{len(names) - MOST_NAMES} more files")
