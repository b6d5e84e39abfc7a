"""Stores of other kinds that nodes mount by rclone, each a real one or the server that staging is tested with."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from ffdl_batch.controller.mounts.node_mounts import NodeMounts
from ffdl_batch.domain.data.mounts import Mounts
from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from tests import preloaded
from tests.contract.controller_rig import rig
from tests.contract.test_controller_data import Site
from tests.contract.test_controller_mounts import WAIT, how, require_hidden, require_nothing_left
from tests.fakes.certificates import certificate_for
from tests.fakes.google_server import Google, google_server
from tests.fakes.s3_server import S3Server
from tests.fakes.ssh_server import SshServer
from tests.fakes.swift_server import Stored, Swift, swift_server
from tests.fakes.tls_front import tls_front

DATA = b"the data\n"


@pytest.fixture(name="site")
def made(tmp_path: Path, s3_server: S3Server) -> Iterator[Site]:
    with rig(tmp_path) as run:
        run.have_controllers_do()
        site = Site(run, s3_server)
        Path(run.attempt.event_file("head")).parent.mkdir()
        site.put("set/deep/a", DATA)
        yield site
        site.proxy.stop()


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    server = SshServer(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


@pytest.fixture
def swift() -> Iterator[Swift]:
    with swift_server() as server:
        server.containers["box"] |= {"set/deep/a": Stored(DATA), "set/b": Stored(b"b")}
        yield server


@pytest.fixture
def google() -> Iterator[Google]:
    with google_server() as server:
        server.buckets["box"] |= {"set/deep/a": DATA, "set/b": b"b"}
        yield server


def keep(site: Site, **values: str) -> dict[str, str]:
    """Have the attempt's file of secrets hold them, each by its field's name; the credentials that name them."""
    path = Path(site.run.attempt.secrets)
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    path.chmod(0o600)
    return {name: name for name in values}


def by_v1(site: Site, swift: Swift) -> StoreAddress:
    keys = keep(site, user_name=swift.user, password=swift.password)
    return StoreAddress(StoreKind.SWIFT, f"http://127.0.0.1:{swift.port}/auth/v1.0", "", "box", {}, keys)


def by_v3(site: Site, swift: Swift) -> StoreAddress:
    swift.domain, swift.project = "Default", "p-1"
    options = {"domain_name": "Default", "project_id": "p-1"}
    return replace(by_v1(site, swift), endpoint=f"http://127.0.0.1:{swift.port}", region="north", options=options)


def by_sftp(site: Site, ssh: SshServer) -> StoreAddress:
    remote = site.run.base / "remote"
    (remote / "set" / "deep").mkdir(parents=True)
    (remote / "set" / "deep" / "a").write_bytes(DATA)
    (remote / "set" / "link").symlink_to("/etc/hostname")
    options = {"protocol": "sftp", "known_hosts": str(ssh.known_hosts)}
    keys = keep(site, user_name=ssh.user, private_key=ssh.key.read_text())
    return StoreAddress(StoreKind.FSSPEC, f"127.0.0.1:{ssh.port}", "", str(remote), options, keys)


def require_secrets_hidden(site: Site, store: StoreAddress) -> None:
    """None of the store's secrets is found outside of the attempt's file of them; of a long one, its middle line."""
    secrets = json.loads(Path(site.run.attempt.secrets).read_text())
    lines = [secrets[name].split("\n") for key, name in store.credentials.items() if key != "user_name"]
    require_hidden(site, *(some[len(some) // 2] for some in lines))


def mounted(site: Site, store: StoreAddress) -> str:
    """Why it is not, by the mount alone; it is gone again afterwards."""
    fetch = Transfer(store, "set", site.run.attempt.data)
    Path(fetch.local).mkdir(parents=True, exist_ok=True)
    launch = site.write("true", fetches=(fetch,), mounts=Mounts((0,)))
    scratch = site.run.base / "scratch"
    scratch.mkdir(exist_ok=True)
    mounting = NodeMounts(launch, 0, str(scratch))
    try:
        why = mounting.mount(0, lambda: None)
        if not why:
            assert (Path(fetch.local) / "deep" / "a").read_bytes() == DATA
            require_secrets_hidden(site, store)
        return why
    finally:
        mounting.finish()
        require_nothing_left(site.run)


def test_learner_reads_mounted_sftp_store_without_its_symbolic_links(site: Site, ssh: SshServer) -> None:
    store = by_sftp(site, ssh)
    fetch = Transfer(store, "set", site.run.attempt.data)
    site.write(f'ls -A "$DATA_DIR"; {WAIT}', fetches=(fetch,), uploads=(), mounts=Mounts((0,), True))
    site.run.start_until("begun")
    require_secrets_hidden(site, store)
    (Path(site.run.attempt.results) / "go").touch()
    assert site.run.await_end() == 0, site.run.errors + site.run.log()
    assert how(site) == [(0, "mounted")]
    assert "is mounted\ndeep\nthe data\n1\nbegun" in site.run.log()
    require_nothing_left(site.run)


@pytest.mark.parametrize("asked", [by_v1, by_v3])
def test_swift_container_is_mounted_with_v1_or_v3_authentication(
    site: Site, swift: Swift, asked: Callable[[Site, Swift], StoreAddress]
) -> None:
    assert mounted(site, asked(site, swift)) == ""


def test_google_store_with_hmac_keys_is_mounted(site: Site) -> None:
    assert mounted(site, replace(site.store(site.data), kind=StoreKind.GCS)) == ""


def test_s3_store_with_custom_tls_certificate_is_mounted(site: Site, tmp_path: Path) -> None:
    certificate, key = certificate_for("127.0.0.1", tmp_path)
    with tls_front(site.server.port, certificate, key) as port:
        options = {"ca_file": str(certificate), "timeout_s": "60"}
        store = replace(site.store(site.data), endpoint=f"https://127.0.0.1:{port}", options=options)
        assert mounted(site, store) == ""


def test_sftp_store_with_key_file_is_mounted(site: Site, ssh: SshServer) -> None:
    store = by_sftp(site, ssh)
    options = {**store.options, "key_file": str(ssh.key)}
    assert mounted(site, replace(store, options=options, credentials={"user_name": "user_name"})) == ""


@pytest.mark.parametrize("in_a_file", [False, True])
def test_sftp_store_with_passphrase_key_is_mounted_only_with_right_passphrase(
    site: Site, ssh: SshServer, in_a_file: bool
) -> None:
    store, key = by_sftp(site, ssh), site.run.base / "locked"
    key.write_bytes(ssh.key.read_bytes())
    key.chmod(0o600)
    argv = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "planted 'pass' #1", "-f", str(key)]
    preloaded.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    keys = keep(site, user_name=ssh.user, password="planted 'pass' #1")
    if in_a_file:
        store = replace(store, options={**store.options, "key_file": str(key)}, credentials=keys)
    else:
        store = replace(store, credentials={**keys, **keep(site, private_key=key.read_text())})
        key.unlink()
    keep(site, password="another one")
    why = mounted(site, store)
    assert why, "it is mounted"
    assert "another one" not in why
    keep(site, password="planted 'pass' #1")
    assert mounted(site, store) == ""


def test_sftp_mount_rejects_unknown_host_key(site: Site, ssh: SshServer, tmp_path: Path) -> None:
    """The staging program refuses it before; so here is what the mount itself does."""
    store, other = by_sftp(site, ssh), tmp_path / "other_hosts"
    SshServer.write_known_hosts(other, Path(f"{ssh.other_key}.pub"), ssh.port)
    assert "host" in mounted(site, replace(store, options={**store.options, "known_hosts": str(other)}))
    why = mounted(site, replace(store, options={**store.options, "known_hosts": str(tmp_path / "none")}))
    assert why == f"no file says which hosts are known: {tmp_path / 'none'}"


def test_google_store_with_service_account_is_mounted_with_one_token(site: Site, google: Google) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()
    told = {"type": "service_account", "client_email": "me@p", "private_key": pem, "token_uri": google.token_url}
    keys = keep(site, service_account=json.dumps(told, indent=2))
    assert mounted(site, StoreAddress(StoreKind.GCS, google.endpoint, "", "box", {}, keys)) == ""
    assert google.given == 1


def test_google_store_is_mounted_only_with_valid_token(site: Site, google: Google) -> None:
    keys = keep(site, token=google.token)
    store = StoreAddress(StoreKind.GCS, google.endpoint, "", "box", {}, keys)
    assert mounted(site, store) == ""
    google.token = "another"
    why = mounted(site, store)
    assert why.startswith("the mounted store cannot be read: "), why
    assert "planted" not in why
