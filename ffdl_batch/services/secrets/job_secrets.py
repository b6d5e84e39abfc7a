"""Stores secrets: those of the user, those that a submission sends, and the file with the values of each attempt.

Records and manifests contain only names. ``secret:NAME`` in a record means the job's own value of that name, else the
user's. Each attempt, and the template of the next one, has a file of mode 0600 with the values that it needs. It is
written before the submission, and removed when the attempt is done. The directory of holders lists the jobs and arrays
whose directories may have secrets, so that no search is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ffdl_batch.attempt.file_writer import sync_directory, write_text
from ffdl_batch.attempt.layout import ArrayDir, AttemptDir, JobDir, Root
from ffdl_batch.attempt.reader import MAX_TEXT_BYTES, DamagedFile, find_object, read_whole
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.array import is_array_id
from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.job.secret_references import (
    ENV,
    SECRET,
    UNREAD,
    Use,
    from_text,
    needed_secrets,
    reference,
    to_text,
    uses_of,
    why_no_name,
    why_no_value,
    without_line_end,
)
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.redaction import secret_values
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_storage import JobStorage


@dataclass(frozen=True, slots=True)
class Kept:
    """An existing secret, and when its value was set, by the file system's clock."""

    name: str
    set_at: float


def keep_secret(root: Root, name: str, value: str) -> None:
    """Set or replace the user's secret durably. Readers get the old value or the new. Raises OSError."""
    _named(name)
    directory = Path(root.secrets)
    directory.mkdir(mode=0o700, exist_ok=True)
    write_text(directory / name, value)


def read_secret(root: Root, name: str) -> str | None:
    """Return the value of the user's secret; None if it does not exist. Raises OSError."""
    if why_no_name(name):
        return None
    try:
        return read_whole(str(Path(root.secrets) / name), MAX_TEXT_BYTES).decode("utf-8")
    except FileNotFoundError:
        return None
    except DamagedFile as error:
        raise OSError(str(error)) from None


def drop_secret(root: Root, name: str) -> bool:
    """Remove the user's secret durably; return whether it existed. Raises OSError."""
    _named(name)
    try:
        (Path(root.secrets) / name).unlink()
    except FileNotFoundError:
        return False
    sync_directory(root.secrets)
    return True


def kept_secrets(root: Root) -> list[Kept]:
    """Return the user's secrets, by name. Raises OSError."""
    return sorted(_kept(Path(root.secrets)), key=lambda one: one.name)


def _kept(directory: Path) -> Iterator[Kept]:
    for path in directory.iterdir() if directory.is_dir() else ():
        if not why_no_name(path.name):
            try:
                yield Kept(path.name, path.stat().st_mtime)
            except FileNotFoundError:  # it was just removed
                continue


def _named(name: str) -> None:
    """Raise ValueError for an invalid name, before it becomes a path. Callers have refused invalid names already."""
    if why_no_name(name):
        raise ValueError("this is not a name of a secret")


CODE = "C103"
_TRIES = 3
_FOR_GOOD = frozenset({JobState.COMPLETED, JobState.CANCELLED})
"""Ends after which a job cannot be resumed."""


class SecretMissing(Exception):
    """A secret that a job refers to does not exist; the message has its name and the cure."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no secret {name}; create it: ffdl secret set {name}")


# ------------------------------------------------------------------------------------------------ submission


def bring_along(
    spec: JobSpec, own: Mapping[str, str], found: Mapping[str, str]
) -> tuple[JobSpec, dict[str, str], list[Finding]]:
    """Replace each ``${env:NAME}`` and ``${file:PATH}`` of `spec` by a secret of the job's own.

    `found` are the values at the place of submission. Return the spec, the job's own values with those of `own`, and
    the findings.
    """
    values, findings = dict(own), list[Finding]()
    named = {use.name for use in uses_of(spec) if use.kind == SECRET}
    instead: dict[str, str] = {}
    for use in uses_of(spec):
        if use.kind == SECRET:
            continue
        value = without_line_end(found.get(f"{use.kind}:{use.name}", ""))
        if why := _why_not_brought(use, found, value):
            findings.append(why)
            continue
        name = _own_name(use, value, values, named)
        values[name] = value
        instead[use.path] = reference(name)
    return _with(spec, instead), values, findings


def _why_not_brought(use: Use, found: Mapping[str, str], value: str) -> Finding | None:
    if f"{use.kind}:{use.name}" in found:
        why = why_no_value(value)
        message = f"${{{use.kind}:{use.name}}}: {why}" if why else ""
        cure = ""
    elif unread := found.get(f"{UNREAD}:{use.kind}:{use.name}"):
        why, _, cure = unread[:200].partition("; ")
        what = "variable" if use.kind == ENV else "file"
        message = f"the {what} {use.name} cannot be read where the job was submitted: {why}"
    elif use.kind == ENV:
        message, cure = f"the variable {use.name} is not set where the job was submitted", f"export {use.name}"
    else:
        message = f"the file {use.name} cannot be read where the job was submitted"
        cure = "give an absolute path, or one from the manifest's directory; the text has at most 64 KiB"
    return Finding(Severity.ERROR, message, cure or None, path=use.path, code=CODE) if message else None


def _own_name(use: Use, value: str, values: Mapping[str, str], named: set[str]) -> str:
    """Return a name that the job does not use for another value."""
    name = f"{use.kind}-" + "".join(c if c.isalnum() or c in "._-" else "-" for c in use.name)
    while name in named or values.get(name, value) != value:
        name += "-2"
    return name


def _with(spec: JobSpec, instead: Mapping[str, str]) -> JobSpec:
    """Return `spec` with the values at these paths replaced."""
    stores = tuple(
        replace(
            store,
            connection={
                key: instead.get(f"data_stores[{i}].connection.{key}", value) for key, value in store.connection.items()
            },
        )
        for i, store in enumerate(spec.data_stores)
    )
    variables = {name: instead.get(f"batch.secrets.{name}", value) for name, value in spec.batch.secrets.items()}
    framework, location = spec.framework, spec.framework.image_location
    if location is not None:
        at = "framework.image_location"
        user, token = (f"{at}.user_name", location.user_name), (f"{at}.access_token", location.access_token)
        location = replace(location, user_name=instead.get(*user), access_token=instead.get(*token))
        framework = replace(framework, image_location=location)
    return replace(spec, framework=framework, data_stores=stores, batch=replace(spec.batch, secrets=variables))


def values_at_hand(root: Root, spec: JobSpec, own: Mapping[str, str]) -> dict[str, str]:
    """Return the existing values, its own or the user's, of the secrets that the job needs. Raises OSError."""
    found = {name: own[name] if name in own else read_secret(root, name) for name in needed_secrets(spec)}
    return {name: value for name, value in found.items() if value is not None}


def missing_secrets(root: Root, spec: JobSpec, own: Mapping[str, str]) -> list[Finding]:
    """Return a finding for each secret that the job refers to and that is neither its own nor the user's. Raises
    OSError."""
    findings = []
    for use in uses_of(spec):
        if use.kind == SECRET and use.name not in own and read_secret(root, use.name) is None:
            cure = f"ffdl secret set {use.name}"
            findings.append(Finding(Severity.ERROR, f"there is no secret {use.name}", cure, path=use.path, code=CODE))
    return findings


# -------------------------------------------------------------------------------------------------- attempts


def own_secrets(root: Root, job: Job) -> dict[str, str]:
    """Return the job's own values. Those of an array are in the array's directory. Raises OSError."""
    element = job.spec.element
    directory: ArrayDir | JobDir = root.job(job.id) if element is None else root.array(element.array)
    return read_values(directory.secrets)


def read_values(path: str) -> dict[str, str]:
    """Return the values in a job's, array's or attempt's file; none if the file does not exist. Raises OSError."""
    try:
        return from_text(read_whole(path, MAX_TEXT_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return {}
    except DamagedFile as error:
        raise OSError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise OSError(f"{path} is damaged: {error}") from None


def known_values(root: Root, job: Job) -> tuple[set[str], list[str]]:
    """Return the values to redact, and the names of the job's secrets whose values were deleted.

    The values are those of all secrets of the user and of the job, and of its learners' variables with names like those
    of secrets. Raises OSError if they cannot be read.

    Files of attempts that are damaged are skipped, because learners may have replaced them.
    """
    own = own_secrets(root, job)
    users = {one.name: read_secret(root, one.name) or "" for one in kept_secrets(root)}
    values, job_dir = {*own.values(), *users.values()}, root.job(job.id)
    for attempt in (job_dir.template, *(job_dir.attempt(number) for number in range(1, job.attempt + 1))):
        for path in (attempt.secrets, attempt.environment):
            found = find_object(path, MAX_TEXT_BYTES, below=job_dir.path)
            texts = {name: value for name, value in found.items() if isinstance(value, str)}
            values |= set(texts.values()) if path == attempt.secrets else secret_values(texts)
    return values, [name for name in needed_secrets(job.spec) if name not in own and name not in users]


def place_secrets(root: Root, job: Job, attempt: AttemptDir) -> None:
    """Write the secrets that the attempt (or the template) needs into its directory, if any. Raises OSError,
    SecretMissing."""
    if not needed_secrets(job.spec):
        return
    hold(root, job.id)
    for _ in range(_TRIES):
        values = _values(root, job)
        write_text(attempt.secrets, to_text(values))
        if _values(root, job) == values:  # else a secret was replaced between reading and writing
            return


def _values(root: Root, job: Job) -> dict[str, str]:
    own, values = own_secrets(root, job), {}
    for name in needed_secrets(job.spec):
        value = own[name] if name in own else read_secret(root, name)
        if value is None:
            raise SecretMissing(name)
        values[name] = value
    return values


def hold(root: Root, holder: str) -> None:
    """Record that the directory of this job or array may have secrets. Raises OSError."""
    mark = Path(root.secret_holders, holder)
    if not mark.exists():
        for directory in (root.secrets, root.secret_holders):
            Path(directory).mkdir(mode=0o700, exist_ok=True)
        mark.touch(mode=0o600)


def renew_secret(storage: JobStorage, name: str) -> None:
    """Write the replaced value of the user's secret `name` into the files of all attempts that still need it, also for
    their last upload. Raises OSError, StoreError."""
    root = storage.root
    value = read_secret(root, name)
    for job in storage.store.get_many(_holders(root)):
        if value is None or name not in needed_secrets(job.spec) or name in own_secrets(root, job):
            continue
        for path in _files(root, job):
            values = read_values(str(path))
            if values.get(name, value) != value:
                write_text(path, to_text({**values, name: value}))
        hold(root, job.id)  # a file that was removed meanwhile may have come back; it is removed again later


# ------------------------------------------------------------------------------------------------ afterwards


def forget_secrets(storage: JobStorage) -> int:
    """Remove the secrets of ended jobs without pending uploads. Return how many jobs and arrays had some.

    A job that can be resumed keeps its own values. Raises OSError, StoreError.
    """
    root, store = storage.root, storage.store
    holders = _holders(root)
    if not holders:
        return 0
    jobs = store.get_many([holder for holder in holders if not is_array_id(holder)])
    arrays = store.count_elements([holder for holder in holders if is_array_id(holder)])
    gone: list[str] = [job.id for job in jobs if job.state.is_terminal and _forget_job(storage, job)]
    gone += [array for array, states in arrays.items() if states.keys() <= _FOR_GOOD and _forget_array(root, array)]
    known = {*(str(job.id) for job in jobs), *arrays}
    for holder in holders:
        directory = root.array(holder).path if is_array_id(holder) else root.job(JobId(holder)).path
        if holder not in known and not Path(directory).exists():  # the submission was never acknowledged
            _let_go(root, holder)
    return len(gone)


def _forget_job(storage: JobStorage, job: Job) -> bool:
    root = storage.root
    pending = {
        root.job(job.id).attempt(one.number).secrets for one in storage.store.attempts(job.id) if one.upload_pending
    }
    for path in _files(root, job):
        if str(path) not in pending:
            path.unlink(missing_ok=True)
    own = Path(root.job(job.id).secrets)
    if job.state in _FOR_GOOD:
        own.unlink(missing_ok=True)
    if pending or (job.state is JobState.HALTED and own.exists()):  # a halted job may still be cancelled
        return False
    _let_go(root, job.id)
    now = storage.store.get(job.id)
    if now is not None and not now.state.is_terminal:  # its new files may have been removed
        for attempt in (root.job(job.id).attempt(now.attempt), root.job(job.id).template):
            if Path(attempt.launch).exists():
                place_secrets(root, now, attempt)
        hold(root, job.id)
        return False
    return True


def _forget_array(root: Root, array: str) -> bool:
    """Remove the secrets of an array whose elements have all ended for good."""
    Path(root.array(array).secrets).unlink(missing_ok=True)
    _let_go(root, array)
    return True


def _holders(root: Root) -> list[str]:
    place = Path(root.secret_holders)
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


def _let_go(root: Root, holder: str) -> None:
    Path(root.secret_holders, holder).unlink(missing_ok=True)


def _files(root: Root, job: Job) -> list[Path]:
    """Return the files of the job's attempts and template."""
    return sorted(Path(root.job(job.id).path).glob("attempt-*/secrets.json"))
