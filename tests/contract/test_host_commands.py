"""Commands from a laptop over a real sshd: what they do to jobs of the node, and what is left when the wire breaks."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch import Client, __version__
from ffdl_batch.client.connection.daemon_location import HostPlace
from ffdl_batch.client.connection.daemon_start import Dialling
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.client.stores.user_secrets import RemoteUserSecrets
from ffdl_batch.config.daemon_location import Machine, this_machine
from ffdl_batch.ssh.connection import Connector
from tests import preloaded
from tests.contract.daemon_rig import until
from tests.contract.terminals import answer_prompts
from tests.contract.test_port_forward import ask, forwarded
from tests.fakes.ssh_server import BreakingWire
from tests.login_node import LIMIT_S, Laptop, LoginNode

TRAIN = """\
import os, pathlib, sys, time

print("from", os.environ["FROM_HERE"], flush=True)
pathlib.Path(os.environ["RESULT_DIR"], "weights.bin").write_bytes(os.urandom(1 << 20))
finish = pathlib.Path(sys.argv[1])
number = 0
while not finish.exists():
    number += 1
    print("line", number, "x" * int(sys.argv[2]), flush=True)
    time.sleep(float(sys.argv[3]))
print("goodbye", flush=True)
"""
MANIFEST = """\
name: far
framework: {{name: custom, version: python-numpy, command: python3 train.py '{finish}' {width} {pause_s}}}
cpus: 1
memory: 100MB
batch:
  network: host
  secrets: {{FROM_HERE: "${{env:OWN_WORD}}"}}
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginNode]:
    found = LoginNode(tmp_path_factory.mktemp("node"), profile={"FFDL_BACKEND": "local", "FFDL_IDLE_EXIT_S": "300"})
    config = found.home / ".config" / "ffdl" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('host = "nowhere.invalid"\n[backend.local]\nmax_jobs = 4\n')  # the relay stays where it is
    try:
        yield found
    finally:
        found.stop()


def make_laptop(directory: Path, node: LoginNode, width: int = 10, pause_s: float = 0.2) -> Laptop:
    """With a manifest and a model that the node does not see. The job prints lines of that width until `finish`."""
    made = Laptop(directory / "laptop", node.config())
    made.environ["OWN_WORD"] = "the laptop"
    (made.directory / "model").mkdir()
    (made.directory / "model" / "train.py").write_text(TRAIN)
    (made.directory / "manifest.yml").write_text(
        MANIFEST.format(finish=directory / "finish", width=width, pause_s=pause_s)
    )
    return made


@pytest.fixture
def laptop(tmp_path: Path, node: LoginNode) -> Laptop:
    return make_laptop(tmp_path, node)


@pytest.fixture(params=["ssh", "paramiko"])
def transport(request: pytest.FixtureRequest, laptop: Laptop) -> None:
    laptop.environ["FFDL_SSH"] = request.param


def finish(laptop: Laptop) -> None:
    (laptop.directory.parent / "finish").touch()


def dialled(laptop: Laptop) -> Client:
    """A client in this process, with one connection to the node."""
    return Client(dialling=Dialling(environ=laptop.environ | {"HOME": os.environ["HOME"]}, host="login"))


@contextmanager
def running_job(laptop: Laptop) -> Iterator[str]:
    """One that has begun; it ends with the block."""
    done = laptop.run("--parsable", "manifest.yml", "model", program="ffdl-submit")
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    with dialled(laptop) as client:
        try:
            until(lambda: "from the laptop" in [line.line for line in client.logs(job_id)], "the first line")
            yield job_id
        finally:
            finish(laptop)
            client.wait(job_id, 100)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, node: LoginNode) -> Laptop:
    """The laptop of what tests share."""
    return make_laptop(tmp_path_factory.mktemp("home"), node)


@pytest.fixture(scope="module")
def job(home: Laptop) -> Iterator[str]:
    """One that runs while the tests of this file do."""
    with running_job(home) as job_id:
        yield job_id


def show(laptop: Laptop, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(laptop.run("show", "--json", job_id).stdout)["job"]
    return found


def test_remote_download_fetches_results_model_and_logs_of_submitted_job(laptop: Laptop, node: LoginNode) -> None:
    with running_job(laptop) as job:
        finish(laptop)
        assert laptop.run("wait", "--timeout", "100", job).returncode == 0
    assert "goodbye" in laptop.run("logs", "--tail", "1", job).stdout
    done = laptop.run("download", job, "--results", "--model", "--logs", "--out", "here")
    assert done.returncode == 0, done.stderr
    left = show(laptop, job)
    (stored,) = Path(left["results"]).rglob("weights.bin")
    assert stored.is_relative_to(node.state)
    (brought,) = (laptop.directory / "here" / "results").rglob("weights.bin")
    assert brought.read_bytes() == stored.read_bytes()
    assert (laptop.directory / "here" / "model" / "model.zip").stat().st_size > 100
    assert any("goodbye" in path.read_text() for path in (laptop.directory / "here" / "logs").rglob("*.txt"))
    assert laptop.run("events", job).stdout.count("COMPLETED") == 1
    assert not (laptop.directory / "state").exists()


@pytest.mark.usefixtures("transport")
def test_remote_exec_passes_streams_and_exit_status(laptop: Laptop, job: str) -> None:
    done = laptop.run("exec", job, "--", "sh", "-c", "cat; echo $FROM_HERE; echo bad >&2; exit 9", text="typed\n")
    assert (done.returncode, done.stdout, done.stderr) == (9, "typed\nthe laptop\n", "bad\n")
    done = laptop.run("exec", job, "--", "sh", "-c", "exit 127")
    assert (done.returncode, done.stderr) == (127, ""), "it is the command that was not found, not ffdl"
    done = laptop.run("exec", job, "--", "sh", "-c", "exit 255")
    assert (done.returncode, done.stderr) == (255, ""), "the connection was not lost"
    large = os.urandom(3 << 20).hex()
    assert laptop.run("exec", job, "--", "cat", text=large).stdout == large
    assert "train.py" in laptop.run("top", "--once", "--json", job).stdout


@pytest.mark.usefixtures("transport")
def test_remote_shell_attaches_local_terminal_to_learner(laptop: Laptop, job: str) -> None:
    code, shown = answer_prompts(laptop, ["shell", job], [("/model", "echo $((6*7)) $FROM_HERE; exit 5")], hides=False)
    assert code == 5 and "42 the laptop" in shown, shown
    assert shown.endswith("echo is on")


def test_remote_run_sends_local_files_and_ends_its_job(laptop: Laptop) -> None:
    done = laptop.run("run", "--model=model", "--", "bash", "-c", "ls; cat; echo $TRAINING_ID >&2; exit 7", text="in\n")
    assert (done.returncode, done.stdout) == (7, "train.py\nin\n"), done.stderr
    until(lambda: show(laptop, done.stderr.strip())["state"] == "FAILED", "the job to end")


def test_remote_run_leaves_no_job_when_client_is_killed(laptop: Laptop) -> None:
    with laptop.start("run", "--model=model", "--", "bash", "-c", "echo $TRAINING_ID; sleep 600") as made:
        assert made.stdout is not None
        job_id = made.stdout.readline().strip()
        made.kill()
        until(lambda: show(laptop, job_id)["state"] in ("CANCELLED", "FAILED"), "the job to end")


def test_port_forward_connects_laptop_to_learner_on_node(laptop: Laptop, job: str) -> None:
    serve = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
    serve += "s.accept()[0].sendall(b'from the learner')"
    with laptop.start("exec", job, "--", "python3", "-c", serve) as server:
        assert server.stdout is not None
        words = ("port-forward", job, f"0:{int(server.stdout.readline())}")
        with forwarded(laptop.argv("ffdl", words), laptop.environ) as local:
            assert ask(local, b"") == b"from the learner"


@pytest.mark.usefixtures("transport")
def test_remote_exec_forwards_ctrl_c(laptop: Laptop, job: str) -> None:
    words = ("exec", job, "--", "sh", "-c", "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.05; done")
    with laptop.start(*words) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out) == (3, "caught\n"), errors


@pytest.mark.usefixtures("transport")
def test_remote_exec_ends_on_second_ctrl_c(laptop: Laptop, job: str) -> None:
    with laptop.start("exec", job, "--", "sh", "-c", "trap '' INT; echo ready; sleep 5; echo late") as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)  # two at once would be one
        out, errors = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out) == (130, ""), errors


def test_remote_logs_detach_on_ctrl_c_and_job_keeps_running(laptop: Laptop, job: str) -> None:
    with laptop.start("logs", "-f", job) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130 and f"detached; {job} continues" in errors and "Traceback" not in errors
        assert show(laptop, job)["state"] == "PROCESSING"


@pytest.mark.parametrize("program", ["ssh", "paramiko"])
def test_remote_logs_continue_without_loss_after_broken_connection(
    tmp_path: Path, node: LoginNode, program: str
) -> None:
    laptop = make_laptop(tmp_path, node, width=2000, pause_s=0.02)
    laptop.environ["FFDL_SSH"] = program
    with running_job(laptop) as job, BreakingWire(node.server.port, breaks=2, after_bytes=60_000) as wire:
        laptop.write_config(wired(node, wire))
        with laptop.start("logs", "-f", job) as process:
            lines: list[str] = []
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if wire.connections > 2:
                    finish(laptop)
            errors = process.communicate(timeout=LIMIT_S)[1]
            assert process.returncode == 0, errors
            numbers = [int(line.split("line ")[1].split()[0]) for line in lines if "line " in line]
            assert numbers == list(range(1, len(numbers) + 1)), "none twice, none left out"
            assert wire.connections > 2 and "goodbye" in lines[-1]


def wired(node: LoginNode, wire: BreakingWire, **options: str) -> str:
    """The node's lines of a laptop's ssh_config, by that wire."""
    return node.config(Port=str(wire.port), HostKeyAlias=f"[127.0.0.1]:{node.server.port}", **options)


@pytest.mark.parametrize(
    "after_bytes",
    [pytest.param(6_000, marks=pytest.mark.full), 9_000, pytest.param(14_000, marks=pytest.mark.full), 24_000],
)
def test_remote_submit_creates_at_most_one_job_when_connection_breaks(
    home: Laptop, laptop: Laptop, node: LoginNode, after_bytes: int
) -> None:
    with dialled(home) as client, BreakingWire(node.server.port, breaks=1, after_bytes=after_bytes) as wire:
        before = {one.id for one in client.list()}
        laptop.write_config(wired(node, wire))
        (laptop.directory / "model" / "noise").write_bytes(os.urandom(20_000))
        done = laptop.run("--parsable", "manifest.yml", "model", program="ffdl-submit")
        new = {one.id for one in client.list()} - before
        finish(laptop)
        if done.returncode == 0:
            assert new == {done.stdout.strip()}
            assert wire.connections > 1, "the connection broke"
        else:
            assert done.returncode == 75 and not new, (done.stderr, new)


def test_remote_client_restarts_killed_daemon(laptop: Laptop, node: LoginNode, job: str) -> None:
    with dialled(laptop) as client:
        pid = client.health().pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: _is_gone(pid), "its end")
        assert client.health().pid != pid
        assert client.get(job).state == "PROCESSING"


def _is_gone(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.full
def test_remote_client_uses_one_connection_for_many_channels(laptop: Laptop, node: LoginNode, job: str) -> None:
    with BreakingWire(node.server.port, breaks=0, after_bytes=0) as wire:
        laptop.write_config(wired(node, wire))
        program = (
            "from ffdl_batch import Client\nimport itertools\nclient = Client()\n"
            f"lines = [client.logs({job!r}, follow=True) for _ in range(3)]\n"
            "print([len(list(itertools.islice(one, 3))) for one in lines], client.get(%r).state)" % job
        )
        argv, env = [sys.executable, "-c", program], laptop.environ
        done = preloaded.run(argv, check=False, env=env, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.stdout == "[3, 3, 3] PROCESSING\n", done.stderr
        assert wire.connections == 1


def login_node(laptop: Laptop, node: LoginNode, **options: str) -> Dialling:
    """From another login node: the same state directory, whose lock names this machine."""
    machine = this_machine()
    laptop.write_config(node.config(**options).replace("Host login", f"Host {machine.host}", 1))
    environ = laptop.environ | {"FFDL_STATE_DIR": str(node.state)}
    del environ["FFDL_HOST"]
    return Dialling(environ=environ, machine=lambda: Machine("login9", "its boot"), report=print)


def test_client_reaches_daemon_on_other_login_node_through_ssh(laptop: Laptop, node: LoginNode, job: str) -> None:
    with Client(dialling=login_node(laptop, node)) as client, dialled(laptop_again(laptop, node)) as direct:
        assert client.health().pid == direct.health().pid
        assert client.get(job).state == "PROCESSING"


def laptop_again(laptop: Laptop, node: LoginNode) -> Laptop:
    return Laptop(laptop.directory / "again", node.config())


def test_client_reports_unreachable_login_node_with_remedy(
    laptop: Laptop, node: LoginNode, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffdl_batch.client.connection.host_relay._CONNECTORS", {})
    with pytest.raises(DaemonUnreachable) as caught, Client(dialling=login_node(laptop, node, Port="1")) as client:
        client.health()
    assert caught.value.problem.exit_code == 75
    for part in (f"runs on {this_machine().host} (process", "Connection refused", "run this command on", "force-take"):
        assert part in str(caught.value)
    monkeypatch.setattr("ffdl_batch.client.connection.host_relay._CONNECTORS", {})
    with pytest.raises(DaemonUnreachable, match="refused the login"):
        dialling = login_node(laptop, node, IdentityFile=str(node.server.other_key), IdentityAgent="none")
        Client(dialling=dialling).health()


def test_remote_submit_rejects_relative_output_path(laptop: Laptop) -> None:
    done = laptop.run("-o", "out.%j", "manifest.yml", "model", program="ffdl-submit")
    assert done.returncode == 2 and "use an absolute path" in done.stderr


def test_cli_runs_on_local_machine_when_host_option_is_empty(laptop: Laptop) -> None:
    done = laptop.run("--host=", "daemon", "status")
    assert (done.returncode, done.stdout) == (1, "no daemon runs; the next command that needs one starts it\n")
    done = laptop.run("--host", "", "config", "--json")
    assert json.loads(done.stdout)["settings"]["state_dir"]["value"] == str(laptop.directory / "state")


def test_cli_reads_host_from_configuration_without_environment_variable(laptop: Laptop, node: LoginNode) -> None:
    del laptop.environ["FFDL_HOST"]
    (laptop.directory / ".config" / "ffdl").mkdir(parents=True)
    config = laptop.directory / ".config" / "ffdl" / "config.toml"
    config.write_text(f'host = "login"\nhost_program = "{node.bin}/ffdl"\n')
    assert laptop.run("daemon", "status").stdout.count(str(node.state)) == 2
    assert laptop.run("--host", "other.invalid", "list").returncode == 75


def test_remote_secret_and_data_commands_use_secrets_of_the_host(
    laptop: Laptop, node: LoginNode, tmp_path: Path
) -> None:
    assert laptop.run("secret", "set", "store-key", text="planted\n").returncode == 0
    assert (node.state / "secrets" / "store-key").read_text() == "planted"
    place = HostPlace("login")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "environ", laptop.environ)
        keys = RemoteUserSecrets(place, Connector("login", laptop.environ))
        assert keys.own("store-key") == b"planted"
        with pytest.raises(FileNotFoundError):
            keys.file(tmp_path / "none")
    done = laptop.run("data", "get", "https://127.0.0.1:1/x", "--secret", "token=store-key")
    assert done.returncode == 75, done.stderr
    done = laptop.run("data", "get", "https://127.0.0.1:1/x", "--secret", "token=none")
    assert done.returncode == 77 and "there is no secret none" in done.stderr
    assert laptop.run("secret", "rm", "store-key").returncode == 0


class Pretend:
    """Another ffdl on the node for as long as the block lasts."""

    def __init__(self, node: LoginNode, text: str) -> None:
        self._path, self._text = node.bin / "ffdl", text

    def __enter__(self) -> None:
        self._before = self._path.read_text()
        self._path.write_text(f"#!/bin/sh\n{self._text}\n")

    def __exit__(self, *_: object) -> None:
        self._path.write_text(self._before)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("exec /nonexistent/ffdl", 69, "has no ffdl in the PATH of a login shell"),
        ('echo "Error: No such option: --host" >&2; exit 2', 69, f"install {__version__} or later there"),
        ('echo "ffdl-relay 2 {}"', 69, "cannot read the greeting"),
        ("echo Welcome", 69, "cannot read the greeting"),
        ('echo "ffdl: the state directory is closed to you" >&2; exit 77', 77, "login: the state directory is closed"),
        ('echo "ffdl: no space is left" >&2; exit 75', 75, "login: no space is left"),
        ("exit 0", 75, "login: exit status 0"),
        ("kill -9 $$", 75, "login: exit status"),
    ],
)
def test_cli_reports_why_remote_ffdl_cannot_relay(
    laptop: Laptop, node: LoginNode, text: str, code: int, said: str
) -> None:
    with Pretend(node, text):
        done = laptop.run("list")
    assert done.returncode == code and said in done.stderr, done.stderr


def test_cli_suggests_host_program_setting_when_remote_ffdl_is_missing(laptop: Laptop) -> None:
    laptop.environ["FFDL_HOST_PROGRAM"] = "ffdl-of-another-site"
    for words in (["list"], ["daemon", "status"]):
        done = laptop.run(*words)
        assert done.returncode == 69 and "FFDL_HOST_PROGRAM" in done.stderr


@pytest.mark.full
def test_cli_warns_and_continues_when_remote_release_differs(laptop: Laptop, node: LoginNode) -> None:
    release = f's/"{__version__}"/"0.0.9"/'
    relay = f"{sys.executable} -c 'from ffdl_batch.entry import ffdl; ffdl()' \"$@\" | sed -u '{release}'"
    with Pretend(node, relay):
        done = laptop.run("list")
    assert done.returncode == 0 and "is release 0.0.9" in done.stderr


def test_cli_ignores_login_shell_output_of_the_host(laptop: Laptop, node: LoginNode, job: str) -> None:
    node.write_profile("echo; echo 'Welcome to the cluster'; printf 'no end of line'; echo quota >&2")
    try:
        done = laptop.run("show", "--json", job)
        assert (done.returncode, done.stderr) == (0, "") and json.loads(done.stdout)["job"]["id"] == job
    finally:
        node.write_profile("")


@pytest.mark.full
def test_remote_logs_exit_75_when_connection_becomes_silent(laptop: Laptop, node: LoginNode, job: str) -> None:
    """Nothing is closed: bytes just stop, as in a tunnel."""
    with _Tap(node.server.port) as wire:
        laptop.write_config(wired(node, wire, ServerAliveInterval="1", ServerAliveCountMax="2"))
        with laptop.start("logs", "-f", job) as process:
            assert process.stdout is not None and process.stdout.readline()
            wire.is_shut.set()
            drain = threading.Thread(target=process.stdout.read)
            drain.start()
            assert process.wait(LIMIT_S * 2) == 75
            drain.join()
            assert process.stderr is not None
            assert "login" in process.stderr.read()


class _Tap(BreakingWire):
    """A wire that, once shut, carries nothing any more, and refuses newcomers."""

    def __init__(self, port: int) -> None:
        self.is_shut = threading.Event()
        super().__init__(port, 0, 0)

    def _join(self, client: Any, server: Any, limit: int) -> None:
        if self.is_shut.is_set():
            client.close()
            server.close()
            return
        with client, server:
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()
            while not self.is_shut.wait(0.1):
                pass
            self._until_over.wait(LIMIT_S * 3)

    _until_over = threading.Event()

    def _carry(self, one: Any, other: Any) -> None:
        try:
            while data := one.recv(65536):
                if self.is_shut.is_set():
                    return
                other.sendall(data)
        except OSError:
            return

    def stop(self) -> None:
        self._until_over.set()
        super().stop()
