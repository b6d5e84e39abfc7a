"""``ffdl data --manifest``: what a job will read is stored where its manifest says, with the manifest's credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.test_data_commands import Person, found_in, person
from tests.fakes.ssh_server import SshServer
from tests.staging_rig import KEY, SECRET, StagingRig, rig

__all__ = ["person", "rig"]
HEAD = "name: a\nframework: {name: custom, version: x, command: python3 train.py}\ndata_stores:\n"
STORE = """\
- id: {id}
  type: mount_cos
  training_data: {{container: {bucket}/sets}}
  training_results: {{container: {bucket}}}
  connection: {{auth_url: '{endpoint}', user_name: '{user}', password: '{password}'}}
"""


def manifest(person: Person, user: str = KEY, password: str = SECRET, ids: tuple[str, ...] = ("one",)) -> Path:
    path = person.directory / "train.yml"
    rig = person.rig
    values = {"bucket": rig.bucket, "endpoint": rig.proxy.endpoint, "user": user, "password": password}
    path.write_text(HEAD + "".join(STORE.format(id=name, **values) for name in ids))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        person.environ.pop(name, None)
    return path


def test_data_commands_use_store_and_credentials_of_manifest(person: Person) -> None:
    source, at = person.lay({"a": b"1", "deep/b": b"2"}), manifest(person)
    person.run("put", source, "--manifest", at)
    assert person.rig.keys() == ["sets/a", "sets/deep/b"]
    assert KEY in person.rig.proxy.authorizations[0]
    person.run("put", source, "more/", "--manifest", at)
    assert person.rig.keys() == ["sets/a", "sets/deep/b", "sets/more/a", "sets/more/deep/b"]
    out, _ = person.run("ls", "deep", "--manifest", at)
    assert out.split()[-1] == "b"
    person.rig.put("training-1/model.pt", b"weights")
    person.run("get", "training-1", "--manifest", at, "--results", "--out", "left")
    assert found_in(person.home / "left") == {"model.pt": b"weights"}
    at.unlink()
    for path in person.home.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


def test_data_ls_resolves_env_secret_and_file_references_of_manifest(person: Person, rig: StagingRig) -> None:
    at = manifest(person, "${env:STORE_KEY}", "${secret:store}")
    rig.put("sets/a", b"1")
    assert "STORE_KEY" in person.run("ls", "--manifest", at, code=66)[1]
    person.environ["STORE_KEY"] = KEY
    assert "ffdl secret set store" in person.run("ls", "--manifest", at, code=77)[1]
    secret = person.home / "state" / "secrets" / "store"
    secret.parent.mkdir(parents=True)
    secret.write_text(SECRET)
    assert person.run("ls", "--manifest", at)[0].endswith("  a\n")
    assert KEY in rig.proxy.authorizations[0]
    (person.directory / "key").write_text(f"{KEY}\n")
    at = manifest(person, f"${{file:{person.directory}/key}}", "${secret:store}")
    rig.proxy.authorizations.clear()
    person.run("ls", "--manifest", at)
    assert f"Credential={KEY}/" in rig.proxy.authorizations[0]


BY_SSH = """\
- type: fsspec_datastore
  training_data: {{container: sets}}
  connection:
    {{protocol: sftp, host: "127.0.0.1:{port}", path: "{path}", known_hosts: "{known_hosts}",
     user_name: "{user}", private_key: "${{file:{key}}}"}}
"""


def test_data_put_and_get_use_sftp_store_of_manifest(person: Person, tmp_path: Path) -> None:
    remote, keys, at = tmp_path / "remote", tmp_path / "keys", tmp_path / "manifests" / "train.yml"
    for directory in (remote, keys, at.parent):
        directory.mkdir()
    server = SshServer(keys)
    values = {"port": server.port, "path": remote, "known_hosts": server.known_hosts, "user": server.user}
    try:
        at.write_text(HEAD + BY_SSH.format(**values, key=server.key))
        source = person.lay({"a": b"1"})
        said = person.run("put", source, "--manifest", at, code=77)[1]
        assert f"{at}:8:" in said and f"--allow-file {server.key}" in said
        person.run("put", source, "--manifest", at, "--allow-file", keys)
        assert found_in(remote) == {"sets/a": b"1"}
        person.run("get", "--manifest", at, "--allow-file", server.key, "--out", "again")
        assert found_in(person.home / "again") == {"a": b"1"}
        at.write_text(HEAD + BY_SSH.format(**values, key=server.other_key))
        person.run("ls", "--manifest", at, "--allow-file", keys, code=77)
    finally:
        server.stop()


def test_data_put_and_get_use_directory_store_of_manifest(person: Person) -> None:
    source = person.lay({"a": b"1"})
    at = person.directory / "train.yml"
    at.write_text(HEAD + "- type: directory\n  training_data: {container: sets}\n  connection: {path: nfs}\n")
    person.run("put", source, "--manifest", at)
    assert found_in(person.directory / "nfs") == {"sets/a": b"1"}
    person.run("put", source / "a", "below", "--manifest", at)
    assert found_in(person.directory / "nfs") == {"sets/a": b"1", "sets/below/a": b"1"}
    person.run("get", "below/a", "--manifest", at, "--out", "one")
    assert found_in(person.home / "one") == {"a": b"1"}


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("ls", "--manifest", "MANIFEST"), 78, "several data stores have training_data (one, two); select one with"),
        (("ls", "--manifest", "MANIFEST", "--store", "three"), 78, "no data store 'three' has training_data"),
        (("ls", "--manifest", "none.yml"), 66, "none.yml: there is no such file"),
        (
            ("ls", "../up", "--manifest", "MANIFEST", "--store", "one"),
            2,
            "is not a path below the manifest's container",
        ),
        (
            ("ls", "s3://b/a", "--manifest", "MANIFEST", "--store", "one"),
            2,
            "is not a path below the manifest's container",
        ),
        (("ls", "--manifest", "MANIFEST", "--region", "eu"), 2, "cannot be combined with --manifest"),
        (("ls", "--store", "one", "s3://b"), 2, "need --manifest"),
        (("ls",), 2, "name a store"),
    ],
)
def test_data_commands_reject_invalid_manifest_or_store_arguments(
    person: Person, words: tuple[str, ...], code: int, text: str
) -> None:
    at = manifest(person, ids=("one", "two"))
    said = person.run(*(str(at) if word == "MANIFEST" else word for word in words), code=code)[1]
    assert text in said.replace("\n", " ")


def test_data_ls_reports_invalid_manifest_field_without_secrets(person: Person) -> None:
    at = manifest(person)
    at.write_text(at.read_text().replace("name: a\n", "name: a\nlearners: x\n"))
    said = person.run("ls", "--manifest", at, code=78)[1]
    assert "learners" in said and SECRET not in said
