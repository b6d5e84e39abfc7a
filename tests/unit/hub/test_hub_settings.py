"""The table [hub] of the site file: what it must be, and how the hub says what is wrong with it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.site.hub import main as hub_main
from ffdl_batch.site.hub.app import Hub
from ffdl_batch.site.hub.audit import Audit
from ffdl_batch.site.hub.main import main, passed_sockets, refuse_others
from ffdl_batch.site.hub.settings import HubSettings, SettingsRefused, load
from ffdl_batch.site.hub.store import open_hub_store
from ffdl_batch.store.database import connect


def test_settings_have_defaults_and_the_directory_of_the_spawner(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('[spawner]\nrun_dir = "/run/other"\n[hub]\nlisten = "[::1]:80"\noperators = ["ada", "@staff"]\n')
    settings = load(file)
    assert (settings.run_dir, settings.listen_address) == ("/run/other", ("::1", 80))
    assert (settings.operators, settings.auditors) == (["ada", "@staff"], ())
    file.write_text("trust_hub_sessions = true\n[spawner]\nmin_uid = 5000\n[hub]\n")
    assert (load(file).trust_hub_sessions, load(file).min_uid) == (True, 5000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listne = 'x'", "unknown key 'listne'; did you mean listen?"),
        ("listen = '0.0.0.0:80'", "listen must be a loopback address"),
        ("cors_origins = ['*']", "cors_origins: '*' is not an origin such as https://HOST[:PORT]"),
        ("cors_origins = ['https://a/b']", "cors_origins: 'https://a/b' is not an origin"),
        ("listen = '127.0.0.1:8443x'\ncertificate = '/c'\nkey = '/k'", "listen must be ADDRESS:PORT"),
        ("listen = 'localhost'", "listen must be ADDRESS:PORT"),
        ("listen = '127.0.0.1:99999'", "listen must be ADDRESS:PORT"),
        ("certificate = '/c'", "certificate and key must be set together"),
        ("socket = 'hub.sock'", "socket must be an absolute path, not 'hub.sock'"),
        ("operators = 'ada'", "operators must be a list of texts"),
        ("auditors = [1]", "auditors must be a list of texts"),
        ("requests_at_once = 0", "requests_at_once must be at least 1"),
        ("requests_at_once = true", "requests_at_once must be a number"),
        ("socket = 1", "socket must be a text"),
        ("run_dir = '/run/x'", "run_dir belongs in [spawner]"),
        ("min_uid = 1", "min_uid belongs in [spawner]"),
        ("trust_hub_sessions = true", "trust_hub_sessions belongs before all tables"),
        ("oidc_issuer = 'https://id'", "oidc_issuer and oidc_client_id must be set together"),
        ("oidc_issuer = 'http://id'\noidc_client_id = 'x'", "oidc_issuer must be an address as https://HOST"),
        ("oidc_ca = 'ca.pem'", "oidc_ca must be an absolute path"),
        ("database_url = 'postgresql+psycopg://ffdl:secret@db/hub'", "database_url must have no password"),
        ("database_url = 'postgresql+psycopg://@/hub?host=db&password=secret'", "database_url must have no password"),
        ("x = ", "cannot be read"),
    ],
)
def test_wrong_setting_is_named_with_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "site.toml"
    file.write_text(f"[hub]\n{text}\n")
    with pytest.raises(SettingsRefused) as refused:
        load(file)
    assert str(refused.value).startswith(str(file)) and said in str(refused.value)


def test_site_file_that_others_may_write_and_unusable_certificate_end_hub_with_78(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 7000)
    monkeypatch.setattr("ffdl_batch.site.hub.main.hide_memory", lambda: None)
    monkeypatch.setattr("ffdl_batch.site.hub.main.log_to", lambda *_, **__: None)
    file = tmp_path / "site.toml"
    file.write_text(f"[hub]\nlisten = '127.0.0.1:8443'\ncertificate = '{tmp_path}/c'\nkey = '{tmp_path}/k'\n")
    umask = os.umask(0)
    try:
        assert main(["--site-file", str(file)]) == 78
        assert f"certificate {tmp_path}/c with key {tmp_path}/k cannot be used: No such file" in capfd.readouterr().err
        file.chmod(0o666)
        assert main(["--site-file", str(file)]) == 78
        assert "must be owned by root and writable only by root" in capfd.readouterr().err
    finally:
        os.umask(umask)


def test_hub_refuses_to_run_as_root(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffdl_batch.site.hub.main.hide_memory", lambda: None)
    monkeypatch.setattr("ffdl_batch.site.hub.main.log_to", lambda _: None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.umask", lambda _: 0)  # it would be that of the tests that follow
    assert main(["--site-file", "/nonexistent"]) == 77
    assert "run it under its own account" in capfd.readouterr().err


def test_hub_that_must_end_as_soon_as_clients_can_connect_ends_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, unhandled, bind = HubSettings(socket=str(tmp_path / "hub.sock")), list[int](), hub_main._bind_socket

    def bind_and_end(place: Path) -> socket.socket:
        listening = bind(place)
        signal.raise_signal(signal.SIGTERM)
        return listening

    monkeypatch.setattr(hub_main, "_bind_socket", bind_and_end)
    database = connect(f"sqlite:///{tmp_path}/hub.db", False, SystemClock())
    before = signal.signal(signal.SIGTERM, lambda number, _: unhandled.append(number))
    try:
        hub = Hub(settings, open_hub_store(database), Audit())
        asyncio.run(asyncio.wait_for(hub_main._serve(hub, settings), 60))
    finally:
        signal.signal(signal.SIGTERM, before)
        database.close()
    assert unhandled == [] and not (tmp_path / "hub.sock").exists()


PASSED = 200
"""The first of two descriptors that no other test uses."""


def test_hub_takes_passed_sockets_by_path_and_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffdl_batch.site.hub.main.FIRST_PASSED", PASSED)
    path = str(tmp_path / "hub.sock")
    with socket.socket(socket.AF_UNIX) as local, socket.create_server(("127.0.0.1", 0)) as remote:
        local.bind(path)
        os.dup2(local.fileno(), PASSED)
        os.dup2(remote.fileno(), PASSED + 1)
        address = remote.getsockname()
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"}
    assert passed_sockets({}) == passed_sockets({**environ, "LISTEN_PID": "1"}) == {}
    passed = passed_sockets(environ)
    assert {name: one.getsockname() for name, one in passed.items()} == {path: path, address: address}
    for one in passed.values():
        assert not one.get_inheritable()
        one.close()
    settings = HubSettings(socket=path, listen=f"127.0.0.1:{address[1]}")
    refuse_others(passed, settings)
    with pytest.raises(SettingsRefused, match=r"listens at 127\.0\.0\.1:\d+, which is neither"):
        refuse_others(passed, replace(settings, listen=""))
    with pytest.raises(SettingsRefused, match=r"/hub\.sock, which is neither"):
        refuse_others(passed, replace(settings, socket="/run/hub.sock"))
