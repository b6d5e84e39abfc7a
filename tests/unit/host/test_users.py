"""Users that are in no password database, as in containers."""

from __future__ import annotations

import os
import pwd

import pytest
from click.testing import CliRunner

from ffdl_batch.cli.commands.config import config
from ffdl_batch.exit_handling import Stop
from ffdl_batch.host.users import home_of_caller, user_name


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
    assert home_of_caller({"HOME": ""}) == pwd.getpwuid(os.getuid()).pw_dir


@pytest.mark.usefixtures("unknown")
def test_config_of_unknown_user_needs_home_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = CliRunner().invoke(config)
    assert (shown.exit_code, "state_dir" in shown.output) == (0, True)
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with pytest.raises(Stop, match="set HOME"):
        CliRunner().invoke(config, catch_exceptions=False)
