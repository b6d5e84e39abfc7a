"""Finding the daemon, starting one, and reaching one on another node; with real sockets and real processes."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ffdl_batch import __version__
from ffdl_batch.client import Client, DaemonUnreachable
from ffdl_batch.client.connection.daemon_process import find_holder
from ffdl_batch.client.connection.daemon_start import Dialling, daemon_environment
from ffdl_batch.config.daemon_location import Machine, name_directory, socket_place, this_machine
from ffdl_batch.config.fingerprint import take_fingerprints
from ffdl_batch.config.load import load_settings
from ffdl_batch.host.core_dumps import core_limits, forbid_core_dumps
from ffdl_batch.host.users import Credentials
from tests.unit.client.fake_daemon import FakeDaemon

SERVER = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.unit.client.fake_daemon import FakeDaemon
print("cwd", os.getcwd(), "session", os.getsid(0) == os.getpid(), flush=True)
Path({pids!r}).open("a").write(f"{{os.getpid()}}\\n")
try:
    os.mkdir({claim!r})
except FileExistsError:
    sys.exit(75)
FakeDaemon(Path(os.environ["FFDL_SOCKET"])).start()
time.sleep(60)
"""


class Site:
    """A state directory, a socket's path, and daemons that tests start and that end with the test."""

    def __init__(self, root: Path) -> None:
        self.state_dir = root / "state"
        self.socket = root / "run" / "ffdl.sock"
        self.pids = root / "pids"
        script = SERVER.format(root=str(Path(__file__).parents[3]), pids=str(self.pids), claim=str(root / "claim"))
        self.dialling = Dialling(
            environ={"PATH": os.environ["PATH"], "FFDL_SOCKET": str(self.socket), "SECRET": "x"},
            state_dir=self.state_dir,
            daemon_argv=(sys.executable, "-c", script),
        )

    def write_lock(self, **changes: object) -> None:
        self.state_dir.mkdir(exist_ok=True)
        machine = this_machine()
        lock = {
            "host": machine.host,
            "pid": os.getpid(),
            "boot_id": machine.boot_id,
            "start_ticks": machine.start_ticks(os.getpid()),
            "socket": str(self.socket),
        }
        (self.state_dir / "daemon.lock").write_text(json.dumps(lock | changes))

    def daemons(self) -> Iterator[int]:
        """Those that were started, also one that came too late and has not yet written its pid."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"FFDL_SOCKET={self.socket}\0".encode() in (process / "environ").read_bytes():
                    yield int(process.name)

    def end(self) -> None:
        while found := list(self.daemons()):
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


@pytest.fixture
def site(short_dir: Path) -> Iterator[Site]:
    made = Site(short_dir)
    yield made
    made.end()


@contextmanager
def listening(path: Path) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(path).start()
    try:
        yield fake
    finally:
        fake.stop()


def health_version(dialling: Dialling) -> str:
    with Client(dialling=dialling) as client:
        return client.health().version


def test_client_starts_detached_daemon_if_none_runs(site: Site) -> None:
    assert health_version(site.dialling) == "9.9"
    assert (site.state_dir / "daemon.log").read_text() == "cwd / session True\n"
    modes = [path.stat().st_mode & 0o777 for path in (site.state_dir, site.state_dir / "daemon.log")]
    assert modes == [0o700, 0o600]


def test_racing_clients_share_one_started_daemon(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ffdl_batch.client.connection.daemon_start._GRACE_S", 60.0
    )  # the one that won may be slow to listen
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if health_version(site.dialling) == "9.9" else 1
            finally:
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0, 0, 0, 0]


def test_client_starts_no_daemon_if_start_is_disabled(site: Site) -> None:
    with pytest.raises(DaemonUnreachable, match="no daemon answers at"):
        health_version(replace(site.dialling, start=False))
    assert not site.state_dir.exists()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other daemon is waited for; one that is started may take its time to end."""
    monkeypatch.setattr("ffdl_batch.client.connection.daemon_start._GRACE_S", 0.1)


@pytest.mark.usefixtures("soon")
def test_client_reports_last_output_of_daemon_that_ends_at_once(site: Site) -> None:
    argv = (sys.executable, "-c", "import sys; sys.exit('the database is of a newer release')")
    with pytest.raises(
        DaemonUnreachable, match="exited with status 1; its last message: the database is of a newer"
    ) as raised:
        health_version(replace(site.dialling, daemon_argv=argv))
    assert raised.value.problem.cure.startswith("no daemon runs now; the next command starts one")


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("taken", [False, True], ids=["in the backlog", "accepted"])
def test_client_reports_last_output_of_daemon_that_ends_after_it_listened(site: Site, *, taken: bool) -> None:
    """Its socket is there before its code is loaded, for which there may be too little memory."""
    ends = (
        "import os, pathlib, select, socket, sys\n"
        "path = pathlib.Path(os.environ['FFDL_SOCKET'])\n"
        "path.parent.mkdir(exist_ok=True)\n"
        "path.unlink(missing_ok=True)\n"
        "bound = socket.socket(socket.AF_UNIX)\n"
        "bound.bind(str(path))\n"
        "bound.listen()\n"
        "select.select([bound], [], [])\n"
        f"taken = bound.accept() if {taken} else None\n"
        "print('ffdl-submitd: no memory', flush=True)\n"
        "os._exit(75)\n"
    )
    with pytest.raises(DaemonUnreachable, match=r"exited with status 75; its last message: .*no memory"):
        health_version(replace(site.dialling, daemon_argv=(sys.executable, "-c", ends)))


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(("ended", "code"), [(69, 69), (77, 77), (78, 78), (1, 75), (75, 75)])
def test_client_uses_exit_code_of_failed_daemon_if_retry_cannot_help(site: Site, ended: int, code: int) -> None:
    """Its last words are its own, and not those of the daemon before."""
    site.state_dir.mkdir(parents=True, exist_ok=True)
    (site.state_dir / "daemon.log").write_text("all was well with the one before\n")
    argv = (sys.executable, "-c", f"raise SystemExit({ended})")
    with pytest.raises(DaemonUnreachable, match=rf"exited with status {ended}; it printed nothing") as raised:
        health_version(replace(site.dialling, daemon_argv=argv))
    assert raised.value.problem.exit_code == code


@pytest.mark.usefixtures("soon")
def test_client_reports_full_disk_if_daemon_had_no_room_for_last_words(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.state_dir.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr("ffdl_batch.client.connection.daemon_start.os.statvfs", lambda _: SimpleNamespace(f_bavail=0))
    with pytest.raises(DaemonUnreachable, match=f"no space is left in {site.state_dir}: free some, or raise the quota"):
        health_version(replace(site.dialling, daemon_argv=(sys.executable, "-c", "raise SystemExit(75)")))


def test_client_waits_for_live_lock_holder_without_starting_daemon(site: Site) -> None:
    site.write_lock()
    with pytest.raises(DaemonUnreachable, match=r"holds .*daemon.lock but does not answer"):
        health_version(replace(site.dialling, patience_s=0.1))
    assert not site.pids.exists()


def test_client_uses_socket_named_in_lock(site: Site, short_dir: Path) -> None:
    with listening(short_dir / "other" / "ffdl.sock") as fake:
        site.write_lock(socket=str(fake.path))
        assert health_version(site.dialling) == "9.9"
        assert not site.pids.exists()


def test_client_rejects_copied_state_directory(site: Site, short_dir: Path) -> None:
    """Neither the original's, nor one that would run the same jobs once more."""
    with listening(short_dir / "other" / "ffdl.sock") as fake:
        original = short_dir / "original"
        original.mkdir()
        site.write_lock(socket=str(fake.path), directory=name_directory(original))
        with pytest.raises(DaemonUnreachable, match="is a copy of a state directory") as refused:
            health_version(site.dialling)
        assert refused.value.problem.exit_code == 78
        assert not site.pids.exists() and not fake.requests
        with pytest.raises(DaemonUnreachable, match=r"remove .*/daemon.lock") as refused:
            find_holder(site.state_dir)
        assert refused.value.problem.exit_code == 78


def test_client_replaces_lock_holder_proved_dead(site: Site) -> None:
    site.write_lock(boot_id="another boot")
    assert health_version(site.dialling) == "9.9"


def test_client_replaces_lock_holder_that_ends_during_wait(site: Site) -> None:
    """The daemon was stopping, because no job was live, when the client came."""
    site.write_lock()
    here = this_machine()
    looks = iter([here, here])
    after = replace(here, boot_id="the process is gone")
    assert health_version(replace(site.dialling, machine=lambda: next(looks, after))) == "9.9"


def test_client_replaces_zombie_lock_holder(site: Site) -> None:
    ready, gone = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(ready, 1)
        os._exit(0)
    try:
        site.write_lock(pid=pid, start_ticks=this_machine().start_ticks(pid))
        os.write(gone, b"x")
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it has ended and is not reaped
        assert health_version(site.dialling) == "9.9"
    finally:
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(gone)


def test_client_and_find_holder_report_invalid_lock_file(site: Site) -> None:
    site.state_dir.mkdir()
    (site.state_dir / "daemon.lock").write_text("{}")
    with pytest.raises(DaemonUnreachable, match=r"is not a daemon's lock file"):
        health_version(site.dialling)
    with pytest.raises(DaemonUnreachable, match="is not a daemon's lock file"):
        find_holder(site.state_dir)


def fake_ssh(directory: Path, body: str) -> str:
    path = directory / "ssh"
    path.write_text(f'#!/bin/sh\necho "$@" >> {directory}/ssh.log\n{body}\n')
    path.chmod(0o755)
    return str(path)


def elsewhere(site: Site, ssh: str) -> Dialling:
    site.write_lock(host="login2")
    return replace(site.dialling, environ={**site.dialling.environ, "FFDL_SSH": ssh})


def test_client_never_passes_option_like_host_to_ssh(site: Site, short_dir: Path) -> None:
    ssh = fake_ssh(short_dir, "exit 1")
    dialling = elsewhere(site, ssh)
    site.write_lock(host="-oProxyCommand=id")
    with pytest.raises(DaemonUnreachable, match="names a host"):
        health_version(dialling)
    assert not (short_dir / "ssh.log").exists()


def test_client_sends_nothing_to_socket_of_other_user(
    site: Site, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = daemon.path.parent.parent / "runtime"
    (runtime / "ffdl").mkdir(parents=True, mode=0o700)
    environ = {"XDG_RUNTIME_DIR": str(runtime)}
    socket_place(environ | {"FFDL_STATE_DIR": str(site.state_dir)}).path.symlink_to(daemon.path)
    uid = os.getuid()
    monkeypatch.setattr(
        "ffdl_batch.client.connection.own_socket.read_credentials", lambda _: Credentials(1, uid + 1, 1)
    )
    dialling = replace(site.dialling, environ=environ)
    with pytest.raises(DaemonUnreachable, match=rf"belongs to user {uid + 1}, not to you; nothing was sent"):
        health_version(dialling)
    assert daemon.requests == []


def test_client_starts_no_daemon_for_site_socket(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.socket.parent.mkdir()
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(DaemonUnreachable, match="you may not start it") as refused:
        health_version(site.dialling)
    assert (refused.value.problem.exit_code, refused.value.problem.cure) == (75, "contact your administrators")


def test_client_does_not_replace_lock_holder_of_other_host(site: Site, short_dir: Path) -> None:
    dialling = elsewhere(site, fake_ssh(short_dir, "echo gone >&2; exit 255"))
    site.write_lock(pid=2**22 + 1)
    machine = Machine("login9", "boot of login9")
    with pytest.raises(DaemonUnreachable, match=r"cannot be reached from here over SSH: .*gone"):
        health_version(replace(dialling, machine=lambda: machine))
    with pytest.raises(DaemonUnreachable, match="not here"):
        health_version(replace(dialling, machine=lambda: machine, forwards=False))


def test_daemon_environment_keeps_only_needed_variables() -> None:
    kept = {
        "PATH": "/p", "HOME": "/h", "FFDL_CONFIG": "c", "SLURM_CLUSTERS": "c1", "XDG_RUNTIME_DIR": "r",
        "PGPASSFILE": "f",
        "KUBERNETES_SERVICE_HOST": "10.96.0.1", "HTTPS_PROXY": "http://proxy", "FFDL_LEASE_S": "9",
    }  # fmt: skip
    dropped = {"SLURM_JOB_ID": "7", "SBATCH_QOS": "q", "AWS_SECRET_ACCESS_KEY": "x", "PGPASSWORD": "p"}
    dropped |= {"KUBERNETES_PORT": "tcp://10.96.0.1:443"}
    dropped |= {"FFDL_BACKEND": "slurm", "FFDL_STRICT": "1", "FFDL_EXPORT": "ALL"}  # defaults of commands
    relative = {"KUBECONFIG": "/k/one:two", "SLURM_CONF": "slurm.conf"}
    assert daemon_environment({**kept, **dropped, **relative}, Path("/state")) == {
        **kept, "KUBECONFIG": f"/k/one:{Path.cwd() / 'two'}", "SLURM_CONF": str(Path.cwd() / "slurm.conf"),
        "FFDL_STATE_DIR": "/state",
    }  # fmt: skip
    bare = daemon_environment({}, Path("/state"))
    assert bare["HOME"].startswith("/") and bare["PATH"] == os.defpath


def warnings_of(site: Site, **environ: str) -> list[str]:
    """What a client hears that finds the daemon which :meth:`Site.write_lock` describes."""
    told: list[str] = []
    dialling = replace(site.dialling, environ={**site.dialling.environ, **environ}, report=told.append)
    health_version(dialling)
    return told


def test_client_warns_of_daemon_with_other_settings_or_release(site: Site) -> None:
    with listening(site.socket):
        started_with = {**site.dialling.environ, "FFDL_STATE_DIR": str(site.state_dir), "FFDL_LEASE_S": "7"}
        digests = take_fingerprints(load_settings(environ=started_with), started_with)
        site.write_lock(settings=digests, pid=os.getpid(), started_at=1_800_000_000.0)
        assert warnings_of(site, FFDL_LEASE_S="7", FFDL_BACKEND="slurm") == []
        (warning,) = warnings_of(site, FFDL_LEASE_S="7", FFDL_IMAGES_DIRS="/nope")
        assert warning.startswith(
            "the setting images_dirs (environment FFDL_IMAGES_DIRS) differs from that of the running daemon (process "
            f"{os.getpid()} on "
        )
        assert warning.endswith("; to apply the new one: ffdl daemon restart")
        file = site.state_dir / "config.toml"
        file.write_text('[backend.slurm]\npython = "/p"\n')
        (several,) = warnings_of(site, FFDL_CONFIG=str(file))
        assert several.startswith(
            f"the settings backends ({file}), lease_s (default) differ from those of the running daemon ("
        )
        assert several.endswith("; to apply the new ones: ffdl daemon restart")
        (table,) = warnings_of(site, FFDL_LEASE_S="7", FFDL_CONFIG=str(file))
        assert table.startswith(f"the setting backends ({file}) differs from that of the running daemon (")
        assert "lease_s (default) differs" in warnings_of(site)[0]
        site.write_lock()  # by a release that wrote no digests
        assert warnings_of(site, FFDL_IMAGES_DIRS="/nope") == []
        site.write_lock(settings=digests, version=__version__)
        assert warnings_of(site, FFDL_LEASE_S="7") == []
        site.write_lock(settings=digests, version="0.0.1", pid=os.getpid())
        (warning,) = warnings_of(site, FFDL_LEASE_S="7")
        assert warning.startswith(f"the running daemon has release 0.0.1, but this program has {__version__} (process ")
        site.write_lock(settings=digests, version="0.0.1", socket="/a/sites/ffdl.sock")
        assert warnings_of(site, FFDL_IMAGES_DIRS="/nope") == []


def test_client_rejects_invalid_configuration_while_daemon_runs(site: Site, tmp_path: Path) -> None:
    with listening(site.socket) as fake:
        (tmp_path / "bad.toml").write_text("leese_s = 1\n")
        with pytest.raises(DaemonUnreachable, match=r"bad\.toml: unknown key 'leese_s'; did you mean lease_s") as error:
            warnings_of(site, FFDL_CONFIG=str(tmp_path / "bad.toml"))
        assert error.value.problem.exit_code == 78
        assert fake.requests == []


@pytest.mark.usefixtures("soon")
def test_client_passes_directory_of_configuration_file_to_started_daemon(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ffdl.toml").write_text("default_cpus = 3\n")
    monkeypatch.chdir(tmp_path)
    argv = (sys.executable, "-c", "import sys; sys.exit(' '.join(sys.argv[1:]))")
    with pytest.raises(DaemonUnreachable, match=rf"its last message: --directory {tmp_path}"):
        health_version(replace(site.dialling, daemon_argv=argv))


def test_client_uses_own_socket_for_state_dir_named_in_file(site: Site, short_dir: Path) -> None:
    """Else the daemon of the default state directory would answer for it."""
    config = short_dir / "config.toml"
    config.write_text(f'state_dir = "{site.state_dir}"\n')
    environ = {"XDG_RUNTIME_DIR": str(short_dir), "FFDL_CONFIG": str(config), "HOME": str(short_dir)}
    with listening(short_dir / "ffdl" / "ffdl.sock"):
        dialling = replace(site.dialling, environ=environ, state_dir=None, start=False)
        with pytest.raises(DaemonUnreachable, match=r"no daemon answers at .*/ffdl-[0-9a-f]{12}\.sock"):
            health_version(dialling)


HARD = core_limits()[1]


@pytest.fixture
def soft() -> Iterator[int]:
    """A shell's limit in bytes that is nobody's default."""
    before = core_limits()
    resource.setrlimit(resource.RLIMIT_CORE, (4096, HARD))
    yield 4096
    resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.mark.skipif(0 <= HARD < 4096, reason="no core dumps are allowed here")
def test_started_daemon_has_core_dump_limit_of_shell(site: Site, soft: int) -> None:
    dialling = replace(site.dialling, dumps=core_limits())
    forbid_core_dumps()
    assert core_limits() == (1, HARD), "no core of a program's, either (core_pattern with |)"
    health_version(dialling)
    limits = Path("/proc", site.pids.read_text().split()[0], "limits").read_text()
    assert re.search(rf"Max core file size +{soft} ", limits)
