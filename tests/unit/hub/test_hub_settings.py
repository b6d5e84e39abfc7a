"""The table [hub] of the site file: what it must be, and how the hub says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.site.hub.main import main
from ffdl_batch.site.hub.settings import SettingsRefused, load


def test_settings_have_defaults_and_the_directory_of_the_spawner(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('[spawner]\nrun_dir = "/run/other"\n[hub]\nlisten = "[::1]:80"\noperators = ["ada", "@staff"]\n')
    settings = load(file)
    assert (settings.run_dir, settings.listen_address) == ("/run/other", ("::1", 80))
    assert (settings.operators, settings.auditors) == (["ada", "@staff"], ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listne = 'x'", "unknown key 'listne'; did you mean listen?"),
        ("listen = '0.0.0.0:80'", "listen without certificate must be a loopback address"),
        ("listen = 'localhost'", "listen must be an address and a port"),
        ("listen = '127.0.0.1:99999'", "listen must be an address and a port"),
        ("certificate = '/c'", "certificate and key must be set together"),
        ("socket = 'hub.sock'", "socket must be an absolute path, not 'hub.sock'"),
        ("operators = 'ada'", "operators must be a list of texts"),
        ("auditors = [1]", "auditors must be a list of texts"),
        ("requests_at_once = 0", "requests_at_once must be at least 1"),
        ("requests_at_once = true", "requests_at_once must be a number"),
        ("socket = 1", "socket must be a text"),
        ("run_dir = '/run/x'", "run_dir is a key of [spawner]"),
        ("x = ", "cannot be read"),
    ],
)
def test_wrong_setting_is_named_with_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "site.toml"
    file.write_text(f"[hub]\n{text}\n")
    with pytest.raises(SettingsRefused) as refused:
        load(file)
    assert str(refused.value).startswith(str(file)) and said in str(refused.value)


def test_hub_refuses_to_run_as_root(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffdl_batch.site.hub.main.hide_memory", lambda: None)
    monkeypatch.setattr("ffdl_batch.site.hub.main.log_to", lambda _: None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.umask", lambda _: 0)  # it would be that of the tests that follow
    assert main(["--site-file", "/nonexistent"]) == 77
    assert "run it as an account of its own" in capfd.readouterr().err
