"""Named secrets, and what becomes of the files of jobs that used them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ffdl_batch.domain.job import AttemptEnd, Change, Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.services import job_secrets
from ffdl_batch.services.cancel import cancel_job
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.job_secrets import forget_secrets
from ffdl_batch.services.named_secrets import list_secrets, remove_secret, set_secret
from ffdl_batch.services.problems import Refused
from ffdl_batch.services.submit import submit
from tests.unit.services.conftest import MANIFEST, Site

USES = "batch: {secrets: {A: '${secret:one}', B: '${secret:env-C}', C: literal-c}}\n"


@pytest.fixture
def used(site: Site) -> Job:
    """A job that refers to two secrets and brought a value along, deployed."""
    set_secret(site.platform, "one", "first")
    set_secret(site.platform, "env-C", "users-own")
    set_secret(site.platform, "spare", "nobodys")
    job = site.accept("u", MANIFEST + USES)
    Deployer(site.platform).step()
    return site.job(job.id)


def _files(site: Site, job: Job) -> set[str]:
    directory = Path(site.platform.root.job(job.id).path)
    return {str(path.relative_to(directory)) for path in directory.rglob("secrets.json")}


def _held(site: Site) -> list[str]:
    return sorted(path.name for path in Path(site.platform.root.secret_holders).iterdir())


def _end(site: Site, job: Job, state: JobState, *, owed: bool = False) -> Job:
    code = {JobState.FAILED: "C201"}.get(state, "000")
    change = Change(((state, site.clock.now()),), error_code=code, attempt_end=AttemptEnd("", owed=owed))
    ended = site.platform.store.apply(site.job(job.id), change)
    assert ended is not None
    return ended


def test_list_secrets_counts_live_jobs_that_use_each_secret(site: Site, used: Job) -> None:
    assert [(one.name, one.jobs) for one in list_secrets(site.platform)] == [("env-C", 1), ("one", 1), ("spare", 0)]
    _end(site, used, JobState.COMPLETED)
    assert [one.jobs for one in list_secrets(site.platform)] == [0, 0, 0]


def test_remove_secret_requires_force_while_job_needs_it(site: Site, used: Job) -> None:
    with pytest.raises(Refused, match=f"the secret one is still needed by {used.id}: ") as refused:
        remove_secret(site.platform, "one", force=False)
    assert refused.value.status == 409
    assert remove_secret(site.platform, "one", force=True).jobs == 1
    with pytest.raises(Refused, match="there is no secret 'one'"):
        remove_secret(site.platform, "one", force=True)
    assert "first" in Path(site.attempt(used).secrets).read_text(), "the attempt that has it keeps it"


def test_remove_secret_refuses_secret_needed_for_pending_upload(site: Site, used: Job) -> None:
    _end(site, used, JobState.FAILED, owed=True)
    assert [(one.name, one.jobs) for one in list_secrets(site.platform)] == [("env-C", 1), ("one", 1), ("spare", 0)]
    with pytest.raises(Refused, match=f"the secret one is still needed by {used.id}: "):
        remove_secret(site.platform, "one", force=False)
    assert site.platform.store.note_paid(used.id, 1, 0.0)
    assert remove_secret(site.platform, "one", force=False).jobs == 0


@pytest.mark.parametrize(
    ("name", "value"), [("a/b", "x"), ("n", ""), ("n", "a\0"), ("n", "x" * 65537), ("n", "\ud800")]
)
def test_set_secret_rejects_invalid_name_or_value(site: Site, name: str, value: str) -> None:
    with pytest.raises(Refused) as refused:
        set_secret(site.platform, name, value)
    assert refused.value.status == 400
    assert list_secrets(site.platform) == []


def test_set_secret_updates_files_of_attempts_that_use_it(site: Site, used: Job) -> None:
    set_secret(site.platform, "one", "second")
    set_secret(site.platform, "spare", "others")
    values = json.loads(Path(site.attempt(used).secrets).read_text())
    assert values == {"one": "second", "env-C": "users-own", "env-C-2": "literal-c"}


@pytest.mark.parametrize(
    ("state", "left", "held"),
    [
        (JobState.COMPLETED, set(), False),
        (JobState.CANCELLED, set(), False),
        (JobState.FAILED, {"secrets.json"}, False),
        (JobState.HALTED, {"secrets.json"}, True),
    ],
)
def test_forget_secrets_keeps_only_files_needed_to_resume_ended_job(
    site: Site, used: Job, state: JobState, left: set[str], held: bool
) -> None:
    assert forget_secrets(site.platform) == 0
    attempts = {"attempt-1/secrets.json", "attempt-next/secrets.json"}
    assert _files(site, used) == {"secrets.json", *attempts} and _held(site) == [used.id]
    _end(site, used, state)
    forget_secrets(site.platform)
    assert _files(site, used) == left and _held(site) == ([used.id] if held else [])


def test_forget_secrets_removes_all_files_after_halted_job_is_cancelled(site: Site, used: Job) -> None:
    _end(site, used, JobState.HALTED)
    forget_secrets(site.platform)
    cancel_job(site.platform, site.caller, used.id)
    assert forget_secrets(site.platform) == 1
    assert _files(site, used) == set() and _held(site) == []


def test_forget_secrets_keeps_attempt_secrets_until_pending_upload_is_done(site: Site, used: Job) -> None:
    _end(site, used, JobState.COMPLETED, owed=True)
    forget_secrets(site.platform)
    assert _files(site, used) == {"attempt-1/secrets.json"} and _held(site) == [used.id]
    assert site.platform.store.note_paid(used.id, 1, 0.0)
    forget_secrets(site.platform)
    assert _files(site, used) == set() and _held(site) == []


def test_forget_secrets_keeps_files_of_job_resumed_concurrently(
    site: Site, used: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = _end(site, used, JobState.FAILED)
    files: Callable[..., list[Path]] = job_secrets._files

    def resumed(*arguments: object) -> list[Path]:
        from ffdl_batch.domain.views import Resume
        from ffdl_batch.services.resume import resume_job

        monkeypatch.setattr(job_secrets, "_files", files)
        resume_job(site.platform, site.caller, failed.id, Resume())
        Deployer(site.platform).step()
        return files(*arguments)

    monkeypatch.setattr(job_secrets, "_files", resumed)
    Path(site.platform.root.job(used.id).attempt(2).path).mkdir()
    Path(site.platform.root.job(used.id).attempt(2).launch).touch()
    forget_secrets(site.platform)
    assert site.job(used.id).attempt == 2
    assert "attempt-2/secrets.json" in _files(site, used) and _held(site) == [used.id]


def test_forget_secrets_keeps_array_values_until_all_elements_have_ended(site: Site) -> None:
    manifest = MANIFEST + "batch: {array: 0-1, secrets: {C: literal-c}}\n"
    (result,) = submit(site.platform, site.caller, [site.submission("a", manifest)])
    assert result.problem is None
    Deployer(site.platform).step()
    first, second = site.platform.store.elements_of(result.id)
    assert _held(site) == sorted([result.id, first.id, second.id])
    _end(site, first, JobState.COMPLETED)
    forget_secrets(site.platform)
    own = Path(site.platform.root.array(result.id).secrets)
    assert own.exists() and _files(site, first) == set() and _files(site, second)
    _end(site, second, JobState.CANCELLED)
    forget_secrets(site.platform)
    assert not own.exists() and _held(site) == []


def test_forget_secrets_releases_holders_of_unacknowledged_submissions_without_directory(site: Site) -> None:
    for name in ("training-0a1b2c3d4", "array-0a1b2c3d4"):
        job_secrets.hold(site.platform.root, name)
    Path(site.platform.root.job("training-0a1b2c3d4").path).mkdir()
    forget_secrets(site.platform)
    assert _held(site) == ["training-0a1b2c3d4"], "its directory is the janitor's"
