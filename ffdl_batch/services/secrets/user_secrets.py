"""Sets, lists and removes a user's secrets. No function returns a value."""

from __future__ import annotations

from collections import Counter

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.secret_references import needed_secrets, why_no_name, why_no_value
from ffdl_batch.domain.job.views import Problem, SecretView
from ffdl_batch.domain.job_state import LIVE
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.refusals import Refused, wrong_state, wrong_usage
from ffdl_batch.services.secrets.job_secrets import drop_secret, keep_secret, kept_secrets, own_secrets, renew_secret

_NAMED = 3
_MANY = 1_000_000


def set_secret(storage: JobStorage, name: str, value: str) -> SecretView:
    """Set a secret, or replace its value, also in existing attempts that need it. Raises :class:`Refused`, OSError,
    StoreError."""
    if why := why_no_name(name) or why_no_value(value):
        raise wrong_usage(why)
    keep_secret(storage.root, name, value)
    renew_secret(storage, name)
    return _view(storage, name)


def list_secrets(storage: JobStorage) -> list[SecretView]:
    """Return the secrets by name, each with the number of jobs that need it: they live, or have a pending upload.
    Raises OSError, StoreError."""
    kept = kept_secrets(storage.root)
    counted = Counter(name for names in _users(storage).values() for name in names) if kept else Counter[str]()
    return [SecretView(one.name, one.set_at, counted[one.name]) for one in kept]


def remove_secret(storage: JobStorage, name: str, *, force: bool) -> SecretView:
    """Remove a secret. If a job needs it for its next attempt or a pending upload, `force` is required.

    Raises :class:`Refused`, OSError, StoreError.
    """
    found = _view(storage, name)
    if found.jobs and not force:
        users = [job_id for job_id, names in _users(storage).items() if name in names]
        more = f" and {len(users) - _NAMED} more" if len(users) > _NAMED else ""
        jobs = ", ".join(users[:_NAMED]) + more
        raise wrong_state(
            f"the secret {name} is still needed by {jobs}: its next attempts or pending uploads would fail",
            "wait until they have ended and their results are stored, or remove it with --force",
        )
    if not drop_secret(storage.root, name):
        raise _unknown(name)
    return found


def _view(storage: JobStorage, name: str) -> SecretView:
    for found in list_secrets(storage):
        if found.name == name:
            return found
    raise _unknown(name)


def _unknown(name: str) -> Refused:
    message = f"there is no secret {name[:80]!r}"
    return Refused(Problem("C101", message, ExitCode.FAILED, cure="ffdl secret list shows the existing ones"), 404)


def _users(storage: JobStorage) -> dict[str, frozenset[str]]:
    """Return the jobs that live or have a pending upload, each with the user's secrets that it refers to."""
    live = storage.store.list_jobs(uid=None, states=LIVE, limit=_MANY)
    uploading = storage.store.get_many(sorted({one.job_id for one in storage.store.pending_uploads(_MANY)}))
    return {job.id: names for job in (*live, *uploading) if (names := _users_secrets(storage.root, job))}


def _users_secrets(root: Root, job: Job) -> frozenset[str]:
    needed = frozenset(needed_secrets(job.spec))
    return needed - own_secrets(root, job).keys() if needed else needed
