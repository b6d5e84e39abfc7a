"""Secrets of jobs: what a submission brings along, and what each attempt is given."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.job.job import AttemptEnd, Job
from ffdl_batch.domain.job.secret_references import secret_variables
from ffdl_batch.domain.job.views import Resume
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.services.job_control.resume import resume_job
from ffdl_batch.services.job_control.stop import cancel_job
from ffdl_batch.services.refusals import Refused
from ffdl_batch.services.secrets import job_secrets
from ffdl_batch.services.secrets.job_secrets import drop_secret, forget_secrets, keep_secret, place_secrets, read_secret
from ffdl_batch.services.secrets.user_secrets import list_secrets, remove_secret, set_secret
from tests.planted_files import NO_FILES, replace
from tests.unit.services.conftest import MANIFEST, Site

STORE = (
    "data_stores:\n- id: s\n  type: s3_datastore\n  training_data: {container: in}\n"
    "  connection: {auth_url: 'http://x', user_name: '${env:KEY_ID}', password: '${secret:s3-key}'}\n"
)
LEARNERS = "batch:\n  secrets: {TOKEN: '${secret:hub}', LICENCE: '${file:licence.txt}', OTHER: in-clear-1}\n"
BROUGHT = {"env:KEY_ID": "AKIA-KEY", "file:licence.txt": "line 1\nline 2\n", "env:UNUSED": "nobody-wants-it"}
VALUES = {
    "env-KEY_ID": "AKIA-KEY", "s3-key": "s3-value", "hub": "hub-value", "file-licence.txt": "line 1\nline 2",
    "env-OTHER": "in-clear-1",
}  # fmt: skip


def _values(attempt: AttemptDir) -> dict[str, str]:
    return dict(json.loads(Path(attempt.secrets).read_text()))


@pytest.fixture
def kept(site: Site) -> Site:
    keep_secret(site.platform.storage.root, "s3-key", "s3-value")
    keep_secret(site.platform.storage.root, "hub", "hub-value")
    return site


def test_attempt_receives_image_registry_credentials_as_secrets(kept: Site) -> None:
    located = "  image_location: {registry: r.example.org, user_name: '${env:KEY_ID}', access_token: planted-token}\n"
    job = _deployed(kept, located)
    location = job.spec.framework.image_location
    assert location is not None
    assert (location.user_name, location.access_token) == ("${secret:env-KEY_ID}", "${secret:image-access-token}")
    assert _values(kept.attempt(job)) == {"env-KEY_ID": "AKIA-KEY", "image-access-token": "planted-token"}
    assert "planted-token" not in repr(job)
    manifest = MANIFEST + located.replace("planted-token", "'${secret:none}'")
    problem = kept.problem("p", manifest, references=BROUGHT)
    assert (problem.code, problem.findings[0].path) == ("C103", "framework.image_location.access_token")
    assert problem.findings[0].line == 7


def _deployed(site: Site, addition: str, references: dict[str, str] = BROUGHT) -> Job:
    """A job with this addition to its manifest, deployed."""
    job = site.accept("a", MANIFEST + addition, references=references)
    site.deploy()
    return site.job(job.id)


def test_attempt_receives_only_secrets_that_its_manifest_references(kept: Site) -> None:
    keep_secret(kept.platform.storage.root, "another", "of-no-use-here")
    job = _deployed(kept, STORE + LEARNERS)
    attempt = kept.attempt(job)
    assert _values(attempt) == VALUES
    assert stat.S_IMODE(Path(attempt.secrets).stat().st_mode) == 0o600
    (store,) = job.spec.data_stores
    assert (store.connection["user_name"], store.connection["password"]) == ("${secret:env-KEY_ID}", "${secret:s3-key}")
    assert "${env:KEY_ID}" in job.spec.manifest_text and "in-clear-1" not in job.spec.manifest_text
    files = [path for path in Path(attempt.path).iterdir() if path.is_file() and path.name != "secrets.json"]
    told = repr(job) + "".join(path.read_text() for path in files)
    assert not any(value in told for value in VALUES.values())
    assert "nobody-wants-it" not in Path(kept.platform.storage.root.job(job.id).secrets).read_text()


def test_attempt_has_no_secrets_file_without_references(site: Site) -> None:
    job = site.deployed()
    assert not Path(site.attempt(job).secrets).exists()
    assert not Path(site.platform.storage.root.secrets).exists()


def test_attempt_has_no_secrets_file_for_host_mount_credentials(site: Site) -> None:
    job = _deployed(
        site,
        "data_stores:\n- id: s\n  type: host_mount\n  training_data: {container: in}\n"
        "  training_results: {container: o}\n  connection: {path: /data, password: '${secret:nobody-has-it}'}\n",
    )
    assert job.state is JobState.QUEUED and not Path(site.attempt(job).secrets).exists()


@pytest.mark.parametrize(
    ("references", "words"),
    [
        ({"file:licence.txt": "x"}, "the variable KEY_ID is not set where the job was submitted"),
        ({"env:KEY_ID": "x"}, "the file licence.txt cannot be read where the job was submitted"),
        (
            {"env:KEY_ID": "x", "unread:file:licence.txt": "it is a directory; name a regular file"},
            "the file licence.txt cannot be read where the job was submitted: it is a directory (name a regular file)",
        ),
        (
            {"unread:env:KEY_ID": "it is not text; encode it", "file:licence.txt": "x"},
            "the variable KEY_ID cannot be read where the job was submitted: it is not text (encode it)",
        ),
        ({"env:KEY_ID": "\n", "file:licence.txt": "x"}, "${env:KEY_ID}: the value is empty"),
        ({"env:KEY_ID": "a\0b", "file:licence.txt": "x"}, "${env:KEY_ID}: the value contains a NUL character"),
        ({"env:KEY_ID": "x" * 65537, "file:licence.txt": "x"}, "${env:KEY_ID}: the value has more than 65536 bytes"),
    ],
)
def test_submit_rejects_invalid_or_missing_reference_value(kept: Site, references: dict[str, str], words: str) -> None:
    problem = kept.problem("p", MANIFEST + STORE + LEARNERS, references=references)
    assert problem.code == "C103" and words in problem.message
    assert "a\0b" not in problem.message


def test_submit_rejects_missing_secret_with_cure_and_location(kept: Site) -> None:
    drop_secret(kept.platform.storage.root, "hub")
    problem = kept.problem("p", MANIFEST + LEARNERS, references=BROUGHT)
    assert (problem.code, problem.exit_code) == ("C103", 78)
    (finding,) = [one for one in problem.findings if one.code == "C103"]
    assert (finding.message, finding.cure) == ("there is no secret hub", "ffdl secret set hub")
    assert finding.path == "batch.secrets.TOKEN" and finding.line is not None


def test_deployer_fails_job_when_secret_was_removed_and_resume_works_once_restored(kept: Site) -> None:
    job = kept.accept("a", MANIFEST + LEARNERS, references=BROUGHT)
    drop_secret(kept.platform.storage.root, "hub")
    kept.deploy()
    job = kept.job(job.id)
    assert (job.state, job.error_code) == (JobState.FAILED, "C103")
    assert job.message == "there is no secret hub; create it: ffdl secret set hub"
    with pytest.raises(Refused, match="there is no secret hub"):
        resume_job(
            kept.platform.storage, kept.platform.adapters, kept.platform.store_checks, kept.caller, job.id, Resume()
        )
    keep_secret(kept.platform.storage.root, "hub", "again")
    resume_job(kept.platform.storage, kept.platform.adapters, kept.platform.store_checks, kept.caller, job.id, Resume())
    kept.deploy()
    assert _values(kept.attempt(kept.job(job.id)))["hub"] == "again"


def test_attempt_keeps_own_values_apart_from_user_secrets_of_same_name(kept: Site) -> None:
    """A literal value and a variable are kept under names that the manifest uses for secrets of the user's."""
    keep_secret(kept.platform.storage.root, "env-A", "users-own-a")
    keep_secret(kept.platform.storage.root, "env-B", "users-own-b")
    secrets = "{A: literal-a, B: '${env:B}', C: '${secret:env-A}', D: '${secret:env-B}'}"
    job = _deployed(kept, f"batch: {{secrets: {secrets}}}\n", {"env:B": "variable-b"})
    values = _values(kept.attempt(job))
    learner = {variable: values[name] for variable, name in secret_variables(job.spec).items()}
    assert learner == {"A": "literal-a", "B": "variable-b", "C": "users-own-a", "D": "users-own-b"}


def test_array_elements_share_values_stored_once_at_submission(kept: Site) -> None:
    manifest = MANIFEST + LEARNERS.replace("batch:\n", "batch:\n  array: 0-1\n")
    array = kept.send("a", manifest, references=BROUGHT).id
    kept.deploy()
    elements = kept.platform.storage.store.elements_of(array)
    assert len(elements) == 2
    for job in elements:
        assert _values(kept.attempt(job))["file-licence.txt"] == "line 1\nline 2"
        assert not Path(kept.platform.storage.root.job(job.id).secrets).exists()


def test_place_secrets_uses_value_set_during_placement(kept: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = kept.accept("a", MANIFEST + LEARNERS, references=BROUGHT)
    attempt = kept.platform.storage.root.job(job.id).attempt(1)
    Path(attempt.path).mkdir(parents=True)
    write, set_anew = write_text, ["new"]

    def slow(path: str, text: str) -> None:
        if set_anew:
            keep_secret(kept.platform.storage.root, "hub", set_anew.pop())
        write(path, text)

    monkeypatch.setattr(job_secrets, "write_text", slow)
    place_secrets(kept.platform.storage.root, job, attempt)
    assert _values(attempt)["hub"] == "new"


@pytest.mark.parametrize("name", ["../etc", "a/b", ".hidden", "", "a b", "x" * 65, "ü"])
def test_secret_functions_reject_invalid_names(site: Site, name: str) -> None:
    assert read_secret(site.platform.storage.root, name) is None
    for act in (
        lambda: keep_secret(site.platform.storage.root, name, "x"),
        lambda: drop_secret(site.platform.storage.root, name),
    ):
        with pytest.raises(ValueError, match="not a name of a secret"):
            act()


USES = "batch: {secrets: {A: '${secret:one}', B: '${secret:env-C}', C: literal-c}}\n"


@pytest.fixture
def used(site: Site) -> Job:
    """A job that refers to two secrets and brought a value along, deployed."""
    set_secret(site.platform.storage, "one", "first")
    set_secret(site.platform.storage, "env-C", "users-own")
    set_secret(site.platform.storage, "spare", "nobodys")
    job = site.accept("u", MANIFEST + USES)
    site.deploy()
    return site.job(job.id)


def _files(site: Site, job: Job) -> set[str]:
    directory = Path(site.platform.storage.root.job(job.id).path)
    return {str(path.relative_to(directory)) for path in directory.rglob("secrets.json")}


def _held(site: Site) -> list[str]:
    return sorted(path.name for path in Path(site.platform.storage.root.secret_holders).iterdir())


def _end(site: Site, job: Job, state: JobState, *, upload_pending: bool = False) -> Job:
    code = {JobState.FAILED: "C201"}.get(state, "000")
    return site.move(
        site.job(job.id), state, error_code=code, attempt_end=AttemptEnd("", upload_pending=upload_pending)
    )


@pytest.mark.parametrize("kind", ["named pipe", "link to a device", "directory"])
def test_read_secret_rejects_what_is_not_a_regular_file(site: Site, kind: str) -> None:
    root = site.platform.storage.root
    replace(Path(root.secrets, "hub"), NO_FILES[kind])
    with pytest.raises(OSError, match="hub is damaged: "):
        read_secret(root, "hub")


def test_list_secrets_counts_live_jobs_that_use_each_secret(site: Site, used: Job) -> None:
    assert [(one.name, one.jobs) for one in list_secrets(site.platform.storage)] == [
        ("env-C", 1),
        ("one", 1),
        ("spare", 0),
    ]
    _end(site, used, JobState.COMPLETED)
    assert [one.jobs for one in list_secrets(site.platform.storage)] == [0, 0, 0]


def test_remove_secret_requires_force_while_job_needs_it(site: Site, used: Job) -> None:
    with pytest.raises(Refused, match=f"the secret one is still needed by {used.id}: ") as refused:
        remove_secret(site.platform.storage, "one", force=False)
    assert refused.value.status == 409
    assert remove_secret(site.platform.storage, "one", force=True).jobs == 1
    with pytest.raises(Refused, match="there is no secret 'one'"):
        remove_secret(site.platform.storage, "one", force=True)
    assert "first" in Path(site.attempt(used).secrets).read_text(), "the attempt that has it keeps it"


@pytest.mark.parametrize(
    ("name", "value"), [("a/b", "x"), ("n", ""), ("n", "a\0"), ("n", "x" * 65537), ("n", "\ud800")]
)
def test_set_secret_rejects_invalid_name_or_value(site: Site, name: str, value: str) -> None:
    with pytest.raises(Refused) as refused:
        set_secret(site.platform.storage, name, value)
    assert refused.value.status == 400
    assert list_secrets(site.platform.storage) == []


def test_set_secret_updates_files_of_attempts_that_use_it(site: Site, used: Job) -> None:
    set_secret(site.platform.storage, "one", "second")
    set_secret(site.platform.storage, "spare", "others")
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
    assert forget_secrets(site.platform.storage) == 0
    attempts = {"attempt-1/secrets.json", "attempt-next/secrets.json"}
    assert _files(site, used) == {"secrets.json", *attempts} and _held(site) == [used.id]
    _end(site, used, state)
    forget_secrets(site.platform.storage)
    assert _files(site, used) == left and _held(site) == ([used.id] if held else [])


def test_forget_secrets_removes_all_files_after_halted_job_is_cancelled(site: Site, used: Job) -> None:
    _end(site, used, JobState.HALTED)
    forget_secrets(site.platform.storage)
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, used.id)
    assert forget_secrets(site.platform.storage) == 1
    assert _files(site, used) == set() and _held(site) == []


def test_secrets_of_ended_attempt_are_needed_until_pending_upload_is_done(site: Site, used: Job) -> None:
    _end(site, used, JobState.COMPLETED, upload_pending=True)
    forget_secrets(site.platform.storage)
    assert _files(site, used) == {"attempt-1/secrets.json"} and _held(site) == [used.id]
    assert [(one.name, one.jobs) for one in list_secrets(site.platform.storage)] == [
        ("env-C", 1),
        ("one", 1),
        ("spare", 0),
    ]
    with pytest.raises(Refused, match=f"the secret one is still needed by {used.id}: "):
        remove_secret(site.platform.storage, "one", force=False)
    assert site.platform.storage.store.note_uploaded(used.id, 1, 0.0)
    forget_secrets(site.platform.storage)
    assert _files(site, used) == set() and _held(site) == []
    assert remove_secret(site.platform.storage, "one", force=False).jobs == 0


def test_forget_secrets_keeps_files_of_job_resumed_concurrently(
    site: Site, used: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = _end(site, used, JobState.FAILED)
    files: Callable[..., list[Path]] = job_secrets._files

    def resumed(*arguments: object) -> list[Path]:

        monkeypatch.setattr(job_secrets, "_files", files)
        resume_job(
            site.platform.storage, site.platform.adapters, site.platform.store_checks, site.caller, failed.id, Resume()
        )
        site.deploy()
        return files(*arguments)

    monkeypatch.setattr(job_secrets, "_files", resumed)
    Path(site.platform.storage.root.job(used.id).attempt(2).path).mkdir()
    Path(site.platform.storage.root.job(used.id).attempt(2).launch).touch()
    forget_secrets(site.platform.storage)
    assert site.job(used.id).attempt == 2
    assert "attempt-2/secrets.json" in _files(site, used) and _held(site) == [used.id]


def test_forget_secrets_keeps_array_values_until_all_elements_have_ended(site: Site) -> None:
    result = site.send("a", MANIFEST + "batch: {array: 0-1, secrets: {C: literal-c}}\n")
    assert result.problem is None
    site.deploy()
    first, second = site.platform.storage.store.elements_of(result.id)
    assert _held(site) == sorted([result.id, first.id, second.id])
    _end(site, first, JobState.COMPLETED)
    forget_secrets(site.platform.storage)
    own = Path(site.platform.storage.root.array(result.id).secrets)
    assert own.exists() and _files(site, first) == set() and _files(site, second)
    _end(site, second, JobState.CANCELLED)
    forget_secrets(site.platform.storage)
    assert not own.exists() and _held(site) == []


def test_forget_secrets_releases_holders_of_unacknowledged_submissions_without_directory(site: Site) -> None:
    for name in ("training-0a1b2c3d4", "array-0a1b2c3d4"):
        job_secrets.hold(site.platform.storage.root, name)
    Path(site.platform.storage.root.job("training-0a1b2c3d4").path).mkdir()
    forget_secrets(site.platform.storage)
    assert _held(site) == ["training-0a1b2c3d4"], "its directory is the janitor's"
