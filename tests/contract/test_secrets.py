"""Secrets through the whole platform with the local backend: where the values are while they are needed, where they
never are, and that nothing is left."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.domain.outcome.controller_events import EventKind, decode_events
from ffdl_batch.host.fast_dataclass import dataclass
from tests import preloaded
from tests.contract.daemon_rig import LIMIT_S, PLAIN, Site, model_zip, site_in, submission, until
from tests.preloaded import FFDL, FFDL_SUBMIT
from tests.secret_search import Search, environment_of

TAG = os.urandom(4).hex()
"""Other runs of these tests on this machine have other values."""
VALUES = {
    "hub": f"pl\u00e4nted-hub \"x\" 'y' \\ $HOME %+/?&\nsecond line-6c1f{TAG}",
    "renewed": f"planted-renewed-93ab{TAG}",
    "from-env": f"planted-variable-51dd{TAG}",
    "from-file": f"planted-file-first\nplanted-file-e07c{TAG}",
    "in-clear": f"planted-in-clear-2b44{TAG}",
    "unused": f"planted-unused-77aa{TAG}",
}
TRAIN = """
import hashlib, os, signal, sys, time
def save(*_):
    open(os.environ["CHECKPOINT_DIR"] + "/step", "w").write("x")
    sys.exit(0)
signal.signal(signal.SIGUSR2, save)
for name in ("HUB", "VARIABLE", "FROM_FILE", "LITERAL"):
    print(name, hashlib.sha256(os.environ[name].encode()).hexdigest(), flush=True)
print("up", flush=True)
while os.environ["FFDL_ATTEMPT"] == "1" or not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""


@dataclass
class Desk:
    """A site, a model and a manifest, and the commands of who sits there; `said` is all that they ever printed."""

    site: Site
    said: bytes = b""
    submitted: list[str] = field(default_factory=list)

    def run(self, *argv: str, status: int | None = 0, given: str | None = None, **more: str) -> str:
        done = preloaded.run(
            argv, env={**self.site.environment(), **more}, cwd=self.site.directory, timeout=LIMIT_S, check=False,
            capture_output=True, input=None if given is None else given.encode(),
            stdin=subprocess.DEVNULL if given is None else None,
        )  # fmt: skip
        self.said += done.stdout + done.stderr
        assert status in (None, done.returncode), done
        return done.stdout.decode()

    def ffdl(self, *argv: str, **more: Any) -> str:
        return self.run(*FFDL, *argv, **more)

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(json.loads(self.ffdl("show", "--json", job_id))["job"])

    @property
    def root(self) -> Root:
        return Root(str(self.site.state))

    def attempt(self, job_id: str, number: int) -> AttemptDir:
        return self.root.job(job_id).attempt(number)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with site_in(tmp_path, more_environment={"FFDL_BACKEND": "local"}) as site:
        site.start(program=PLAIN)
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "train.py").write_text(TRAIN)
        (tmp_path / "given").mkdir()
        (tmp_path / "given" / "licence.txt").write_bytes(VALUES["from-file"].encode() + b"\n")
        made = Desk(site)
        yield made
        for job_id in made.submitted:
            site.ask("POST", f"/api/v1/jobs/{job_id}/cancel")
            until(lambda: site.ask("GET", f"/api/v1/jobs/{job_id}")[1]["job"]["ended_at"], f"the end of {job_id}")  # noqa: B023


def manifest(desk: Desk, name: str, more: str = "") -> str:
    text = f"""\
name: {name}
gpus: 0
framework:
  name: custom
  version: python-numpy
  command: python3 train.py {desk.site.directory}/release
data_stores:
  - id: here
    type: directory
    training_results: {{container: out}}
    connection: {{path: {desk.site.directory}/stored}}
batch:
  secrets: {{HUB: "${{secret:hub}}", VARIABLE: "${{env:LICENCE_KEY}}", FROM_FILE: "${{file:given/licence.txt}}",
            LITERAL: {VALUES["in-clear"]}}}
{more}"""
    (desk.site.directory / "stored" / "out").mkdir(parents=True, exist_ok=True)
    path = desk.site.directory / f"{name}.yml"
    path.write_text(text)
    return str(path)


def set_all(desk: Desk) -> None:
    desk.ffdl("secret", "set", "hub", given=VALUES["hub"] + "\n")
    desk.ffdl("secret", "set", "unused", given=VALUES["unused"])


def submitted(desk: Desk, path: str) -> str:
    model = str(desk.site.directory / "model")
    said = desk.run(*FFDL_SUBMIT, "--parsable", path, model, LICENCE_KEY=VALUES["from-env"])
    desk.submitted.append(said.strip())
    return desk.submitted[-1]


def await_up(desk: Desk, job_id: str, number: int) -> str:
    log = Path(desk.attempt(job_id, number).training_log(1))

    def up() -> bool:
        job = desk.site.ask("GET", f"/api/v1/jobs/{job_id}")[1]["job"]
        assert not job["ended_at"], (job, log.read_text() if log.exists() else "")
        is_known = (job["attempt"], job["state"]) == (number, "PROCESSING")
        return is_known and log.exists() and "up\n" in log.read_text()

    until(up, f"attempt {number} to say that it is up")
    return log.read_text()


def digests(hub: str) -> str:
    values = {"HUB": VALUES[hub], "VARIABLE": VALUES["from-env"], "FROM_FILE": VALUES["from-file"]}
    values["LITERAL"] = VALUES["in-clear"]
    return "".join(f"{name} {hashlib.sha256(value.encode()).hexdigest()}\n" for name, value in values.items()) + "up\n"


def written(desk: Desk) -> dict[str, set[str]]:
    """What the system wrote that holds a value, by its path in the state directory; nothing elsewhere does, but what
    this test wrote itself."""
    site, search = desk.site, Search(VALUES)
    places = [path for path in site.directory.iterdir() if path.name != "given" and path.suffix != ".yml"]
    found = search.below(*places)
    assert all(Path(path).stat().st_mode & 0o777 == 0o600 for path in found), found
    return {str(Path(path).relative_to(site.state)): names for path, names in found.items()}


OWN = {"from-env", "from-file", "in-clear"}


def test_secret_values_stay_in_private_files_and_learner_environment(desk: Desk) -> None:
    search, root = Search(VALUES), desk.root
    set_all(desk)
    path = manifest(desk, "life", "  retry: {timeouts: 1}\n")
    desk.ffdl("validate", path)
    desk.run(*FFDL_SUBMIT, "--dry-run", path, str(desk.site.directory / "model"), LICENCE_KEY=VALUES["from-env"])
    job_id = submitted(desk, path)
    assert await_up(desk, job_id, 1) == digests("hub")

    own = f"jobs/{job_id}/secrets.json"
    first, second, template = (f"jobs/{job_id}/attempt-{which}/secrets.json" for which in ("1", "2", "next"))
    store = {"secrets/hub": {"hub"}, "secrets/unused": {"unused"}}
    assert written(desk) == {**store, own: OWN, first: {"hub", *OWN}, template: {"hub", *OWN}}
    of_learner = search.in_processes("environ")
    assert of_learner, "the learner has them"
    for pid, names in of_learner.items():
        assert names == {"hub", *OWN}
        environment = environment_of(pid)
        assert (environment.get("LEARNER_ID", "1"), environment.get("TRAINING_ID", job_id)) == ("1", job_id)
    assert search.in_processes("cmdline") == {}
    for pid in of_learner:
        assert re.search("Max core file size +[01] ", Path(f"/proc/{pid}/limits").read_text())

    listed = json.loads(desk.ffdl("secret", "list", "--json"))["secrets"]
    assert [(one["name"], one["jobs"]) for one in listed] == [("hub", 1), ("unused", 0)]
    desk.ffdl("secret", "rm", "hub", status=1)
    desk.ffdl("secret", "rm", "unused")
    desk.ffdl("secret", "rm", "unused", status=1)
    desk.ffdl("secret", "set", "hub", "--from-file", "-", given=VALUES["renewed"] + "\r\n")
    assert written(desk) == {
        "secrets/hub": {"renewed"}, own: OWN, first: {"renewed", *OWN}, template: {"renewed", *OWN},
    }  # fmt: skip

    desk.site.ask("POST", f"/api/v1/jobs/{job_id}/drill", {"event": "timeout"})
    assert await_up(desk, job_id, 2) == digests("renewed"), "the attempt that the head made has what is set by then"
    until(lambda: not (desk.site.state / first).exists(), "the first attempt's file to go")
    assert written(desk) == {
        "secrets/hub": {"renewed"}, own: OWN, second: {"renewed", *OWN}, template: {"renewed", *OWN},
    }  # fmt: skip

    (desk.site.directory / "release").touch()
    desk.ffdl("wait", job_id)
    assert desk.job(job_id)["state"] == "COMPLETED"
    until(lambda: not list(Path(root.secret_holders).iterdir()), "its secrets to be forgotten")
    assert written(desk) == {"secrets/hub": {"renewed"}}
    assert search.in_processes("environ") == {}

    for more in ("logs", "events", "show"):
        desk.ffdl(more, job_id)
    for place in ("", f"/{job_id}", f"/{job_id}/events"):
        desk.said += json.dumps(desk.site.ask("GET", f"/api/v1/jobs{place}")[1]).encode()
    assert search.within(desk.said) == set()
    assert search.within(b"x" + json.dumps(VALUES).encode()) == set(VALUES), "which finds what is there"


def test_secrets_of_killed_attempt_are_removed(desk: Desk) -> None:
    """All controllers die at once, so that nobody but the daemon can remove anything; the job fails."""
    set_all(desk)
    job_id = submitted(desk, manifest(desk, "killed", "  retry: {node_failures: 0, failures: 0}\n"))
    await_up(desk, job_id, 1)
    attempt, pids = desk.attempt(job_id, 1), []
    for source in ("head", "node-0"):
        events = decode_events(Path(attempt.event_file(source)).read_text())
        pids.append(int([event for event in events if event.kind is EventKind.STARTED][-1].fields["pid"] or 0))
    for sign in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # who started it saw that it has to end, too
                os.kill(pid, sign)
    desk.ffdl("wait", job_id, status=None)
    assert desk.job(job_id)["state"] == "FAILED"
    until(lambda: not list(Path(desk.root.secret_holders).iterdir()), "its secrets to be forgotten")
    own = f"jobs/{job_id}/secrets.json"
    assert written(desk) == {"secrets/hub": {"hub"}, "secrets/unused": {"unused"}, own: OWN}, "a resume needs its own"
    assert Search(VALUES).in_processes("environ") == {}


def test_secrets_api_never_returns_or_logs_a_value(desk: Desk) -> None:
    """Requests that are refused hold it, too."""
    value, search = VALUES["hub"], Search(VALUES)
    site = desk.site
    archive = model_zip()
    digest = hashlib.sha256(archive).hexdigest()
    site.ask("PUT", f"/api/v1/archives/{digest}", archive)
    wrong = {**submission("k", digest), "references": {"env:A": value}, "manifest": "name: [", "backend": "local"}
    odd = {**submission("k", digest), "references": {"env:A": [value]}}
    requests: list[tuple[str, str, Any]] = [
        ("PUT", "/api/v1/secrets/hub", {"value": value}),
        ("PUT", "/api/v1/secrets/..%2fup", {"value": value}),
        ("PUT", "/api/v1/secrets/.hidden", {"value": value}),
        ("PUT", "/api/v1/secrets/hub", {"value": [value]}),
        ("PUT", "/api/v1/secrets/hub", {"valu": value}),
        ("PUT", "/api/v1/secrets/hub", value),
        ("PUT", "/api/v1/secrets/hub", json.dumps({"value": value}).encode()[:-1]),
        ("PUT", "/api/v1/secrets/hub", {"value": value + "\0"}),
        ("PUT", "/api/v1/secrets/hub", {"value": value * 2000}),
        ("PUT", "/api/v1/secrets/hub", {"value": value * 40000}),
        ("POST", "/api/v1/secrets/hub", {"value": value}),
        ("GET", "/api/v1/secrets", None),
        ("GET", "/api/v1/secrets/hub", None),
        ("POST", "/api/v1/jobs", {"submissions": [wrong]}),
        ("POST", "/api/v1/jobs", {"submissions": [odd]}),
        ("POST", "/api/v1/plan", {"submission": {**wrong, "manifest": value}}),
        ("DELETE", "/api/v1/secrets/hub", None),
    ]
    answered = [(method, path, *site.ask(method, path, body)) for method, path, body in requests]
    assert [status for _, _, status, _ in answered] == [
        200, 404, 400, 400, 400, 400, 400, 400, 400, 400, 405, 200, 405, 200, 400, 422, 200,
    ], answered  # fmt: skip
    for method, path, _, reply in answered:
        assert search.within(json.dumps(reply).encode()) == set(), (method, path, reply)
    assert search.within(site.log.encode()) == set() and "set the secret hub" in site.log
    assert written(desk) == {}


def test_secret_command_rejects_invalid_arguments_without_printing_value(desk: Desk) -> None:
    for argv, given, status, words in (
        (("set", "n", "planted-1"), "", 2, "the value must not be an argument"),
        (("set", "a/b"), "x", 2, "cannot be a secret's name"),
        (("set", "n"), "", 2, "the value is empty"),
        (("set", "n"), "planted" * 10000, 2, "the value has more than 65536 bytes"),
        (("set", "n", "--from-file", "/nowhere"), "", 66, "/nowhere: No such file or directory"),
        (("rm", "n"), "", 1, "there is no secret 'n'"),
    ):
        desk.said = b""
        desk.ffdl("secret", *argv, status=status, given=given)
        assert words in desk.said.decode() and b"planted" not in desk.said


def test_secret_set_prompts_for_value_without_echo(desk: Desk) -> None:
    """On a terminal of its own, as a person has one."""
    pid, terminal = os.forkpty()
    if pid == 0:
        os.chdir(desk.site.directory)
        os.execve(FFDL[0], [*FFDL, "secret", "set", "typed"], desk.site.environment())
    shown, answers = b"", [b"planted-typed\n", b"planted-typed\n"]
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # it has ended
            break
        if answers and shown.count(b": ") > 2 - len(answers):
            os.write(terminal, answers.pop())
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown
    assert b"planted" not in shown and b"secret typed is set" in shown
    assert (Path(desk.root.secrets) / "typed").read_text() == "planted-typed"
