"""Staging by fsspec: a real SSH server's SFTP, a directory and the memory of this process."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from ffdl_batch.domain.data.staging_protocol import Direction, Entry, Failed, FaultClass, Note, Retry
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.staging.stores.fsspec import FsspecStore
from tests import preloaded
from tests.contract.linked_tree import check_round_trip
from tests.fakes.s3_server import free_port
from tests.fakes.ssh_server import BreakingWire, SshServer
from tests.file_modes import AS_OTHERS
from tests.staging_rig import MIB, StagingRig, rig

__all__ = ["rig"]
NOISE = random.Random(12).randbytes(3 * MIB + 9)
OUT = Direction.OUT


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    """One server for the tests of this file."""
    server = SshServer(tmp_path_factory.mktemp("ssh"), under=AS_OTHERS)
    yield server
    server.stop()


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """The directory that the store is."""
    made = tmp_path / "remote"
    (made / "set" / "deep [1]*").mkdir(parents=True)
    (made / "set" / "big").write_bytes(NOISE)
    (made / "set" / "deep [1]*" / "ü #?.txt").write_bytes(b"1")
    (made / "set" / "empty").write_bytes(b"")
    (made / "set" / "link").symlink_to("/etc/passwd")
    (made / "set" / "round").symlink_to(made)
    (made / "set-other").write_bytes(b"not of the set")
    return made


def lay(top: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(data)


NAMES = {"big": NOISE, "deep [1]*/ü #?.txt": b"1", "empty": b""}


def sftp(ssh: SshServer, remote: Path, port: int = 0, **options: str) -> StoreAddress:
    """The directory by SFTP."""
    given = {"protocol": "sftp", "known_hosts": str(ssh.known_hosts), "key_file": str(ssh.key), "timeout_s": "60"}
    return StoreAddress(
        StoreKind.FSSPEC,
        f"127.0.0.1:{port or ssh.port}",
        container=str(remote),
        options={name: value for name, value in {**given, **options}.items() if value},
        credentials={"user_name": "who"},
    )


@pytest.fixture(params=["sftp", "file"])
def store(request: pytest.FixtureRequest, ssh: SshServer, rig: StagingRig, remote: Path) -> StoreAddress:
    """The directory by SFTP, and by fsspec's own files."""
    rig.secrets.write_text(json.dumps({"who": ssh.user}))
    if request.param == "sftp":
        return sftp(ssh, remote)
    return StoreAddress(StoreKind.FSSPEC, container=str(remote), options={"protocol": "file"})


def test_fsspec_store_stages_in_tree_and_skips_unchanged_files(
    rig: StagingRig, store: StoreAddress, remote: Path
) -> None:
    task = rig.task(store=store, prefix="set")
    assert rig.run(task).done.files == 3
    assert rig.files() == NAMES
    assert (rig.local / "big").stat().st_mtime == pytest.approx((remote / "set/big").stat().st_mtime, abs=1)
    assert rig.run(task).done.kept == 3
    changed = NOISE[::-1] + b"longer"
    (remote / "set" / "big").write_bytes(changed)
    again = rig.run(task).done
    assert (again.kept, again.bytes) == (2, len(changed))
    assert rig.files()["big"] == changed
    assert rig.run(rig.task(store=store, prefix="set/big", state_dir=str(rig.directory / "one"))).done.files == 1


def test_fsspec_store_stages_out_tree_and_skips_unchanged_files(
    rig: StagingRig, store: StoreAddress, remote: Path
) -> None:
    for name, data in NAMES.items():
        (rig.local / name).parent.mkdir(parents=True, exist_ok=True)
        (rig.local / name).write_bytes(data)
    task = rig.task(OUT, "new/place", store=store)
    assert rig.run(task).done.files == 3
    stored = {
        str(p.relative_to(remote / "new/place")): p.read_bytes() for p in (remote / "new").rglob("*") if p.is_file()
    }
    assert stored == NAMES
    assert rig.run(task).done.kept == 3
    (rig.local / "big").write_bytes(b"smaller")
    assert rig.run(task).done.kept == 2
    assert (remote / "new/place/big").read_bytes() == b"smaller"
    assert list((remote / "new").rglob(".*")) == []


@pytest.mark.usefixtures("bound_by_modes")
def test_fsspec_store_keeps_links_modes_holes_and_empty_directories(rig: StagingRig, store: StoreAddress) -> None:
    check_round_trip(rig, store)


@pytest.mark.parametrize(("check", "prefix"), [
    (True, "none"), (False, ""),
    pytest.param(False, "none", marks=pytest.mark.full), pytest.param(True, "", marks=pytest.mark.full),
])  # fmt: skip
def test_fsspec_store_reports_missing_prefix_or_container(
    rig: StagingRig, store: StoreAddress, prefix: str, check: bool
) -> None:
    where = store if prefix else replace(store, container=f"{store.container}/none")
    outcome = rig.run(rig.task(store=where, prefix=prefix), check=check)
    assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (66, FaultClass.MISSING, "C103")
    assert "none" in outcome.failed.message


def test_fsspec_store_lists_keys_in_order_and_resumes_after_any_key(
    rig: StagingRig, store: StoreAddress, remote: Path
) -> None:
    for name in ("a.b", "a/c", "a/d/e", "a0"):
        (remote / name).parent.mkdir(parents=True, exist_ok=True)
        (remote / name).write_bytes(b"1")
    unreadable: list[str] = []
    credentials = {"user_name": json.loads(rig.secrets.read_text())["who"]}
    opened = FsspecStore(store, credentials, lambda name, _: unreadable.append(name))
    keys = [item.key for page in opened.listing("") for item in page]
    assert keys == sorted(keys)
    assert {"a.b", "a/c", "a/d/e", "a0"} < set(keys)
    for number, key in enumerate(keys):
        assert [item.key for page in opened.listing("", key) for item in page] == keys[number + 1 :]
    opened.close()
    assert unreadable == []


@pytest.mark.usefixtures("bound_by_modes")
@pytest.mark.parametrize(("modes", "named", "kept"), [
    pytest.param({"small": 0}, ["small"], {"a", "big", "d/in"}, marks=pytest.mark.full),
    pytest.param({"big": 0}, ["big"], {"a", "small", "d/in"}, marks=pytest.mark.full),
    pytest.param({"d": 0}, ["d"], {"a", "big", "small"}, marks=pytest.mark.full),
    ({"d": 0o444}, ["d"], {"a", "big", "small"}),
    ({"d": 0o111}, ["d"], {"a", "big", "small"}),
    ({"d/in": 0}, ["d/in"], {"a", "big", "small"}),
    ({"a": 0, "big": 0, "small": 0, "d": 0}, ["a", "big", "d", "small"], set()),
])  # fmt: skip
def test_fsspec_store_brings_and_lists_all_objects_but_unreadable_ones(
    rig: StagingRig, store: StoreAddress, remote: Path, modes: dict[str, int], named: list[str], kept: set[str]
) -> None:
    data = {"a": b"1", "big": NOISE, "small": b"3", "d/in": b"2"}
    lay(remote / "tree", data)
    for name, mode in modes.items():
        (remote / "tree" / name).chmod(mode)
    task = rig.task(store=store, prefix="tree")
    outcome, listed = rig.run(task), rig.run(task, lists=True)
    for name in modes:
        (remote / "tree" / name).chmod(0o700)
    assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (77, FaultClass.CREDENTIALS, "C103")
    assert sorted(note.why for note in outcome.of(Note)) == [
        f"{name} cannot be read: Permission denied" for name in named
    ]
    were = "file or directory was" if len(named) == 1 else "files or directories were"
    assert f"{len(named)} {were} not read (" in outcome.failed.message
    assert outcome.failed.message.endswith("; all others are copied; make them readable, or leave them out")
    assert outcome.of(Retry) == []
    assert rig.files() == {name: data[name] for name in kept}
    entries = {entry.name for entry in listed.of(Entry)}
    assert entries == {name for name in data if "d" not in modes or name != "d/in"}
    assert isinstance(listed.last, Failed) == ("d" in modes)
    assert rig.run(task).done.files == len(data)
    assert rig.files() == data


@pytest.mark.usefixtures("bound_by_modes")
@pytest.mark.parametrize("mode", [0, 0o444, pytest.param(0o111, marks=pytest.mark.full)])
def test_fsspec_store_reports_denied_access_to_whole_directory(
    rig: StagingRig, store: StoreAddress, remote: Path, mode: int
) -> None:
    lay(remote / "tree", {"a": b"1"})
    (remote / "tree").chmod(mode)
    outcome = rig.run(rig.task(store=store, prefix="tree"))
    (remote / "tree").chmod(0o700)
    assert (outcome.status, outcome.failed.class_) == (77, FaultClass.CREDENTIALS)


@pytest.mark.usefixtures("bound_by_modes")
def test_fsspec_store_stages_out_beside_directory_that_cannot_be_listed(
    rig: StagingRig, store: StoreAddress, remote: Path
) -> None:
    lay(remote / "new", {"theirs/x": b"1"})
    (remote / "new/theirs").chmod(0)
    lay(rig.local, {"mine": b"2"})
    outcome = rig.run(rig.task(OUT, "new", store=store))
    (remote / "new/theirs").chmod(0o700)
    assert outcome.done.files == 1
    assert (remote / "new/mine").read_bytes() == b"2"


def test_fsspec_store_leaves_out_pipes_and_sockets(
    rig: StagingRig, store: StoreAddress, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(remote / "set" / "pipe")
    monkeypatch.chdir(remote / "set")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("talk")
        assert rig.run(rig.task(store=store, prefix="set")).done.files == 3
    assert rig.files() == NAMES


def test_fsspec_store_writes_directly_if_file_system_cannot_rename(rig: StagingRig) -> None:
    """A store that cannot rename is written directly."""
    store = StoreAddress(StoreKind.FSSPEC, container="/bucket", options={"protocol": "memory"})
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/set/big", NOISE)
    assert rig.run(rig.task(store=store, prefix="set")).done.files == 1
    assert rig.files() == {"big": NOISE}
    assert rig.run(rig.task(OUT, "out", store=store, state_dir=str(rig.directory / "o"))).done.files == 1
    assert memory.find("/bucket") == ["/bucket/out/big", "/bucket/set/big"]
    assert memory.cat("/bucket/out/big") == NOISE
    memory.rm("/bucket", recursive=True)


UNKNOWN_HOST = (
    ": its host key is not known yet: {file} has none of {host} port {port}; compare the key that it showed, "
    "ssh-ed25519 {key}, with the one that its administrators publish; if they are the same, run "
    "`ssh-keyscan -p {port} {host} >> {file}`, or name a file that has it as the store's option known_hosts"
)
CHANGED_HOST = (
    ": DANGER: its host key is not the one of known_hosts: {host} port {port} showed ssh-ed25519 {key}, {known} "
    "is known; it has a new key, or another host answers in its place; no credentials were sent; "
    "replace the line in known_hosts only if the administrators confirm the new key"
)


def fingerprint_of(known_hosts: Path) -> str:
    """Of the file's only line, as ssh-keygen says it."""
    said = preloaded.run(["ssh-keygen", "-lf", str(known_hosts)], capture_output=True, text=True, check=True).stdout
    return said.split()[1]


@pytest.mark.parametrize("check", [True, False])
def test_sftp_store_rejects_unknown_or_changed_host_key(
    rig: StagingRig, ssh: SshServer, remote: Path, check: bool
) -> None:
    rig.secrets.write_text(json.dumps({"who": ssh.user}))
    empty = rig.directory / "nobody-known"
    empty.write_text("")
    other = rig.directory / "another-key"
    ssh.write_known_hosts(other, ssh.other_key.with_suffix(".pub"), ssh.port)
    for known_hosts, said in ((empty, UNKNOWN_HOST), (other, CHANGED_HOST)):
        outcome = rig.run(rig.task(store=sftp(ssh, remote, known_hosts=str(known_hosts))), check=check)
        assert (outcome.status, outcome.failed.class_) == (76, FaultClass.REFUSED)
        shows = {"host": "127.0.0.1", "port": ssh.port, "file": str(empty).replace(ssh.user, "***")}
        keys = {"key": fingerprint_of(ssh.known_hosts), "known": fingerprint_of(other)}
        assert outcome.failed.message.endswith(said.format(**shows, **keys))
        assert outcome.of(Retry) == []
    assert rig.files() == {}
    assert empty.read_text() == ""
    insists = sftp(ssh, remote, known_hosts=str(empty), host_key_policy="auto_add")
    assert rig.run(rig.task(store=insists), check=check).failed.class_ is FaultClass.REFUSED


def test_sftp_store_accepts_right_private_key_and_rejects_wrong_key(
    rig: StagingRig, ssh: SshServer, remote: Path
) -> None:
    rig.secrets.write_text(
        json.dumps({"who": ssh.user, "key": ssh.key.read_text(), "wrong": ssh.other_key.read_text()})
    )
    store = sftp(ssh, remote, key_file="")
    right = replace(store, credentials={"user_name": "who", "private_key": "key"})
    assert rig.run(rig.task(store=right, prefix="set")).done.files == 3
    wrong = replace(store, credentials={"user_name": "who", "private_key": "wrong"})
    outcome = rig.run(rig.task(store=wrong, prefix="set"))
    assert (outcome.status, outcome.failed.class_) == (77, FaultClass.CREDENTIALS)
    assert outcome.of(Retry) == []
    none = replace(store, credentials={"user_name": "who", "private_key": "who"})
    assert rig.run(rig.task(store=none)).failed.class_ is FaultClass.CREDENTIALS


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # paramiko's, that reads ahead
@pytest.mark.parametrize("direction", list(Direction))
def test_sftp_store_reconnects_after_broken_connection(
    rig: StagingRig, ssh: SshServer, remote: Path, direction: Direction
) -> None:
    rig.secrets.write_text(json.dumps({"who": ssh.user}))
    wire = BreakingWire(ssh.port, breaks=3, after_bytes=1_500_000)
    ssh.write_known_hosts(rig.directory / "known", ssh.known_hosts.with_name("host_key.pub"), wire.port)
    store = sftp(ssh, remote, wire.port, known_hosts=str(rig.directory / "known"))
    if direction is OUT:
        rig.local.mkdir()
        (rig.local / "big").write_bytes(NOISE)
    outcome = rig.run(rig.task(direction, "set" if direction is Direction.IN else "new", store=store, parallel=1))
    wire.stop()
    assert outcome.done.files >= 1
    assert outcome.of(Retry)
    assert wire.connections > 1
    assert (rig.local / "big").read_bytes() == NOISE
    assert (remote / ("set" if direction is Direction.IN else "new") / "big").read_bytes() == NOISE


def test_sftp_store_reports_refused_connection(rig: StagingRig, ssh: SshServer, remote: Path) -> None:
    rig.secrets.write_text(json.dumps({"who": ssh.user}))
    port = free_port()
    outcome = rig.run(rig.task(store=sftp(ssh, remote, port), tries=2))
    assert (outcome.status, outcome.failed.class_) == (75, FaultClass.NETWORK)
    (told,) = outcome.of(Retry)
    assert told.why == f"127.0.0.1:{port} refused the connection: nothing listens there"
    assert outcome.failed.message.endswith("check the address and whether the store runs")


def test_sftp_store_reports_server_without_ssh_greeting(rig: StagingRig, ssh: SshServer, remote: Path) -> None:
    rig.secrets.write_text(json.dumps({"who": ssh.user}))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        store = sftp(ssh, remote, port)
        store = replace(store, options={**store.options, "timeout_s": "1"})
        outcome = rig.run(rig.task(store=store, tries=1))
    assert f"127.0.0.1:{port} did not greet as an SSH server does" in outcome.failed.message


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, FaultClass.TASK),
        ({"protocol": "no-such"}, FaultClass.TASK),
        ({"protocol": "smb"}, FaultClass.LIBRARY),
        ({"protocol": "sftp"}, FaultClass.TASK),
    ],
)
def test_fsspec_store_rejects_unusable_protocol(rig: StagingRig, options: dict[str, str], kind: FaultClass) -> None:
    store = StoreAddress(StoreKind.FSSPEC, container="x", options=options)
    assert rig.run(rig.task(store=store)).failed.class_ is kind
