"""Ways to a daemon of a site: the spawner of this host, the hub, and a personal daemon that is still there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.client import Client, DaemonUnreachable, NotAllowed
from ffdl_batch.client.connection import own_socket, site_daemon, ways
from ffdl_batch.client.connection.daemon_location import HostPlace, logins_file
from ffdl_batch.client.connection.daemon_start import Dialling
from ffdl_batch.client.connection.hub import HubPlace, dial_hub, parse_hub
from ffdl_batch.client.connection.logins import Login, Logins, read_logins, write_logins
from ffdl_batch.client.connection.site_daemon import SitePlace
from ffdl_batch.config.daemon_location import this_machine
from ffdl_batch.host.users import Credentials
from tests.fakes.hub import ADDRESS, TOKEN, FakeHub
from tests.fakes.spawner import FakeSpawner
from tests.unit.client.fake_daemon import FakeDaemon, make_job

HUB = "https://ffdl.example.org"


class Site:
    """A user's home, and a host with a spawner whose daemon is a fake one."""

    def __init__(self, root: Path) -> None:
        self.root, self.reports = root, list[str]()
        self.environ = {
            "PATH": os.environ["PATH"], "HOME": str(root / "home"), "FFDL_SITE_RUN": str(root / "run"),
            "FFDL_HUB_SOCKET": str(root / "none"),
        }  # fmt: skip
        self.state_dir = root / "home/.local/state/ffdl"
        (root / "home").mkdir()
        self.fakes: list[FakeDaemon] = []
        self.spawner: FakeSpawner | None = None

    @property
    def dialling(self) -> Dialling:
        argv = (sys.executable, "-c", "import sys; sys.exit('ffdl-submitd: a personal daemon was started')")
        return Dialling(environ=self.environ, daemon_argv=argv, report=self.reports.append, patience_s=60.0)

    def open_spawner(self, *answers: str) -> FakeSpawner:
        own = self.root / "run/users" / str(os.getuid()) / "daemon.sock"
        self.spawner = FakeSpawner(self.root / "run", list(answers), lambda: self.start_daemon(own))
        return self.spawner

    def start_daemon(self, path: Path) -> FakeDaemon:
        self.fakes.append(FakeDaemon(path).start())
        return self.fakes[-1]

    def start_personal(self, live: int = 0, **changes: object) -> FakeDaemon:
        fake = self.start_daemon(self.root / "personal.sock")
        fake.jobs = {f"training-{number}": make_job() for number in range(live)}
        self.state_dir.mkdir(parents=True)
        machine = this_machine()
        place = {"host": machine.host, "boot_id": machine.boot_id, "start_ticks": machine.start_ticks(os.getpid())}
        lock = {**place, "pid": os.getpid(), "socket": str(fake.path), **changes}
        (self.state_dir / "daemon.lock").write_text(json.dumps(lock))
        return fake

    def configure(self, text: str) -> None:
        (self.root / "home/.config/ffdl").mkdir(parents=True, exist_ok=True)
        (self.root / "home/.config/ffdl/config.toml").write_text(text)

    def log_in(self, url: str = HUB, token: str = TOKEN, ca: str = "") -> Path:
        known = read_logins(self.environ).hubs
        return write_logins(self.environ, Logins(url, {**known, url: Login(token, ca, "ada")}))

    def close(self) -> None:
        for fake in self.fakes:
            fake.stop()
        if self.spawner is not None:
            self.spawner.close()


@pytest.fixture
def site(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    ways._count_live_jobs.cache_clear()
    made = Site(short_dir)
    state = short_dir / "site-state"
    state.mkdir()
    (state / "ffdl.sqlite3").touch()  # the site's daemon has run before
    monkeypatch.setattr("ffdl_batch.config.load.site_state_dir", lambda _uid: state)
    yield made
    made.close()


def test_spawner_is_asked_for_daemon_once_and_no_personal_daemon_starts(site: Site) -> None:
    spawner = site.open_spawner("ok")
    for _ in range(2):
        with Client(dialling=site.dialling) as client:
            assert client.health().version == "9.9"
    assert spawner.requests == [f"ensure {os.getuid()}\n"]
    assert (site.state_dir.exists(), site.reports) == (False, [])


def test_spawner_that_is_busy_or_closes_the_connection_is_asked_again(site: Site) -> None:
    spawner = site.open_spawner("later the host has no room", "", "ok /nonexistent/daemon.sock", "ok")
    with Client(dialling=site.dialling) as client:
        assert client.health().version == "9.9"
    assert len(spawner.requests) == 4


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ("refused PAM does not admit the account", 77, "starts no daemon for you: PAM does not admit the account"),
        ("later the host has no room", 75, "within 0.2 s: the host has no room"),
        ("", 75, "within 0.2 s: it closed the connection"),
    ],
)
def test_client_reports_refusal_and_business_of_spawner(site: Site, answer: str, code: int, message: str) -> None:
    site.open_spawner(answer)
    with pytest.raises(DaemonUnreachable, match=message) as caught:
        replace(site.dialling, patience_s=0.2).dial()
    assert caught.value.problem.exit_code == code
    assert caught.value.problem.cure


def test_spawner_without_answer_counts_as_busy(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (site.root / "run").mkdir(0o755)
    monkeypatch.setattr(site_daemon, "ANSWER_S", 1.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(site.root / "run/spawner.sock"))
        silent.listen()
        with pytest.raises(DaemonUnreachable, match="it has not answered for 1 s") as caught:
            replace(site.dialling, patience_s=0.1).dial()
    with pytest.raises(DaemonUnreachable, match="Connection refused"):
        replace(site.dialling, patience_s=0.1).dial()
    assert caught.value.problem.exit_code == 75


def test_daemon_of_another_user_at_site_socket_gets_no_request(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.open_spawner("ok")
    monkeypatch.setattr(own_socket, "read_credentials", lambda _: Credentials(1, os.getuid() + 1, 0))
    with pytest.raises(DaemonUnreachable, match="belongs to user") as caught:
        Client(dialling=site.dialling).health()
    assert caught.value.problem.exit_code == 77
    assert site.fakes[0].requests == []


@pytest.mark.parametrize("fault", ["writable", "owner", "file"])
def test_spawner_that_other_users_could_replace_is_ignored(site: Site, fault: str) -> None:
    run = site.open_spawner("ok").run_dir
    if fault == "writable":
        run.chmod(0o775)
    elif fault == "owner":
        os.chown(run / "spawner.sock", 1234, -1)
    else:
        (run / "spawner.sock").unlink()
        (run / "spawner.sock").touch()
    assert site_daemon.find_site(site.environ, site.reports.append) is None
    assert len(site.reports) == 1 and site.reports[0].startswith(f"ignored {run}/spawner.sock: ")
    assert site.dialling.way() is None


@pytest.mark.parametrize(("live", "is_personal"), [(2, True), (0, False)])
def test_personal_daemon_with_live_jobs_is_used_and_report_says_how_to_move(
    site: Site, live: int, is_personal: bool
) -> None:
    site.open_spawner("ok")
    personal = site.start_personal(live)
    with Client(dialling=site.dialling) as client:
        client.list()
    assert ("GET /api/v1/jobs" in personal.requests) is is_personal
    (line,) = site.reports
    assert f"FFDL_STATE_DIR={site.state_dir} ffdl list" in line
    assert ("has 2 live jobs" in line and "ffdl daemon stop" in line) is is_personal


def test_site_daemon_that_has_never_run_is_used_because_it_takes_over_personal_jobs(site: Site) -> None:
    site.open_spawner("ok")
    personal = site.start_personal(2)
    (site.root / "site-state/ffdl.sqlite3").unlink()
    with Client(dialling=site.dialling) as client:
        client.list()
    assert (personal.requests, site.reports) == ([], [])


def test_personal_daemon_of_another_host_is_named_and_site_daemon_is_used(site: Site) -> None:
    site.open_spawner("ok")
    site.start_personal(1, host="login9")
    with Client(dialling=site.dialling) as client:
        client.list()
    assert "may run on login9" in site.reports[0] and "rm " in site.reports[0]


def test_unusable_personal_state_directory_does_not_stop_commands_of_site(site: Site) -> None:
    site.open_spawner("ok")
    site.state_dir.mkdir(parents=True)
    site.state_dir.chmod(0o777)
    with Client(dialling=site.dialling) as client:
        client.list()
    assert site.reports[0].startswith("using the daemon of this site; it is unknown whether a personal one runs: ")


def test_nearest_named_way_wins(site: Site, tmp_path: Path) -> None:
    """From the last one to the first one: each new one is nearer than those before."""
    assert site.dialling.way() is None
    site.log_in(f"{HUB}:2")
    assert site.dialling.way() == HubPlace("ffdl.example.org", 2, TOKEN)
    site.configure(f'hub_url = "{HUB}"\n')
    assert site.dialling.way() == HubPlace("ffdl.example.org")
    site.open_spawner("ok")
    here = SitePlace(site.root / "run")
    assert site.dialling.way() == here
    site.configure(f'hub_url = "{HUB}"\nstate_dir = "{tmp_path}"\n')
    assert site.dialling.way() is None
    site.environ["FFDL_HUB"] = f"{HUB}:3"
    assert site.dialling.way() == HubPlace("ffdl.example.org", 3)
    site.environ["FFDL_SOCKET"] = str(tmp_path / "socket")
    assert site.dialling.way() is None
    site.environ["FFDL_HOST"] = "login1"
    assert site.dialling.way() == HostPlace("login1")
    assert replace(site.dialling, state_dir=tmp_path).way() is None
    assert replace(site.dialling, state_dir=tmp_path, host="login2").way() == HostPlace("login2")


def test_way_to_personal_daemon_imports_nothing_of_hubs(site: Site) -> None:
    code = (
        "import os, sys; from ffdl_batch.client.connection.daemon_start import Dialling; print(Dialling().way())\n"
        "print(*[name for name in sys.modules if name.endswith(('connection.hub', 'logins', 'munge', 'tomllib'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=site.environ, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n\n"


def test_empty_ffdl_hub_means_no_hub(site: Site) -> None:
    site.log_in()
    site.environ["FFDL_HUB"] = ""
    assert site.dialling.way() is None
    site.open_spawner("ok")
    assert site.dialling.way() == SitePlace(site.root / "run")


def test_hub_of_site_without_login_leaves_personal_daemon_with_live_jobs(site: Site) -> None:
    site.configure(f'hub_url = "{HUB}"\n')
    site.start_personal(1)
    assert site.dialling.way() is None
    site.log_in()
    assert site.dialling.way() == HubPlace("ffdl.example.org", token=TOKEN)


def test_submission_names_no_cluster_to_daemon_of_site_unless_shell_names_one(site: Site) -> None:
    assert site.dialling.cluster() == {"SLURM_CONF": "", "SLURM_CLUSTERS": ""}
    site.open_spawner("ok")
    assert site.dialling.cluster() is None
    site.environ["SLURM_CONF"] = "/etc/other.conf"
    assert site.dialling.cluster() == {"SLURM_CONF": "/etc/other.conf", "SLURM_CLUSTERS": ""}
    site.environ["FFDL_HUB"] = HUB
    assert site.dialling.cluster() is None


def test_stop_ends_process_that_listens_at_site_socket(site: Site) -> None:
    place = SitePlace(site.root / "run")
    assert site_daemon.stop_site_daemon(place) is None
    place.socket.parent.mkdir(parents=True)
    code = (
        "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\n"
        "print('listening', flush=True); time.sleep(600)"
    )
    argv = [sys.executable, "-c", code, str(place.socket)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"listening\n"
            assert site_daemon.stop_site_daemon(place) == process.pid
        finally:
            process.kill()
    assert process.returncode == -15


def test_logins_are_stored_for_their_owner_alone_and_read_back(site: Site) -> None:
    ca = "-----BEGIN CERTIFICATE-----\nQUJD'\"\n-----END CERTIFICATE-----\n"
    path = site.log_in(ca=ca)
    assert path == logins_file(site.environ)
    assert [entry.stat().st_mode & 0o777 for entry in (path, path.parent)] == [0o600, 0o700]
    assert read_logins(site.environ) == Logins(HUB, {HUB: Login(TOKEN, ca, "ada")})
    assert TOKEN not in repr(read_logins(site.environ).place(HUB))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("mode", "text", "code", "message"),
    [
        (0o640, None, 77, "contains tokens, and has mode 0640"),
        (0o600, "newest = 1\nhubs = 2\n", 78, "cannot be used"),
        (0o600, "hubs", 78, "cannot be used"),
        (0o600, "[hubs]\nx = {tokken = 'a'}\n", 78, "cannot be used"),
    ],
)
def test_file_of_tokens_that_others_can_read_or_that_is_damaged_is_refused(
    site: Site, mode: int, text: str | None, code: int, message: str
) -> None:
    path = site.log_in()
    path.write_text(path.read_text() if text is None else text)
    path.chmod(mode)
    with pytest.raises(DaemonUnreachable, match=message) as caught:
        site.dialling.way()
    assert caught.value.problem.exit_code == code
    assert TOKEN not in str(caught.value)


def test_no_token_is_stored_in_directory_that_others_can_write_to(site: Site) -> None:
    site.configure("")
    (site.root / "home/.config/ffdl").chmod(0o770)
    with pytest.raises(DaemonUnreachable, match="no token is stored there") as caught:
        site.log_in()
    assert caught.value.problem.exit_code == 77


@pytest.fixture
def hub(site: Site, tmp_path: Path) -> Iterator[FakeHub]:
    daemon = site.start_daemon(site.root / "d.sock")
    daemon.jobs["training-000000001"] = make_job()
    fake = FakeHub(tmp_path, daemon.path).start()
    yield fake
    fake.stop()


def test_requests_to_hub_have_token_and_name_of_hub(site: Site, hub: FakeHub) -> None:
    site.log_in(hub.url, ca=hub.ca.read_text())
    with Client(dialling=site.dialling) as client:
        assert client.get("training-000000001").name == "digits"
        assert [job.id for job in client.list()] == ["training-000000001"]
        assert client.cancel("training-000000001").requested_action == "cancel"
    assert len(hub.requests) == 3
    for _, headers in hub.requests:
        assert headers["authorization"] == f"Bearer {TOKEN}"
        assert headers["host"] == f"{ADDRESS}:{hub.port}"


def test_requests_of_operator_have_users_prefix(site: Site, hub: FakeHub) -> None:
    site.log_in(hub.url, ca=hub.ca.read_text())
    with Client(dialling=replace(site.dialling, user=7002)) as client:
        client.list()
        list(client.events("training-000000001"))
    assert [line.partition("?")[0] for line, _ in hub.requests] == [
        "GET /users/7002/api/v1/jobs",
        "GET /users/7002/api/v1/jobs/training-000000001/events",
    ]


def test_operator_without_hub_or_with_login_node_is_refused(site: Site) -> None:
    site.open_spawner("ok")
    with pytest.raises(DaemonUnreachable, match="only through the site's hub, and no hub is configured"):
        replace(site.dialling, user=7002).way()
    with pytest.raises(DaemonUnreachable, match="not through the login node login1"):
        replace(site.dialling, user=7002, host="login1").way()


def test_operator_on_host_of_hub_uses_its_socket_without_token(site: Site) -> None:
    site.environ["FFDL_HUB_SOCKET"] = str(site.root / "hub.sock")
    hub = site.start_daemon(site.root / "hub.sock")
    hub.refusals = {"/users/7002/api/v1/jobs": (403, None)}
    dialling = replace(site.dialling, user=7002)
    with Client(dialling=dialling) as client, pytest.raises(NotAllowed):
        client.list()
    assert hub.requests == ["GET /users/7002/api/v1/jobs"]
    assert site.dialling.way() is None
    site.environ["FFDL_HUB"] = HUB
    assert dialling.way() == HubPlace("ffdl.example.org")
    with pytest.raises(DaemonUnreachable, match="the hub does not answer at"):
        ways.HubSocket(site.root / "none").dial()


def refused(place: HubPlace) -> tuple[int, str]:
    """Return exit code and message of a connection that cannot be made."""
    with pytest.raises(DaemonUnreachable) as caught:
        dial_hub(place)
    assert caught.value.problem.cure
    return caught.value.problem.exit_code, str(caught.value)


def test_connection_to_hub_checks_certificate_and_name(hub: FakeHub) -> None:
    ca = hub.ca.read_text()
    dial_hub(HubPlace(ADDRESS, hub.port, TOKEN, ca)).close()
    code, message = refused(HubPlace(ADDRESS, hub.port, TOKEN))
    assert (code, "self-signed certificate" in message, f"ffdl login {hub.url} --ca FILE" in message) == (
        77,
        True,
        True,
    )
    code, message = refused(HubPlace("localhost", hub.port, TOKEN, ca))
    assert (code, "Hostname mismatch" in message) == (77, True)
    assert hub.requests == []


def test_connection_to_hub_explains_what_failed(site: Site, hub: FakeHub) -> None:
    assert refused(HubPlace(ADDRESS, hub.port))[0] == 77  # no token
    code, message = refused(HubPlace("no-such-host.invalid", token=TOKEN))
    assert code in (69, 75) and "its name is unknown" in message
    port = hub.port
    hub.stop()
    code, message = refused(HubPlace(ADDRESS, port, TOKEN))
    assert (code, "Connection refused" in message) == (75, True)


def test_server_without_tls_at_address_of_hub_is_reported() -> None:

    def answer(listening: socket.socket) -> None:
        connected, _ = listening.accept()
        with connected:
            connected.recv(1 << 16)
            connected.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server((ADDRESS, 0)) as listening:
        threading.Thread(target=answer, args=(listening,), daemon=True).start()
        code, message = refused(HubPlace(ADDRESS, listening.getsockname()[1], TOKEN))
    assert (code, "the TLS connection to" in message) == (69, True)


def test_expired_token_and_missing_scope_are_reported_with_cure(site: Site, hub: FakeHub) -> None:
    site.log_in(hub.url, ca=hub.ca.read_text())
    with Client(dialling=site.dialling) as client:
        hub.refusals["/api/v1/jobs"] = (403, b"")
        with pytest.raises(NotAllowed, match="if the token lacks the scope, create another one: ffdl token create"):
            client.list()
        body = {"code": "S101", "message": "the token has expired", "exit_code": 1}
        hub.refusals["/api/v1/jobs"] = (401, json.dumps({"problem": body}).encode())
        with pytest.raises(NotAllowed, match=f"the token has expired .log in again: ffdl login {hub.url}") as caught:
            client.list()
        assert caught.value.problem.exit_code == 77
        hub.valid.clear()
        with pytest.raises(NotAllowed, match=f"it has expired or was revoked .log in again: ffdl login {hub.url}"):
            client.list()


@pytest.mark.parametrize(
    ("text", "url", "port"),
    [
        ("https://FfDL.example.org/", "https://ffdl.example.org", 443),
        ("https://ffdl.example.org:443", "https://ffdl.example.org", 443),
        ("https://[2001:db8::1]:8443", "https://[2001:db8::1]:8443", 8443),
    ],
)
def test_address_of_hub_is_written_in_one_way(text: str, url: str, port: int) -> None:
    assert (parse_hub(text).url, parse_hub(text).port) == (url, port)


@pytest.mark.parametrize(
    "text", ["http://ffdl.example.org", "https://", "https://u:p@h", "https://h/path", "https://h:0", "https://h:99999"]
)
def test_address_that_is_none_of_a_hub_is_refused(text: str) -> None:
    with pytest.raises(DaemonUnreachable, match="is not the address of a hub") as caught:
        parse_hub(text)
    assert caught.value.problem.exit_code == 78
