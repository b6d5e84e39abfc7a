"""An agent that hangs is told, and keeps nobody waiting for ever."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ffdl_batch.ssh.authentication import Login
from ffdl_batch.ssh.errors import SshFailed
from ffdl_batch.ssh.host_config import HostConfig


class Host:
    """One that takes keys alone."""

    auth_timeout = 0.0

    def auth_none(self, _user: str) -> None:
        import paramiko

        raise paramiko.BadAuthenticationType("", ["publickey"])


def refused(agent: Path) -> str:
    config = HostConfig("login", "login.example.org", "ada", 2222, agent=str(agent))
    with pytest.raises(SshFailed) as raised:
        Login(Host(), config, None).perform()
    assert "try: ssh -p 2222 ada@login;" in str(raised.value.cure)
    return str(raised.value)


def test_ssh_login_reports_agent_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffdl_batch.ssh.authentication._AGENT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(tmp_path / "agent"))
        agent.listen()
        assert f"the agent at {tmp_path}/agent (no answer within 0.2 s)" in refused(tmp_path / "agent")


def test_ssh_login_reports_missing_key_when_agent_socket_is_absent(tmp_path: Path) -> None:
    assert "no key was found" in refused(tmp_path / "none")
