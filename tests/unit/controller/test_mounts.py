"""The table of mounts as the controller reads it, and what rclone is told."""

from __future__ import annotations

import configparser
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.controller.mounts import mount_process as table
from ffdl_batch.controller.mounts import node_mounts
from ffdl_batch.controller.mounts.rclone import (
    NotMountable,
    config_text,
    environment,
    made_ready,
    mount_argv,
    remote_of,
)
from ffdl_batch.domain.data.mounts import MountOwner, Mounts, read_source
from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind

KEYS = {"user_name": "k", "password": "s"}
STORE = StoreAddress(StoreKind.S3, "https://s3.example.org", "", "sets", {}, KEYS)
SECRETS = {"k": "AKIA", "s": "se/cr+et=", "other": "not asked for"}


def read(store: StoreAddress, secrets: dict[str, str]) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    parser.read_file(io.StringIO(text_of(store, secrets)))
    return dict(parser["store"])


def text_of(store: StoreAddress, secrets: dict[str, str]) -> str:
    return config_text(remote_of(store, secrets), lambda text: text[::-1])


def test_rclone_config_contains_only_manifest_settings_and_needed_secrets() -> None:
    found = read(STORE, SECRETS)
    assert (found["access_key_id"], found["secret_access_key"]) == ("AKIA", "se/cr+et=")
    assert (found["endpoint"], found["provider"], found["force_path_style"]) == (STORE.endpoint, "Other", "true")
    assert found["env_auth"] == "false"
    assert "not asked for" not in str(found)


def test_rclone_config_supports_aws_region_and_anonymous_access() -> None:
    found = read(StoreAddress(StoreKind.S3, region="eu-west-1", container="sets"), {})
    assert (found["provider"], found["region"], found["force_path_style"]) == ("AWS", "eu-west-1", "false")
    assert not {"endpoint", "access_key_id", "secret_access_key"} & found.keys()


@pytest.mark.parametrize("value", ["a\nb = c", "a %(b)s", "`a`", ' "a"', "\x00"])
def test_rclone_config_rejects_unsafe_value_and_does_not_print_it(value: str) -> None:
    with pytest.raises(NotMountable, match="secret_access_key") as caught:
        text_of(STORE, {**SECRETS, "s": value})
    assert value not in str(caught.value)


def test_rclone_remote_rejects_http_store_and_missing_secret() -> None:
    with pytest.raises(NotMountable, match="stores of the kind http are not mounted"):
        text_of(StoreAddress(StoreKind.HTTP, "https://a"), {})
    with pytest.raises(NotMountable, match="no secret s"):
        text_of(STORE, {"k": "x"})


def test_rclone_config_supports_swift_auth_versions_1_and_3() -> None:
    keys = {"user_name": "k", "password": "s"}
    first = read(StoreAddress(StoreKind.SWIFT, "https://a/auth/v1.0", "", "box", {}, keys), SECRETS)
    assert first == {"type": "swift", "env_auth": "false", "key": SECRETS["s"], "auth": "https://a/auth/v1.0",
                     "auth_version": "1", "user": "AKIA"}  # fmt: skip
    options = {"domain_name": "Default", "project_id": "p"}
    third = read(StoreAddress(StoreKind.SWIFT, "https://a", "north", "box", options, keys), SECRETS)
    assert (third["auth"], third["auth_version"], third["region"]) == ("https://a/v3", "3", "north")
    assert (third["user"], third["domain"], third["tenant_id"]) == ("AKIA", "Default", "p")
    by_id = read(StoreAddress(StoreKind.SWIFT, "https://a/v3", "", "box", {}, keys), SECRETS)
    assert (by_id["auth"], by_id["user_id"]) == ("https://a/v3", "AKIA")


def test_rclone_config_sets_known_hosts_and_obscures_password_for_sftp() -> None:
    options = {"protocol": "sftp", "known_hosts": "/site/hosts"}
    store = StoreAddress(StoreKind.FSSPEC, "a.example.org:2222", "", "/data", options, KEYS)
    remote = remote_of(store, SECRETS)
    assert (remote.known_hosts, remote.needs) == (("/site/hosts",), ("known_hosts_file", "skip_links"))
    assert not remote.own_key
    found = read(store, SECRETS)
    assert (found["host"], found["port"], found["user"]) == ("a.example.org", "2222", "AKIA")
    assert (found["pass"], found["known_hosts_file"]) == (SECRETS["s"][::-1], "known_hosts")


def test_rclone_config_writes_multiline_key_on_one_line_with_passphrase() -> None:
    credentials = {"user_name": "k", "private_key": "pem", "password": "s"}
    store = StoreAddress(StoreKind.FSSPEC, "a", "", "/data", {"protocol": "sftp"}, credentials)
    found = read(store, {**SECRETS, "pem": "-----BEGIN\nabc\n-----END\n"})
    assert found["key_pem"] == "-----BEGIN\\nabc\\n-----END\\n"
    assert found["key_file_pass"] == SECRETS["s"][::-1]
    assert "pass" not in found


def test_rclone_remote_supports_all_gcs_credential_kinds() -> None:
    store = StoreAddress(StoreKind.GCS, "", "", "box", {}, KEYS)
    signed = read(store, SECRETS)
    assert (signed["type"], signed["endpoint"], signed["region"]) == ("s3", "https://storage.googleapis.com", "auto")
    assert signed["access_key_id"] == "AKIA"
    account = remote_of(replace(store, credentials={"service_account": "s"}), {"s": '{"private_key":\n "a\\nb"}'})
    assert account.settings["service_account_credentials"] == '{"private_key": "a\\nb"}' == account.hidden[0]
    token = remote_of(replace(store, credentials={"token": "s"}), SECRETS)
    assert json.loads(token.settings["token"])["access_token"] == SECRETS["s"]
    assert (token.needs, token.hidden) == ((), (SECRETS["s"],))
    elsewhere = remote_of(replace(store, endpoint="https://emulator", credentials={"token": "s"}), SECRETS)
    assert (elsewhere.settings["endpoint"], elsewhere.needs) == ("https://emulator/storage/v1/", ("endpoint",))
    with pytest.raises(NotMountable, match="is not the text of a key file"):
        remote_of(replace(store, credentials={"service_account": "s"}), SECRETS)


def test_rclone_readiness_rejects_version_without_known_hosts_support(tmp_path: Path) -> None:
    """As 1.53 would, which reads no such setting."""
    (tmp_path / "rclone").write_text('#!/bin/sh\nprintf "%s\\n" "- Config:      skip_links"\n')
    (tmp_path / "rclone").chmod(0o755)
    store = StoreAddress(StoreKind.FSSPEC, "a", "", "/data", {"protocol": "sftp"}, KEYS)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    with pytest.raises(NotMountable, match="it has no known_hosts_file"):
        made_ready(remote_of(store, SECRETS), str(tmp_path), environ)
    assert not (tmp_path / "known_hosts").exists()


@pytest.mark.parametrize(
    ("programs", "device", "why"),
    [
        (("fusermount3", "rclone"), "fuse", ""),
        (("fusermount", "rclone"), "fuse", ""),
        (("rclone",), "fuse", "fusermount3 is not installed"),
        (("fusermount3",), "fuse", "rclone is not installed"),
        (("fusermount3", "rclone"), "none", "none does not exist or is closed to this user"),
    ],
)
def test_mount_check_names_missing_device_or_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...], device: str, why: str
) -> None:
    for name in (*programs, "fuse"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(node_mounts, "DEVICE", device)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert node_mounts.lacking() == why


def test_mount_argv_contains_no_secrets_and_mounts_read_only() -> None:
    transfer = Transfer(STORE, "digits/train", "/job/data/1")
    argv = mount_argv(transfer, Mounts((0,), cache_bytes=7), "ffdl-batch:1:2:3", "/proc/self/fd/3", "/scratch/cache")
    assert argv[:5] == ["rclone", "mount", "store:sets/digits/train", "/job/data/1", "--read-only"]
    assert argv[-2:] == ["--vfs-cache-max-size", "7b"]
    assert "--allow-other" not in argv
    assert not set(SECRETS.values()) & set(argv)
    assert "--cache-dir" not in mount_argv(transfer, Mounts((0,)), "s", "c", "")


@pytest.mark.parametrize(
    ("container", "prefix", "place"),
    [
        ("/data/", "a", "/data/a"),
        ("/", "a", "/a"),
        ("", "a/b", "a/b"),
        ("sets", "", "sets"),
        ("in/home", "a", "in/home/a"),
    ],
)
def test_mount_argv_keeps_absolute_and_home_relative_paths(container: str, prefix: str, place: str) -> None:
    transfer = Transfer(replace(STORE, container=container), prefix, "/job/data/1")
    assert mount_argv(transfer, Mounts((0,)), "s", "c", "")[2] == f"store:{place}"


def test_rclone_environment_drops_variables_that_change_store_access() -> None:
    given = {"PATH": "/bin", "AWS_PROFILE": "x", "RCLONE_CONFIG_PASS": "y", "HOME": "/home/ada", "https_proxy": "p"}
    assert environment(given, "/scratch") == {"PATH": "/bin", "https_proxy": "p", "HOME": "/scratch", "LANG": "C"}


def test_own_mounts_parses_escaped_names_and_skips_foreign_mounts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = os.getuid()
    lines = [
        "27 1 0:2 / / rw - ext4 /dev/sda1 rw",
        f"64 27 0:39 / /job/a\\040b\\134c ro,nosuid - fuse.rclone ffdl-batch:7:11:22 ro,user_id={own},group_id=0",
        f"65 27 0:40 / /job/d ro shared:3 - fuse.rclone ffdl-batch:8:12:23 ro,user_id={own}",
        f"66 27 0:41 / /job/e ro - fuse.rclone ffdl-batch:8:12:23 ro,user_id={own + 1}",
        f"67 27 0:42 / /job/f ro - fuse.sshfs ada@host: ro,user_id={own}",
        f"68 27 0:43 / /job/g ro - tmpfs ffdl-batch:8:12:23 rw,user_id={own}",
    ]
    file = tmp_path / "mountinfo"
    file.write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr(table, "TABLE", str(file))
    assert table.own_mounts() == [
        table.Mounted("/job/d", MountOwner("8", 12, 23), own),
        table.Mounted("/job/a b\\c", MountOwner("7", 11, 22), own),
    ]


@pytest.mark.parametrize("text", ["", "ffdl-batch", "ffdl-batch:1:2", "ffdl-batch:1:x:3", "other:1:2:3", "data:a/b"])
def test_read_source_returns_none_for_foreign_mount_sources(text: str) -> None:
    assert read_source(text) is None
    assert read_source(MountOwner("4711_3", 5, 6).source()) == MountOwner("4711_3", 5, 6)
