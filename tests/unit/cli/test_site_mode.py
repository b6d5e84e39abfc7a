"""``ffdl login``, ``logout``, ``token``, ``--user``, and ``ffdl daemon`` for a daemon of a site."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pty
import pwd
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.access import parse_token
from tests.fakes.hub import NONCE, TOKEN, FakeHub
from tests.fakes.spawner import FakeSpawner
from tests.unit.cli.programs import FFDL, environment, json_lines, run
from tests.unit.cli.test_output import EVIL, STEERING
from tests.unit.client.fake_daemon import FakeDaemon, make_job


@pytest.fixture
def hub(daemon: FakeDaemon, tmp_path: Path) -> Iterator[FakeHub]:
    """A hub in front of the fake daemon."""
    daemon.jobs["training-000000001"] = make_job()
    fake = FakeHub(tmp_path, daemon.path).start()
    yield fake
    fake.stop()


class Laptop:
    """A machine that has no daemon, and knows nothing of the hub."""

    def __init__(self, home: Path) -> None:
        self.env = {
            "HOME": str(home), "XDG_CONFIG_HOME": "", "FFDL_SOCKET": "", "FFDL_STATE_DIR": "",
            "FFDL_SITE_RUN": str(home / "none"), "FFDL_HUB_SOCKET": str(home / "none"),
        }  # fmt: skip
        self.tokens = home / ".config/ffdl/tokens.toml"

    def ffdl(self, *words: str | Path, text: str | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
        return run(FFDL, *words, env=self.env | extra, text=text)

    def log_in(self, hub: FakeHub, *words: str) -> subprocess.CompletedProcess[str]:
        return self.ffdl("login", hub.url, "--token-stdin", "--ca", hub.ca, *words, text=f"{TOKEN}\n")


@pytest.fixture
def laptop(short_dir: Path) -> Laptop:
    home = short_dir / "home"
    home.mkdir()
    return Laptop(home)


def test_login_checks_and_stores_token_and_later_commands_use_hub(laptop: Laptop, hub: FakeHub) -> None:
    done = laptop.log_in(hub)
    assert (done.returncode, done.stdout.startswith(f"logged in to {hub.url} as ada (read, write), until 2030-")) == (
        0,
        True,
    )
    assert done.stderr == f"ffdl: the token is stored in {laptop.tokens}; to remove it: ffdl logout\n"
    assert hub.requests[0][0] == "GET /api/v1/whoami"
    listed = laptop.ffdl("list")
    assert (listed.returncode, "training-000000001" in listed.stdout, listed.stderr) == (0, True, "")
    assert not (laptop.tokens.parents[2] / ".local").exists()
    assert TOKEN not in done.stdout + done.stderr


def test_login_prompts_for_token_without_echo(laptop: Laptop, hub: FakeHub) -> None:
    ours, theirs = pty.openpty()
    argv = [*FFDL, "login", hub.url, "--token", "--ca", str(hub.ca)]
    with subprocess.Popen(
        argv, env=environment(None, laptop.env), stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, text=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        assert process.stderr is not None
        prompt = ""
        while not prompt.endswith(": "):  # what is typed before the echo is off is dropped
            prompt += process.stderr.read(1)
        os.write(ours, f"{TOKEN}\n".encode())
        out, err = process.communicate(timeout=120)
    os.close(ours)
    assert (process.returncode, out.startswith(f"logged in to {hub.url}")) == (0, True), err
    assert TOKEN not in err


MUNGE = f"""#!{sys.executable}
import base64, sys
text = " ".join(sys.argv[1:]) + "|" + sys.stdin.read()
print("MUNGE:" + base64.b64encode(text.encode()).decode() + ":")
"""


def test_login_by_munge_proves_token_that_it_made_to_hub_and_daemon(
    laptop: Laptop, hub: FakeHub, tmp_path: Path
) -> None:
    """The hub gets the hash of its certificate, and the daemon that of the token, which the hub cannot read."""
    program = tmp_path / "bin/munge"
    program.parent.mkdir()
    program.write_text(MUNGE)
    program.chmod(0o755)
    hub.valid.clear()
    hub.on_login = lambda: hub.valid.add("*")
    done = laptop.ffdl("login", hub.url, "--ca", hub.ca, PATH=f"{program.parent}:{os.environ['PATH']}")
    assert (done.returncode, done.stdout.startswith(f"logged in to {hub.url} as ada")) == (0, True), done.stderr
    (sent,) = hub.logins
    to_hub, to_daemon = (base64.b64decode(sent[key].split(":")[1]).decode() for key in ("to_hub", "to_daemon"))
    certificate = ssl.PEM_cert_to_DER_cert(hub.ca.read_text())
    assert to_hub == f"--restrict-uid=7000 --ttl=60|ffdl-login {NONCE} {hashlib.sha256(certificate).hexdigest()}"
    stored = re.search(r"token = '([^']*)'", laptop.tokens.read_text())
    assert stored is not None and (token := parse_token(stored[1])) is not None
    assert to_daemon.startswith(f"--restrict-uid={os.getuid()} --ttl=60|ffdl-token {token.id} {token.digest} login on ")
    assert [headers.get("authorization") for _, headers in hub.requests] == [None, None, f"Bearer {token.text}"]
    assert token.secret not in to_hub + to_daemon


def test_login_by_munge_without_munged_says_how_to_log_in_with_token(
    laptop: Laptop, hub: FakeHub, tmp_path: Path
) -> None:
    program = tmp_path / "munge"
    program.write_text("#!/bin/sh\necho 'munge: Error: Failed to access socket' >&2; exit 6\n")
    program.chmod(0o755)
    done = laptop.ffdl("login", hub.url, "--ca", hub.ca, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (done.returncode, laptop.tokens.exists()) == (69, False)
    assert "you cannot log in by munge: Failed to access socket (on a machine of no cluster: " in done.stderr


BEGUN = {
    "login": NONCE, "user_code": "WDJB-MJHT", "verification_uri": "https://id.example.org/activate",
    "verification_uri_complete": "", "interval_s": 0, "seconds": 600,
}  # fmt: skip


@pytest.mark.parametrize("words", [(), ("--browser",)])
def test_login_by_browser_shows_address_and_code_and_waits(
    laptop: Laptop, hub: FakeHub, tmp_path: Path, words: tuple[str, ...]
) -> None:
    hub.valid.clear()
    hub.whoami["account"] = "eve"  # as her daemon says; the hub says ada
    hub.on_login = lambda: hub.valid.add("*")
    hub.device_login = BEGUN | ({"verification_uri_complete": f"{BEGUN['verification_uri']}?code=1"} if words else {})
    done = laptop.ffdl("login", hub.url, "--ca", hub.ca, *words, PATH=str(tmp_path))
    assert (done.returncode, done.stdout.startswith(f"logged in to {hub.url} as ada")) == (0, True), done.stderr
    address = "https://id.example.org/activate" + ("?code=1" if words else "")
    assert f"open {address} in a browser on any machine, and compare or enter the code WDJB-MJHT" in done.stderr
    stored = re.search(r"token = '([^']*)'", laptop.tokens.read_text())
    assert stored is not None and (token := parse_token(stored[1])) is not None
    (sent,) = hub.logins
    assert sent["login"].startswith(f"ffdl-token {token.id} {token.digest} login on ")
    assert token.secret not in str(sent) + done.stderr and hub.pending == 0


def test_login_by_browser_is_refused_by_hub_that_offers_none(laptop: Laptop, hub: FakeHub, tmp_path: Path) -> None:
    done = laptop.ffdl("login", hub.url, "--ca", hub.ca, "--browser", PATH=str(tmp_path))
    assert (done.returncode, "this hub offers no login by OpenID Connect" in done.stderr) == (69, True), done.stderr
    done = laptop.ffdl("login", hub.url, "--ca", hub.ca, PATH=str(tmp_path), text="")
    assert (done.returncode, "to read the token from it: --token-stdin" in done.stderr) == (2, True), done.stderr
    assert not laptop.tokens.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"verification_uri": "javascript:x"},
        {"verification_uri": "https://x/\x1b[2J"},
        {"login": "../x"},
        {"seconds": "x"},
    ],
)
def test_login_by_browser_refuses_answer_that_is_none_of_a_hub(
    laptop: Laptop, hub: FakeHub, tmp_path: Path, change: dict[str, object]
) -> None:
    hub.device_login = BEGUN | change
    done = laptop.ffdl("login", hub.url, "--ca", hub.ca, "--browser", PATH=str(tmp_path))
    assert (done.returncode, "does not answer like a hub" in done.stderr) == (69, True), done.stderr
    assert "\x1b" not in done.stderr and not laptop.tokens.exists()


@pytest.mark.parametrize(
    ("words", "text", "code", "message"),
    [
        ((TOKEN,), "", 2, "a token must not be an argument"),
        (("https://h", TOKEN), "", 2, "a token must not be an argument"),
        (("https://h", "--token"), "", 2, "to read the token from it: --token-stdin"),
        (("https://h", "--token-stdin"), "secret\n", 2, "this is not a token of the form ffdl_ID_SECRET"),
        ((), "", 2, "name the hub: ffdl login https://HOST"),
        (("http://h", "--token-stdin"), TOKEN, 78, "'http://h' is not the address of a hub"),
        (("https://h", "--token-stdin", "--ca", "/nonexistent"), TOKEN, 66, "/nonexistent: No such file"),
        (("https://h", "--token-stdin", "--ca", __file__), TOKEN, 78, "has no certificate in PEM format"),
    ],
)
def test_login_refuses_wrong_arguments_and_repeats_no_token(
    laptop: Laptop, words: tuple[str, ...], text: str, code: int, message: str
) -> None:
    done = laptop.ffdl("login", *words, text=text)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert TOKEN not in done.stderr and not laptop.tokens.exists()


def test_login_stores_nothing_if_hub_does_not_accept_token_or_has_wrong_certificate(
    laptop: Laptop, hub: FakeHub
) -> None:
    hub.valid.clear()
    done = laptop.log_in(hub)
    assert (done.returncode, "the token was not accepted" in done.stderr) == (77, True)
    wrong = laptop.ffdl("login", hub.url, "--token-stdin", text=TOKEN)
    assert (wrong.returncode, "self-signed certificate" in wrong.stderr) == (77, True)
    assert not laptop.tokens.exists()


def test_logout_removes_token_and_names_hub_that_is_used_then(laptop: Laptop, hub: FakeHub) -> None:
    assert laptop.ffdl("logout").returncode == 1
    laptop.log_in(hub)
    text = laptop.tokens.read_text()
    laptop.tokens.write_text(text + text.splitlines()[-1].replace(hub.url, "https://other") + "\n")
    done = laptop.ffdl("logout")
    assert (done.returncode, done.stdout) == (0, f"logged out of {hub.url}; commands use https://other now\n")
    assert laptop.ffdl("logout", "other").stdout == "logged out of https://other\n"
    assert TOKEN not in laptop.tokens.read_text()


def test_token_create_prints_token_alone_on_standard_output(laptop: Laptop, hub: FakeHub) -> None:
    laptop.log_in(hub)
    done = laptop.ffdl("token", "create", "laptop", "--scope", "read", "--days", "2")
    assert (done.returncode, done.stdout) == (0, f"{TOKEN}\n"), done.stderr
    assert f"to use it on another machine: ffdl login {hub.url}; to end it: ffdl token revoke id0" in done.stderr
    assert hub.tokens["id0"] == {
        "id": "id0", "name": "laptop", "scopes": ["read"], "created_at": 1.0, "expires_at": 172801.0,
    }  # fmt: skip
    (created,) = json_lines(laptop.ffdl("token", "create", "cron", "--json").stdout)
    assert (created["secret"], created["token"]["scopes"]) == (TOKEN, ["read", "write"])
    (listed,) = json_lines(laptop.ffdl("token", "list", "--json").stdout)
    assert [one["name"] for one in listed["tokens"]] == ["laptop", "cron"]
    assert re.search(r"^id1 +cron +read,write +19", laptop.ffdl("token", "list").stdout, re.MULTILINE)
    gone = laptop.ffdl("token", "revoke", "nope", "id0")
    assert (gone.returncode, gone.stdout) == (1, "token id0 is revoked\n")
    assert "there is no such token" in gone.stderr and "the hub could not be informed" in gone.stderr
    assert list(hub.tokens) == ["id1"]


def test_user_option_puts_uid_before_path_of_request(laptop: Laptop, hub: FakeHub) -> None:
    laptop.log_in(hub)
    hub.requests.clear()
    name = pwd.getpwuid(1).pw_name
    assert laptop.ffdl("--user", "7002", "list").returncode == 0
    assert laptop.ffdl("--user", name, "ls").returncode == 0
    assert laptop.ffdl("--user", "7002", "cancel", "training-000000001").returncode == 0
    assert [line.partition("?")[0] for line, _ in hub.requests] == [
        "GET /users/7002/api/v1/jobs",
        "GET /users/1/api/v1/jobs",
        "POST /users/7002/api/v1/jobs/training-000000001/cancel",
    ]


def test_answers_of_another_users_daemon_do_not_steer_the_terminal(
    laptop: Laptop, hub: FakeHub, daemon: FakeDaemon
) -> None:
    laptop.log_in(hub)
    job_id = "training-000000001"
    daemon.jobs[job_id] = make_job(name=EVIL, user=EVIL, nodes=EVIL, framework=EVIL, backend=EVIL, log_tail=(EVIL,))
    for words in (("list",), ("show", job_id), ("events", job_id)):
        done = laptop.ffdl("--user", "7002", *words)
        assert done.returncode == 0 and not any(one in done.stdout + done.stderr for one in STEERING), ascii(
            done.stdout
        )
    body = json.dumps({"problem": {"code": "S101", "message": EVIL, "exit_code": 75, "cure": EVIL}}).encode()
    for refusal in (body, EVIL.encode()):
        hub.refusals["/users/7002"] = 503, refusal
        done = laptop.ffdl("--user", "7002", "list")
        assert done.returncode == 75 and r"\x1b" in done.stderr
        assert not any(one in done.stderr for one in STEERING), ascii(done.stderr)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--user", "nobody-of-that-name", "list"), 2, "this machine has no account 'nobody-of-that-name'"),
        (("--user", "7002", "logs", "training-000000001"), 2, "logs does not accept --user"),
        (("--user", "7002", "list"), 69, "only through the site's hub, and no hub is configured"),
        (("--host", "login1", "--user", "7002", "list"), 2, "not through the login node login1"),
    ],
)
def test_user_option_is_refused_if_it_cannot_apply(
    laptop: Laptop, words: tuple[str, ...], code: int, message: str
) -> None:
    done = laptop.ffdl(*words)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


def test_daemon_commands_behind_hub_show_health_and_refuse_the_rest(laptop: Laptop, hub: FakeHub) -> None:
    laptop.log_in(hub)
    done = laptop.ffdl("daemon", "status")
    assert (done.returncode, f"Hub:                 {hub.url}\n" in done.stdout) == (0, True), done.stderr
    (document,) = json_lines(laptop.ffdl("daemon", "status", "--json").stdout)
    assert (document["running"], document["hub"]) == (True, hub.url)
    for verb in ("stop", "restart", "metrics"):
        refused = laptop.ffdl("daemon", verb)
        assert (refused.returncode, "on the hub's host" in refused.stderr) == (69, True)
        assert f"ffdl daemon {verb}" in refused.stderr
    relayed = laptop.ffdl("daemon", "relay")
    assert (relayed.returncode, relayed.stdout) == (69, "")
    assert f"run `ffdl login {hub.url}` on your own machine" in relayed.stderr


def test_output_path_must_be_absolute_behind_hub(laptop: Laptop, hub: FakeHub, manifest: Path, model: Path) -> None:
    laptop.log_in(hub)
    refused = laptop.ffdl("submit", "--output", "log.txt", manifest, model)
    assert (refused.returncode, "the file is written on 127.0.0.1; use an absolute path" in refused.stderr) == (2, True)
    done = laptop.ffdl("submit", manifest, model)
    assert (done.returncode, done.stdout) == (0, "Submitted batch job training-000000001\n")


class LoginNode(Laptop):
    """The hub's host. Its spawner starts a daemon as a process of its own."""

    CODE = (
        "import sys, time; sys.path.insert(0, sys.argv[2]); from pathlib import Path\n"
        "from tests.unit.client.fake_daemon import FakeDaemon; FakeDaemon(Path(sys.argv[1])).start()\n"
        "print('listening', flush=True); time.sleep(600)"
    )

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.env["FFDL_SITE_RUN"] = str(home.parent / "run")
        self.spawner = FakeSpawner(home.parent / "run", ["ok"], self.start)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.spawner.own.unlink(missing_ok=True)
        argv = [sys.executable, "-c", self.CODE, str(self.spawner.own), str(Path(__file__).parents[3])]
        self.processes.append(subprocess.Popen(argv, stdout=subprocess.PIPE))
        output = self.processes[-1].stdout
        assert output is not None and output.readline() == b"listening\n"

    def close(self) -> None:
        self.spawner.close()
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def node(short_dir: Path) -> Iterator[LoginNode]:
    home = short_dir / "home"
    home.mkdir()
    made = LoginNode(home)
    yield made
    made.close()


def test_daemon_commands_apply_to_daemon_of_spawner(node: LoginNode) -> None:
    status = node.ffdl("daemon", "status")
    assert (status.returncode, node.spawner.requests) == (1, [])
    assert "the next command that needs one asks the spawner of this host to start it" in status.stdout
    assert node.ffdl("daemon", "stop").stdout == "no daemon ran\n"
    assert node.ffdl("list").returncode == 0
    status = node.ffdl("daemon", "status")
    assert f"Started by:          the spawner of this host ({node.spawner.run_dir}/spawner.sock)\n" in status.stdout
    assert f"State directory:     /var/lib/ffdl/{os.getuid()}/state\n" in status.stdout
    assert "Settings" not in status.stdout
    (document,) = json_lines(node.ffdl("daemon", "status", "--json").stdout)
    assert document["spawner"] == f"{node.spawner.run_dir}/spawner.sock"
    done = node.ffdl("daemon", "restart")
    first, second = (process.pid for process in node.processes)
    assert done.stdout.startswith(f"stopped process {first}, which the spawner of this host had started\n")
    assert node.ffdl("daemon", "stop").stdout.startswith(f"stopped process {second}, ")
    assert not (Path(node.env["HOME"]) / ".local").exists()


def test_refusal_of_spawner_ends_command_with_77(node: LoginNode) -> None:
    node.spawner.answers = ["refused the account has expired"]
    done = node.ffdl("list")
    assert (done.returncode, done.stdout) == (77, "")
    assert done.stderr.startswith("ffdl: the spawner of this host starts no daemon for you: the account has expired (")


def test_site_file_may_have_tables_of_spawner_and_hub(tmp_path: Path) -> None:
    from ffdl_batch.config import load

    file = tmp_path / "site.toml"
    file.write_text('hub_url = "https://ffdl.example.org"\n[spawner]\nstate_dir = "/srv/ffdl"\n[hub]\noperators = []\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "SITE_FILES", (file,))
        environ = {"HOME": str(tmp_path)}
        assert load.load_settings(cwd=tmp_path, environ=environ).hub_url == "https://ffdl.example.org"
        assert load.site_state_dir(7001) == Path("/srv/ffdl/7001/state")
    (tmp_path / ".config/ffdl").mkdir(parents=True)
    (tmp_path / ".config/ffdl/config.toml").write_text("[spawner]\n")
    with pytest.raises(load.ConfigError, match="unknown key 'spawner'"):
        load.load_settings(cwd=tmp_path, environ=environ)
