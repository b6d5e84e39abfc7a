"""Secrets of jobs: what a submission brings along, and what each attempt is given."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.secrets import secret_variables
from ffdl_batch.domain.views import Problem, Resume
from ffdl_batch.services import job_secrets
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.job_secrets import place_secrets
from ffdl_batch.services.problems import Refused
from ffdl_batch.services.resume import resume_job
from ffdl_batch.services.secrets import drop_secret, keep_secret, read_secret
from ffdl_batch.services.submit import submit
from ffdl_batch.services.whole_files import write_whole
from tests.unit.services.conftest import MANIFEST, Site

STORE = (
    "data_stores:\n- id: s\n  type: s3_datastore\n  training_data: {container: in}\n"
    "  connection: {auth_url: 'http://x', user_name: '${env:KEY_ID}', password: '${secret:s3-key}'}\n"
)
LEARNERS = "batch:\n  secrets: {TOKEN: '${secret:hub}', LICENCE: '${file:licence.txt}', OTHER: in-clear-1}\n"
BROUGHT = {"env:KEY_ID": "AKIA-KEY", "file:licence.txt": "line 1\nline 2\n", "env:UNUSED": "nobody-wants-it"}
VALUES = {
    "env-KEY_ID": "AKIA-KEY",
    "s3-key": "s3-value",
    "hub": "hub-value",
    "file-licence.txt": "line 1\nline 2",
    "env-OTHER": "in-clear-1",
}


def _values(attempt: AttemptDir) -> dict[str, str]:
    return dict(json.loads(Path(attempt.secrets).read_text()))


def _submit(site: Site, manifest: str, key: str = "a", **changes: object) -> str:
    (result,) = submit(site.platform, site.caller, [site.submission(key, manifest, **changes)])
    assert result.problem is None, result.problem
    return result.id


def _problem(site: Site, manifest: str, **changes: object) -> Problem:
    (result,) = submit(site.platform, site.caller, [site.submission("p", manifest, **changes)])
    assert result.problem is not None
    return result.problem


@pytest.fixture
def kept(site: Site) -> Site:
    keep_secret(site.platform.root, "s3-key", "s3-value")
    keep_secret(site.platform.root, "hub", "hub-value")
    return site


def test_attempt_receives_image_registry_credentials_as_secrets(kept: Site) -> None:
    located = "  image_location: {registry: r.example.org, user_name: '${env:KEY_ID}', access_token: planted-token}\n"
    job_id = _submit(kept, MANIFEST + located, references=BROUGHT)
    Deployer(kept.platform).step()
    job = kept.job(job_id)
    location = job.spec.framework.image_location
    assert location is not None
    assert (location.user_name, location.access_token) == ("${secret:env-KEY_ID}", "${secret:image-access-token}")
    assert _values(kept.attempt(job)) == {"env-KEY_ID": "AKIA-KEY", "image-access-token": "planted-token"}
    assert "planted-token" not in repr(job)
    problem = _problem(kept, MANIFEST + located.replace("planted-token", "'${secret:none}'"), references=BROUGHT)
    assert (problem.code, problem.findings[0].path) == ("C103", "framework.image_location.access_token")
    assert problem.findings[0].line == 7


def test_attempt_receives_only_secrets_that_its_manifest_references(kept: Site) -> None:
    root = kept.platform.root
    keep_secret(root, "another", "of-no-use-here")
    job_id = _submit(kept, MANIFEST + STORE + LEARNERS, references=BROUGHT)
    Deployer(kept.platform).step()
    job = kept.job(job_id)
    attempt = kept.attempt(job)
    assert _values(attempt) == VALUES
    assert stat.S_IMODE(Path(attempt.secrets).stat().st_mode) == 0o600
    (store,) = job.spec.data_stores
    assert (store.connection["user_name"], store.connection["password"]) == ("${secret:env-KEY_ID}", "${secret:s3-key}")
    assert "${env:KEY_ID}" in job.spec.manifest_text and "in-clear-1" not in job.spec.manifest_text
    told = repr(job) + "".join(
        path.read_text() for path in Path(attempt.path).iterdir() if path.is_file() and path.name != "secrets.json"
    )
    assert not any(value in told for value in VALUES.values())
    own = root.job(job.id).secrets
    assert "nobody-wants-it" not in Path(own).read_text()


def test_attempt_has_no_secrets_file_without_references(site: Site) -> None:
    job = site.deployed()
    assert not Path(site.attempt(job).secrets).exists()
    assert not Path(site.platform.root.secrets).exists()


def test_attempt_has_no_secrets_file_for_host_mount_credentials(site: Site) -> None:
    store = (
        "data_stores:\n- id: s\n  type: host_mount\n  training_data: {container: in}\n"
        "  training_results: {container: o}\n  connection: {path: /data, password: '${secret:nobody-has-it}'}\n"
    )
    job_id = _submit(site, MANIFEST + store)
    Deployer(site.platform).step()
    assert site.job(job_id).state is JobState.QUEUED and not Path(site.attempt(site.job(job_id)).secrets).exists()


@pytest.mark.parametrize(
    ("references", "words"),
    [
        ({"file:licence.txt": "x"}, "the variable KEY_ID is not set where the job was submitted"),
        ({"env:KEY_ID": "x"}, "the file licence.txt cannot be read where the job was submitted"),
        ({"env:KEY_ID": "\n", "file:licence.txt": "x"}, "${env:KEY_ID}: the value is empty"),
        ({"env:KEY_ID": "a\0b", "file:licence.txt": "x"}, "${env:KEY_ID}: the value holds a NUL character"),
        ({"env:KEY_ID": "x" * 65537, "file:licence.txt": "x"}, "${env:KEY_ID}: the value has more than 65536 bytes"),
    ],
)
def test_submit_rejects_invalid_or_missing_reference_value(kept: Site, references: dict[str, str], words: str) -> None:
    problem = _problem(kept, MANIFEST + STORE + LEARNERS, references=references)
    assert problem.code == "C103" and words in problem.message
    assert "a\0b" not in problem.message


def test_submit_rejects_missing_secret_with_cure_and_location(kept: Site) -> None:
    drop_secret(kept.platform.root, "hub")
    problem = _problem(kept, MANIFEST + LEARNERS, references=BROUGHT)
    assert (problem.code, problem.exit_code) == ("C103", 78)
    (finding,) = [one for one in problem.findings if one.code == "C103"]
    assert (finding.message, finding.cure, finding.path) == (
        "there is no secret hub", "ffdl secret set hub", "batch.secrets.TOKEN",
    )  # fmt: skip
    assert finding.line is not None


def test_deployer_fails_job_when_secret_was_removed_and_resume_works_once_restored(kept: Site) -> None:
    job_id = _submit(kept, MANIFEST + LEARNERS, references=BROUGHT)
    drop_secret(kept.platform.root, "hub")
    Deployer(kept.platform).step()
    job = kept.job(job_id)
    assert (job.state, job.error_code) == (JobState.FAILED, "C103")
    assert job.message == "there is no secret hub; ffdl secret set hub makes it"
    with pytest.raises(Refused, match="there is no secret hub"):
        resume_job(kept.platform, kept.caller, job_id, Resume())
    keep_secret(kept.platform.root, "hub", "again")
    resume_job(kept.platform, kept.caller, job_id, Resume())
    Deployer(kept.platform).step()
    job = kept.job(job_id)
    assert _values(kept.platform.root.job(job.id).attempt(job.attempt))["hub"] == "again"


def test_attempt_keeps_own_values_apart_from_user_secrets_of_same_name(kept: Site) -> None:
    """A literal value and a variable are kept under names that the manifest uses for secrets of the user's."""
    root = kept.platform.root
    keep_secret(root, "env-A", "users-own-a")
    keep_secret(root, "env-B", "users-own-b")
    secrets = "{A: literal-a, B: '${env:B}', C: '${secret:env-A}', D: '${secret:env-B}'}"
    job_id = _submit(kept, f"{MANIFEST}batch: {{secrets: {secrets}}}\n", references={"env:B": "variable-b"})
    Deployer(kept.platform).step()
    job = kept.job(job_id)
    values = _values(kept.attempt(job))
    learner = {variable: values[name] for variable, name in secret_variables(job.spec).items()}
    assert learner == {"A": "literal-a", "B": "variable-b", "C": "users-own-a", "D": "users-own-b"}


def test_array_elements_share_values_stored_once_at_submission(kept: Site) -> None:
    array = _submit(kept, MANIFEST + LEARNERS.replace("batch:\n", "batch:\n  array: 0-1\n"), references=BROUGHT)
    Deployer(kept.platform).step()
    elements = kept.platform.store.elements_of(array)
    assert len(elements) == 2
    for job in elements:
        assert _values(kept.attempt(job))["file-licence.txt"] == "line 1\nline 2"
        assert not Path(kept.platform.root.job(job.id).secrets).exists()


def test_place_secrets_uses_value_set_during_placement(kept: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = kept.job(_submit(kept, MANIFEST + LEARNERS, references=BROUGHT))
    attempt = replace(kept.platform.root.job(job.id).attempt(1))
    Path(attempt.path).mkdir(parents=True)
    write, set_anew = write_whole, ["new"]

    def slow(path: Path, text: str, *, mode: int = 0o600, durable: bool = False) -> None:
        if set_anew:
            keep_secret(kept.platform.root, "hub", set_anew.pop())
        write(path, text, mode=mode, durable=durable)

    monkeypatch.setattr(job_secrets, "write_whole", slow)
    place_secrets(kept.platform.root, job, attempt)
    assert _values(attempt)["hub"] == "new"


@pytest.mark.parametrize("name", ["../etc", "a/b", ".hidden", "", "a b", "x" * 65, "ü"])
def test_secret_functions_reject_invalid_names(site: Site, name: str) -> None:
    assert read_secret(site.platform.root, name) is None
    for act in (lambda: keep_secret(site.platform.root, name, "x"), lambda: drop_secret(site.platform.root, name)):
        with pytest.raises(ValueError, match="no secret's name"):
            act()
