"""Users that are in no password database, as in containers."""

from __future__ import annotations

import os
import pwd

import pytest
from click.testing import CliRunner

from ffdl_batch.cli.commands.config import config
from ffdl_batch.exit_handling import Stop
from ffdl_batch.host.users import base_directory, home_of_caller, user_name


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", find)


@pytest.mark.usefixtures("unknown")
def test_user_name_is_number_of_unknown_user() -> None:
    assert user_name(54321) == "54321"


def test_home_of_caller_prefers_variable_to_password_database() -> None:
    assert home_of_caller({"HOME": "/h"}) == "/h"
    for home in ("", "relative", ".", "~"):
        assert home_of_caller({"HOME": home}) == pwd.getpwuid(os.getuid()).pw_dir


@pytest.mark.parametrize("named", ["", "relative", "./x", "~/x", "\udcff"])
def test_base_directory_is_below_home_unless_variable_names_absolute_path(named: str) -> None:
    variables = {"HOME": "/h", "XDG_STATE_HOME": named}
    assert base_directory(variables, "XDG_STATE_HOME", ".local/state") == "/h/.local/state"
    assert base_directory({**variables, "XDG_STATE_HOME": "/s"}, "XDG_STATE_HOME", ".local/state") == "/s"


@pytest.mark.usefixtures("unknown")
def test_config_of_unknown_user_needs_home_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = CliRunner().invoke(config)
    assert (shown.exit_code, "state_dir" in shown.output) == (0, True)
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with pytest.raises(Stop, match="set HOME"):
        CliRunner().invoke(config, catch_exceptions=False)
