"""Tests how a login node is reached, by ssh and by paramiko: real sshds on loopback with keys of their own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import preloaded
from tests.contract.daemon_rig import until
from tests.contract.terminals import answer_prompts
from tests.fakes.second_factor import SecondFactorServer
from tests.fakes.ssh_server import BreakingWire
from tests.login_node import Laptop, LoginNode, make_key

CARRIER = """\
import os, socket, sys, threading
to = socket.create_connection((sys.argv[1], int(sys.argv[2])))
up = lambda: [to.sendall(data) for data in iter(lambda: os.read(0, 9999), b"")]
threading.Thread(target=up, daemon=True).start()
for data in iter(lambda: to.recv(9999), b""):
    os.write(1, data)
"""
"""It does not end by itself: that is the caller's affair."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginNode]:
    """One whose backend is itself."""
    found = LoginNode(tmp_path_factory.mktemp("node"), profile={"FFDL_BACKEND": "local"})
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture(params=["ssh", "paramiko"])
def laptop(request: pytest.FixtureRequest, tmp_path: Path, node: LoginNode) -> Laptop:
    found = Laptop(tmp_path / "laptop", node.config())
    found.environ["FFDL_SSH"] = request.param
    return found


def uses_ssh(laptop: Laptop) -> bool:
    return laptop.environ["FFDL_SSH"] == "ssh"


def test_remote_list_uses_daemon_of_login_node(laptop: Laptop, node: LoginNode) -> None:
    done = laptop.run("list", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert (node.state / "daemon.lock").exists()
    assert not (laptop.directory / "state").exists(), "no daemon here"


def test_ssh_login_rejects_unknown_host_key_and_prints_accept_command(laptop: Laptop, node: LoginNode) -> None:
    known = laptop.directory / "known"
    laptop.write_config(node.config(UserKnownHostsFile=str(known)))
    done = laptop.run("list")
    assert done.returncode == 77 and "is not known" in done.stderr
    shown = preloaded.run(
        ["ssh-keygen", "-lf", str(node.directory / "host_key.pub")], check=True, capture_output=True, text=True
    ).stdout.split()[1]
    assert shown in done.stderr, "the fingerprint as ssh-keygen shows it"
    command = done.stderr.partition("then: ")[2].strip().removesuffix(")")
    by_ssh, by_paramiko = "ssh -o StrictHostKeyChecking=accept-new", f"ssh-keyscan -p {node.server.port} -t ed25519"
    assert command.startswith(by_ssh if uses_ssh(laptop) else f"{by_paramiko} 127.0.0.1 >> {known}")

    def is_known() -> bool:
        """ssh-keyscan gives a server that is slow up after five seconds, and says nothing."""
        preloaded.run(["sh", "-c", command], check=False, capture_output=True)
        return known.exists() and bool(known.read_text())

    until(is_known, "the key")
    assert laptop.run("list").returncode == 0


def test_ssh_login_rejects_changed_host_key(laptop: Laptop, node: LoginNode, tmp_path: Path) -> None:
    make_key(tmp_path / "another")
    known = tmp_path / "known"
    node.server.write_known_hosts(known, tmp_path / "another.pub", node.server.port)
    laptop.write_config(node.config(UserKnownHostsFile=str(known), StrictHostKeyChecking="no"))
    done = laptop.run("list")
    assert done.returncode == 77
    assert "HAS CHANGED" in done.stderr and f"{known}, line 1" in done.stderr and "ssh-keygen -R" in done.stderr


def test_ssh_login_accepts_hashed_and_rejects_revoked_host_keys(
    laptop: Laptop, node: LoginNode, tmp_path: Path
) -> None:
    known = tmp_path / "known"
    known.write_text(node.server.known_hosts.read_text())
    preloaded.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    laptop.write_config(node.config(UserKnownHostsFile=str(known)))
    assert laptop.run("list").returncode == 0
    known.write_text(f"{node.server.known_hosts.read_text()}@revoked * {_public(node)}\n")
    done = laptop.run("list")
    assert done.returncode == 77 and "is revoked" in done.stderr


def _public(node: LoginNode) -> str:
    return " ".join((node.directory / "host_key.pub").read_text().split()[:2])


def test_ssh_login_reports_rejected_user_key(laptop: Laptop, node: LoginNode) -> None:
    laptop.write_config(node.config(IdentityFile=str(node.server.other_key), IdentityAgent="none"))
    done = laptop.run("list")
    assert done.returncode == 77
    assert "refused the login: it accepts publickey" in done.stderr and str(node.server.other_key) in done.stderr


def test_ssh_login_exits_75_when_host_is_unreachable(laptop: Laptop, node: LoginNode) -> None:
    laptop.write_config(node.config(Port="1"))
    done = laptop.run("list")
    assert done.returncode == 75 and "port 1, cannot be reached: Connection refused" in done.stderr


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 300, b"SSH-1.0-old\r\n"])
def test_ssh_login_reports_non_ssh_server_in_one_line(laptop: Laptop, node: LoginNode, greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(greeting)

        threading.Thread(target=answer, daemon=True).start()
        laptop.write_config(node.config(Port=str(server.getsockname()[1])))
        done = laptop.run("list")
    assert done.returncode == 75 and "no SSH connection to" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_cli_rejects_invalid_host_name(laptop: Laptop) -> None:
    done = laptop.run("--host=-oProxyCommand=touch x", "list")
    assert done.returncode == 2 and "is not a host" in done.stderr


NO_AGENT = 2
"""The exit status of ssh-add if no agent listens; 1 if the agent has no keys."""


def test_ssh_login_uses_keys_of_the_agent(laptop: Laptop, node: LoginNode, tmp_path: Path) -> None:
    agent = preloaded.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL)
    try:
        environ = {**os.environ, "SSH_AUTH_SOCK": str(tmp_path / "agent")}
        while preloaded.run(["ssh-add", "-l"], env=environ, capture_output=True).returncode == NO_AGENT:
            assert agent.poll() is None
            time.sleep(0.05)
        preloaded.run(["ssh-add", "-q", str(node.server.key)], env=environ, check=True)
        laptop.write_config(node.config(IdentityFile=str(tmp_path / "none")))
        assert laptop.run("list").returncode == 77
        laptop.environ["SSH_AUTH_SOCK"] = environ["SSH_AUTH_SOCK"]
        assert laptop.run("list").returncode == 0
        preloaded.run(["ssh-add", "-q", "-D"], env=environ, check=True)
        for key in (node.server.other_key, node.server.key):
            preloaded.run(["ssh-add", "-q", str(key)], env=environ, check=True)
        assert laptop.run("list").returncode == 0, "the second of two keys of one kind"
        public = tmp_path / "mine.pub"
        public.write_text(Path(f"{node.server.key}.pub").read_text())
        for name in (public, tmp_path / "mine"):
            laptop.write_config(node.config(IdentityFile=str(name), IdentitiesOnly="yes"))
            assert laptop.run("list").returncode == 0, "the public half is here, and the other in the agent"
    finally:
        agent.terminate()
        agent.wait()


def test_ssh_login_asks_for_passphrase_only_on_a_terminal(laptop: Laptop, node: LoginNode, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.write_bytes(node.server.key.read_bytes())
    locked.chmod(0o600)
    preloaded.run(["ssh-keygen", "-q", "-p", "-N", "open sesame", "-f", str(locked)], check=True, capture_output=True)
    laptop.write_config(node.config(IdentityFile=str(locked)))
    alone = laptop.run("list")
    assert alone.returncode == 77 and "no terminal" in alone.stderr
    prompt = "Enter passphrase for key" if uses_ssh(laptop) else "Passphrase of"
    code, shown = answer_prompts(laptop, ["list"], [(prompt, "wrong"), (prompt, "open sesame")])
    assert code == 0 and "NAME" in shown and "open sesame" not in shown
    laptop.write_config(node.config(IdentityFile=str(locked), BatchMode="yes"))
    code, shown = answer_prompts(laptop, ["list"], [])
    assert code == 77 and "BatchMode" in shown


def test_ssh_login_follows_proxy_jumps_and_checks_each_host_key(
    laptop: Laptop, node: LoginNode, tmp_path: Path
) -> None:
    gates = [LoginNode(tmp_path / name, name) for name in ("gate", "inner")]
    try:
        inner = gates[1].config(ProxyJump="gate")
        laptop.write_config(node.config(ProxyJump="inner"), inner, gates[0].config())
        assert laptop.run("list").returncode == 0
        laptop.write_config(node.config(ProxyJump="gate,inner"), gates[1].config(), gates[0].config())
        assert laptop.run("list").returncode == 0
        for config in (node.config(ProxyJump="gate", Port="1"), node.config(ProxyJump="gate,inner")):
            laptop.write_config(config, gates[1].config(Port="1"), gates[0].config())
            done = laptop.run("list")
            assert done.returncode == 75 and "gate does not reach 127.0.0.1" in done.stderr, done.stderr
            assert len(done.stderr.splitlines()) == 1, done.stderr
        known = tmp_path / "none"
        laptop.write_config(node.config(ProxyJump="inner"), inner, gates[0].config(UserKnownHostsFile=str(known)))
        done = laptop.run("list")
        assert done.returncode == 77 and "@gate" in done.stderr and "is not known" in done.stderr
        laptop.write_config(node.config(ProxyJump="inner", UserKnownHostsFile=str(known)), inner, gates[0].config())
        done = laptop.run("list")
        assert done.returncode == 77 and "ssh-keyscan" not in done.stderr, "it does not reach the host"
        assert ("accept-new" if uses_ssh(laptop) else f">> {known}") in done.stderr
    finally:
        for gate in gates:
            gate.stop()


def test_ssh_login_rejects_circular_proxy_jump(laptop: Laptop, node: LoginNode) -> None:
    second = node.config(ProxyJump="login").replace("login\n", "second\n", 1)
    laptop.write_config(node.config(ProxyJump="second"), second)
    done = laptop.run("list")
    assert done.returncode == 78 and "in a circle" in done.stderr


def test_ssh_login_connects_through_proxy_command(laptop: Laptop, node: LoginNode) -> None:
    (laptop.directory / "carry.py").write_text(CARRIER)
    laptop.write_config(node.config(ProxyCommand=f"{sys.executable} {laptop.directory}/carry.py %h %p"))
    assert laptop.run("list").returncode == 0


def test_ssh_login_asks_for_second_factor_only_on_a_terminal(laptop: Laptop, node: LoginNode, tmp_path: Path) -> None:
    with SecondFactorServer(tmp_path / "server", node.server.key, code="424242") as server:
        laptop.write_config(server.config("login"))
        code, shown = answer_prompts(
            laptop, ["list"], [("Verification code:", "111111"), ("Verification code:", "424242")]
        )
        assert server.passed == ["publickey", "keyboard-interactive"], shown
        assert "Your token" in shown and "424242" not in shown and "\x1b" not in shown
        assert code == 75  # nothing is behind the door
        assert ("ran no command" if uses_ssh(laptop) else "opens no further session") in shown
        done = laptop.run("list")
        assert done.returncode == 77 and "keyboard-interactive" in done.stderr and "no terminal" in done.stderr


def test_ssh_login_restores_terminal_after_ctrl_c(laptop: Laptop, node: LoginNode, tmp_path: Path) -> None:
    with SecondFactorServer(tmp_path / "server", node.server.key, code="1") as server:
        laptop.write_config(server.config("login"))
        code, shown = answer_prompts(laptop, ["list"], [("Verification code:", None)])
        assert code == 130 and "interrupted" in shown and shown.endswith("echo is on")


def test_cli_prints_install_command_when_paramiko_is_missing(laptop: Laptop, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "paramiko.py").write_text("raise ImportError('No module named paramiko')")
    laptop.environ["PYTHONPATH"] = str(tmp_path / "none")
    if uses_ssh(laptop):
        assert laptop.run("list").returncode == 0, "ssh needs no library"
        laptop.environ["FFDL_SSH"] = "paramiko"
    argv, place = laptop.argv("ffdl", ["list"]), laptop.directory
    done = subprocess.run(argv, env=laptop.environ, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 69 and "pip install 'ffdl-batch[ssh]'" in done.stderr


def test_ssh_shares_the_connection_that_ssh_itself_keeps(laptop: Laptop, node: LoginNode) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as short,
        BreakingWire(node.server.port, breaks=0, after_bytes=0) as wire,
    ):
        control = {"ControlMaster": "auto", "ControlPath": f"{short}/%C", "ControlPersist": "100"}
        alias = f"[127.0.0.1]:{node.server.port}"
        laptop.write_config(node.config(Port=str(wire.port), HostKeyAlias=alias, **control))
        assert [laptop.run("list").returncode for _ in range(3)] == [0, 0, 0]
        assert wire.connections == (1 if uses_ssh(laptop) else 3)
        subprocess.run(["ssh", "-F", laptop.config, "-O", "exit", "login"], check=uses_ssh(laptop), capture_output=True)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("echo 'This account is closed.'; exit 3", "ran no command: This account is closed."),
        ("head -c 600000 /dev/zero", "prints too much at login"),
    ],
)
def test_ssh_reports_login_shell_that_runs_no_command(
    laptop: Laptop, node: LoginNode, profile: str, message: str
) -> None:
    node.write_profile(profile)
    try:
        done = laptop.run("list")
    finally:
        node.write_profile("")
    assert done.returncode == 75 and message in done.stderr, done.stderr


def test_ssh_uses_tmp_if_runtime_directory_is_missing(laptop: Laptop, tmp_path: Path) -> None:
    laptop.environ["XDG_RUNTIME_DIR"] = str(tmp_path / "none")
    assert laptop.run("list").returncode == 0


def test_ssh_leaves_no_connection_and_no_file(laptop: Laptop, node: LoginNode, tmp_path: Path) -> None:
    laptop.environ["XDG_RUNTIME_DIR"] = str(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert laptop.run("list").returncode == 0
    assert sorted(tmp_path.iterdir()) == before
    until(lambda: f"{tmp_path}/ffdl-ssh" not in "".join(_command_lines()), "the connection to end")


def _command_lines() -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            yield (entry / "cmdline").read_text(errors="replace") if entry.name.isdecimal() else ""


def test_ssh_login_reads_config_file_without_ssh_program_and_rejects_include(laptop: Laptop, tmp_path: Path) -> None:
    laptop.environ["FFDL_SSH"] = str(tmp_path / "none")
    assert laptop.run("list").returncode == 0, "paramiko is used"
    laptop.config.write_text(f"Include {tmp_path}/more\n" + laptop.config.read_text())
    done = laptop.run("list")
    assert done.returncode == 78 and "Include" in done.stderr
