"""A user's named secrets, as they are asked for: set, listed, removed. A value goes in, and none comes out."""

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
    """Set it, anew where it is there: attempts that are deployed from now on have this value, and those that still need
    the one before. Raises :class:`Refused`, OSError, StoreError."""
    if why := why_no_name(name) or why_no_value(value):
        raise wrong_usage(why)
    keep_secret(storage.root, name, value)
    renew_secret(storage, name)
    return _view(storage, name)


def list_secrets(storage: JobStorage) -> list[SecretView]:
    """All of them, by name, with how many jobs that live or owe a store refer to each. Raises OSError, StoreError."""
    kept = kept_secrets(storage.root)
    counted = Counter(name for names in _users(storage).values() for name in names) if kept else Counter[str]()
    return [SecretView(one.name, one.set_at, counted[one.name]) for one in kept]


def remove_secret(storage: JobStorage, name: str, *, force: bool) -> SecretView:
    """Remove it. One that a job refers to which lives, or owes a store, is removed with `force` alone: its next attempt
    would fail, and what it owes is stored by it. Raises :class:`Refused`, OSError, StoreError."""
    found = _view(storage, name)
    if found.jobs and not force:
        users = [job_id for job_id, names in _users(storage).items() if name in names]
        more = f" and {len(users) - _NAMED} more" if len(users) > _NAMED else ""
        whom = ", ".join(users[:_NAMED]) + more
        raise wrong_state(
            f"the secret {name} is still needed by {whom}: without it their next attempts, or the storing of what they "
            "owe, would fail",
            "wait until they have ended and all is stored, or remove it with --force",
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
    return Refused(Problem("C101", message, ExitCode.FAILED, cure="ffdl secret list shows them"), 404)


def _users(storage: JobStorage) -> dict[str, frozenset[str]]:
    """The jobs that live or owe a store → the user's secrets that each refers to."""
    live = storage.store.list_jobs(uid=None, states=LIVE, limit=_MANY)
    owing = storage.store.get_many(sorted({one.job_id for one in storage.store.pending_uploads(_MANY)}))
    return {job.id: names for job in (*live, *owing) if (names := _users_secrets(storage.root, job))}


def _users_secrets(root: Root, job: Job) -> frozenset[str]:
    needed = frozenset(needed_secrets(job.spec))
    return needed - own_secrets(root, job).keys() if needed else needed
