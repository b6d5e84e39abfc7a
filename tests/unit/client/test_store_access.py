"""Credentials of commands: the environment, and a person's own secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.client.errors import DaemonUnreachable, InputUnusable
from ffdl_batch.client.stores.credentials import access, from_environment, of_job, of_references, with_environment
from ffdl_batch.client.stores.user_secrets import UserSecrets
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind

AWS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "planted"}
BUCKET = StoreAddress(StoreKind.S3, container="b")


def test_from_environment_reads_credentials_of_each_store(tmp_path: Path) -> None:
    assert from_environment(StoreKind.S3, AWS) == {"user_name": "key", "password": "planted"}
    assert from_environment(StoreKind.S3, {**AWS, "AWS_SESSION_TOKEN": "t"})["session_token"] == "t"
    assert from_environment(StoreKind.S3, {"AWS_ACCESS_KEY_ID": "key"}) == {}
    assert from_environment(StoreKind.FSSPEC, AWS) == from_environment(StoreKind.HTTP, AWS) == {}
    swift = {"OS_USERNAME": "ada", "OS_PASSWORD": "planted"}
    assert from_environment(StoreKind.SWIFT, swift) == {"user_name": "ada", "password": "planted"}
    (tmp_path / "account.json").write_text("{}")
    google = {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "account.json"), "CLOUDSDK_AUTH_ACCESS_TOKEN": "t"}
    assert from_environment(StoreKind.GCS, google) == {"service_account": "{}"}
    assert from_environment(StoreKind.GCS, {"CLOUDSDK_AUTH_ACCESS_TOKEN": "t"}) == {"token": "t"}
    with pytest.raises(InputUnusable, match="GOOGLE_APPLICATION_CREDENTIALS"):
        from_environment(StoreKind.GCS, {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "none")})


def test_with_environment_fills_missing_store_address() -> None:
    environ = {"AWS_ENDPOINT_URL": "https://all", "AWS_REGION": "eu"}
    made = with_environment(BUCKET, environ)
    assert (made.endpoint, made.region) == ("https://all", "eu")
    assert with_environment(BUCKET, {**environ, "AWS_ENDPOINT_URL_S3": "https://s3"}).endpoint == "https://s3"
    said = StoreAddress(StoreKind.S3, "https://said", "us")
    assert with_environment(said, environ) == said
    swift = with_environment(StoreAddress(StoreKind.SWIFT), {"OS_AUTH_URL": "https://auth/v3", "OS_PROJECT_ID": "p"})
    assert (swift.endpoint, swift.options) == ("https://auth/v3", {"project_id": "p"})
    web = StoreAddress(StoreKind.HTTP, "https://web")
    assert with_environment(web, environ) == web


def test_access_prefers_secrets_over_environment(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "my-key").write_text("theirs")
    made = access(BUCKET, "", {"user_name": "my-key", "password": "my-key"}, AWS, UserSecrets(tmp_path))
    assert made.values == {"user_name": "theirs", "password": "theirs"}
    assert made.address.credentials == {"user_name": "user_name", "password": "password"}
    assert "theirs" not in repr(made)
    named = access(StoreAddress(StoreKind.FSSPEC), "ada", {}, AWS, UserSecrets(tmp_path))
    assert named.values == {"user_name": "ada"}


def test_access_refuses_secrets_below_directory_that_others_can_write(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "my-key").write_text("planted")
    tmp_path.chmod(0o770)
    with pytest.raises(DaemonUnreachable, match=r"jobs_dir\) has mode 0770, which lets others write") as caught:
        access(BUCKET, "", {"password": "my-key"}, {}, UserSecrets(tmp_path))
    assert caught.value.problem.exit_code == 77


def test_of_references_takes_given_values_and_names_missing_file(tmp_path: Path) -> None:
    address = StoreAddress(StoreKind.HTTP, credentials={"token": "file:token"})
    assert of_references(address, {"file:token": "planted"}, UserSecrets(tmp_path)).values == {"file:token": "planted"}
    with pytest.raises(InputUnusable, match="the manifest names the file 'token', which cannot be read"):
        of_references(address, {}, UserSecrets(tmp_path))
    with pytest.raises(InputUnusable) as unread:
        of_references(address, {"unread:file:token": "it is a directory; name a regular file"}, UserSecrets(tmp_path))
    assert str(unread.value) == (
        "the manifest names the file 'token', which cannot be read: it is a directory (name a regular file)"
    )


@pytest.mark.parametrize("name", ["none", "../secrets/x", "", "a/b"])
def test_access_rejects_missing_secret_and_invalid_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputUnusable) as raised:
        access(BUCKET, "", {"password": name}, {}, UserSecrets(tmp_path))
    assert raised.value.problem.code == "C103"


def test_of_job_explains_secret_deleted_with_job(tmp_path: Path) -> None:
    """As long as the job's own file is there, a name that it has not is one of the person's secrets."""
    bucket = StoreAddress(StoreKind.S3, container="b", credentials={"password": "cos-password"})
    kept = tmp_path / "secrets.json"
    with pytest.raises(InputUnusable) as over:
        of_job(bucket, kept, UserSecrets(tmp_path), {}, near=True)
    problem = over.value.problem
    assert problem.message == (
        "there is no secret cos-password, and the secrets of the submission were removed when the job ended"
    )
    assert problem.cure == (
        "set it: ffdl secret set cos-password; or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "
        "or use the directory of an attempt: --attempt N"
    )
    assert (problem.code, problem.exit_code) == ("C103", 77)
    with pytest.raises(InputUnusable) as far:
        of_job(bucket, kept, UserSecrets(tmp_path), {})
    assert far.value.problem.cure == problem.cure.rpartition("; ")[0]
    kept.write_text('{"other": "planted"}')
    with pytest.raises(InputUnusable) as lives:
        of_job(bucket, kept, UserSecrets(tmp_path), {})
    assert lives.value.problem.cure == "set it: ffdl secret set cos-password"
    assert of_job(bucket, tmp_path / "none", UserSecrets(tmp_path), AWS).values == {
        "user_name": "key",
        "password": "planted",
    }
