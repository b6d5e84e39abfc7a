"""The scene: three users submit from two login nodes by all ways while hub, spawner and daemons are killed."""

from __future__ import annotations

import itertools
import json
import os
import random
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.cluster.people import Completed, Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.rootfs import USERS
from tests.cluster.site_mode import URL, Site, on_login2
from tests.proof.site.verdict import Found, Run, Sent

CONFIG = """\
images_dirs = ["/shared/images"]
idle_exit_s = 60
[backend]
default = "slurm"
[backend.slurm]
python = "/opt/ffdl/venv/bin/python"
staging_python = "/opt/ffdl/venv/bin/python"
credential_life_s = 15
"""
MANIFEST = """\
name: {name}
cpus: 1
memory: 128MiB
learners: 1
framework:
  name: custom
  version: python-numpy
  command: |
    echo run >>$RESULT_DIR/runs
    echo "$(id -un) $JOB_VALUE"
    printf %s "$JOB_VALUE" | sha256sum | cut -c1-64 >$RESULT_DIR/digest
    sleep {seconds}
    exit {status}
batch:
  env: {{JOB_VALUE: {value}}}
  secrets: {{TOKEN: "${{secret:own}}"}}
"""
LISTS = """
for number in 1 2 3 4 5 6; do
    ffdl list >/dev/null 2>&1 || { sleep 2; ffdl list >/dev/null || echo failed; }
done
"""
"""Each request that fails is repeated once."""
SEED = 25
EACH = 4
"""Jobs of each user."""
UNDER_KILLS = 10
"""The same while programs are killed at random moments."""
BETWEEN_S = (0.1, 3.0)
"""Seconds between two of these moments."""
PATIENCE_S = 420
FAULTS = ("hub", "spawner", "daemon")
TENANTS = {"vision": ("alice", "bob"), "speech": ("carol",)}
FAILED = 7
"""Exit status of the last job of each user."""
LIMIT = 3
"""Live jobs that the tenant vision may have."""
OPERATOR = "ffdl"
"""An account of the hub's host with no jobs."""
REPORTED_S = 120
"""How long daemons may take until they have reported the last incidents."""
FORGET = """
import sqlite3
with sqlite3.connect("/var/lib/ffdl-hub/hub.db") as database:
    database.execute("DELETE FROM reported_incidents WHERE key IN (SELECT max(key) FROM reported_incidents)")
"""
FFDL_CLIENT = Path(__file__).with_name("ffdl_client.py").read_text()
BY_FFDL_API = "carol"
"""The user who submits by it through the hub."""
Say = Callable[[str], None]


class Scene:
    """`broken` names the fault to introduce: `roles` makes every user an operator; `audit` writes no audit; `twice`
    sends one job twice; `quota` sets no quota; `incident` removes an incident from the hub. `kills` is the number
    of kills at random moments; 0: one of each program, and then no request may fail that is repeated once, and there
    are tenants."""

    def __init__(self, cluster: Cluster, site: Site, broken: str, kills: int, say: Say) -> None:
        self.cluster, self.site, self._broken, self._kills, self._say = cluster, site, broken, kills, say
        self.people = {name: Person(cluster, name) for name in USERS}
        self.sent: list[Sent] = []
        self.secrets = {name: f"planted-{random.Random(f'{SEED}{name}').randbytes(8).hex()}" for name in USERS}
        self.failed_requests: list[str] = []
        self._operations = 0
        self._token = ""

    def run(self) -> Found:
        """Everything; what was found."""
        for name, person in self.people.items():
            self._say(f"{name} logs in")
            self._log_in(name, person)
        begun_at = time.time()
        if not self._kills:
            self._make_tenants()
        if self._kills:
            self._say(f"kills {self._kills} times at random moments")
            self._work_under_kills()
        else:
            self._work_under_faults()
        named = {name: self._listed(person) for name, person in self.people.items()}
        self.sent = [found for one in self.sent if (found := _resolve(one, named[one.user]))]
        self._say("waits for the jobs")
        for name, person in self.people.items():
            ids = [one.job for one in self.sent if one.user == name]
            self._ask(person, "ffdl", "wait", f"--timeout={PATIENCE_S}", *ids, fine=(0, FAILED))
        self._say("looks at everything")
        incidents, usage = ([], {}) if self._kills else (self._incidents(begun_at), self._usage(begun_at))
        return Found(
            sent=self.sent,
            results={one.job: self._result(one) for one in self.sent},
            listed={name: sorted(self._listed(person)) for name, person in self.people.items()},
            models=self._models(),
            trespasses=list(self._trespass()),
            audited=[line for line in self.site.audit() if float(line["audit"]) >= begun_at],
            slurm_jobs={name: self._slurm_jobs(name) for name in USERS},
            leaks=list(self._leaks()),
            failed_requests=self.failed_requests,
            uids=dict(USERS),
            limits={} if self._kills else {TENANTS["vision"]: LIMIT},
            runs=self._runs(begun_at),
            incidents=incidents,
            usage=usage,
            operations=0 if self._kills else self._operations,
        )

    def close(self) -> None:
        """Cancel what still runs."""
        for name in USERS:
            self.cluster.run("ctl", ["scancel", "-u", name], check=False)

    def _work_under_faults(self) -> None:
        """Send all jobs, and kill each program once."""
        for number in range(EACH):
            for name, person in self.people.items():
                self._send(name, person, number)
            if number < len(FAULTS):
                self._say(f"kills: {FAULTS[number]}")
                self._kill(FAULTS[number])
        self._say("restarts the hub while it is asked")
        self._restart_hub_under_load()

    def _work_under_kills(self) -> None:
        """Send jobs, and then ask for lists, until all kills are over. A request may fail with 75 here. A submission
        that fails so is not repeated: it has made one job, or none."""
        over = threading.Event()
        killer = threading.Thread(target=self._kill_at_random, args=(over,))
        killer.start()
        try:
            for number in itertools.count():
                for name, person in self.people.items():
                    if number < UNDER_KILLS:
                        self._send(name, person, number)
                    else:
                        self._note(person, on_login2(person, "ffdl", "list", check=False), "list")
                if over.is_set() and number >= UNDER_KILLS:
                    return
        finally:
            killer.join()

    def _kill_at_random(self, over: threading.Event) -> None:
        chance = random.Random(SEED)
        try:
            for _ in range(self._kills):
                time.sleep(chance.uniform(*BETWEEN_S))
                self._kill(chance.choice(FAULTS))
        finally:
            over.set()

    # --- what the operator does ----------------------------------------------------------------------------------

    def _make_tenants(self) -> None:
        for tenant, members in TENANTS.items():
            self._operate("tenant", "add", tenant)
            for name in members:
                self._operate("member", "add", tenant, name)
        if self._broken != "quota":
            self._operate("quota", "set", "vision", "jobs", str(LIMIT))

    def _operate(self, *words: str) -> None:
        done = self.site.as_hub("ffdl-admin", *words)
        assert done.returncode == 0, done
        self._operations += 1

    def _report(self, *words: str) -> Any:
        """A report of the operator about all users."""
        done = self.site.as_hub("ffdl", "report", *words, "--site", "--json")
        return json.loads(done.stdout or "{}")

    def _incidents(self, begun_at: float) -> list[str]:
        """The jobs of all incidents at the hub, after waiting for the expected number."""
        wanted = sum(one.status != 0 for one in self.sent)
        until = time.monotonic() + REPORTED_S
        while True:
            rows = self._report("faults", "--since", _moment(begun_at))["faults"]["rows"]
            if len(rows) >= wanted or time.monotonic() > until:
                break
            time.sleep(2)
        if self._broken == "incident":
            self.site.as_hub("python", "-c", FORGET)
            rows = self._report("faults", "--since", _moment(begun_at))["faults"]["rows"]
        return [row["job"] for row in rows]

    def _usage(self, begun_at: float) -> dict[str, float]:
        """CPU-seconds of each user in the report about all users."""
        found = self._report("usage", "--since", _moment(begun_at))["usage"]
        return {group["name"]: 3600 * group["cpu_hours"] for group in found["users"]}

    # --- what the users do ---------------------------------------------------------------------------------------

    def _log_in(self, name: str, person: Person) -> None:
        """Alice and bob by munge, carol by a token that she made on the hub's host."""
        person.write("~/.config/ffdl/config.toml", CONFIG)
        person.model("empty", {"README": "nothing here\n"})
        ca = self.site.certificate(person)
        if name == "carol":
            token = person.run("ffdl", "token", "create", "proof").stdout
            self._token = token.strip()
            place = person.write("~/token", token)
            login = f"ffdl login {URL} --ca {ca} --token-stdin <{place}; rm {place}"
            on_login2(person, "sh", "-c", login)
        else:
            on_login2(person, "ffdl", "login", URL, "--ca", ca)
        person.run("sh", "-c", f"printf %s {self.secrets[name]} | ffdl secret set own")

    def _send(self, name: str, person: Person, number: int) -> None:
        """Even numbers through the hub, odd ones on its own host."""
        value = f"{name}-{number}-{random.Random(f'{SEED}{name}{number}').randrange(10**9)}"
        status = FAILED if number == EACH - 1 and not self._kills else 0
        text = MANIFEST.format(name=f"{name}-{number}", value=value, seconds=5 + 3 * number, status=status)
        manifest = person.write(f"~/manifests/{name}-{number}.yml", text)
        argv: tuple[str, ...] = ("ffdl-submit", "--parsable", manifest, f"{person.home}/models/empty")
        through_hub = number % 2 == 0
        by_ffdl_api = through_hub and name == BY_FFDL_API
        if by_ffdl_api:
            argv = self._ffdl_client(person, "submit", manifest)
        times = 2 if self._broken == "twice" and (name, number) == ("bob", 1) else 1
        for _ in range(times):
            if self._kills:
                done = on_login2(person, *argv, check=False) if through_hub else person.run(*argv, check=False)
                self._note(person, done, "submit")
            else:
                done = self._ask(person, *argv) if through_hub else person.run(*argv)
        self.sent.append(Sent(name, done.stdout.strip(), value, through_hub, by_ffdl_api, status))

    def _ffdl_client(self, person: Person, *words: str) -> tuple[str, ...]:
        """The command of a client of FfDL's API on login2."""
        return (
            "/opt/ffdl/venv/bin/python",
            "-c",
            FFDL_CLIENT,
            URL,
            f"{person.home}/site-ca-ctl.pem",
            self._token,
            *words,
        )

    def _models(self) -> dict[str, Mapping[str, Any]]:
        """What FfDL's API shows of the jobs that were submitted by it."""
        person = self.people[BY_FFDL_API]
        jobs = [one.job for one in self.sent if one.by_ffdl_api]
        done = self._ask(person, *self._ffdl_client(person, "show", *jobs))
        return dict(json.loads(line) for line in done.stdout.splitlines())

    def _note(self, person: Person, done: Completed, what: str) -> None:
        """Note a request that failed in another way than one may under kills."""
        if done.returncode not in (0, 75):
            self.failed_requests.append(f"{person.name}: {what}: {done.returncode} {done.stderr[-300:]}")

    def _ask(self, person: Person, *argv: str, fine: Sequence[int] = (0,)) -> Completed:
        """A command on login2, which may be repeated once: then the hub or a daemon was just starting."""
        done = on_login2(person, *argv, check=False)
        if done.returncode == 75:
            time.sleep(2)
            done = on_login2(person, *argv, check=False)
        if done.returncode not in fine:
            self.failed_requests.append(
                f"{person.name}: {shlex.join(argv[:2])}: {done.returncode} {done.stderr[-300:]}"
            )
        return done

    def _kill(self, what: str) -> None:
        if what == "daemon":
            for name in USERS:
                for pid in self.site.daemons(name):
                    self.cluster.run("ctl", ["kill", "-KILL", pid], check=False)
            return
        self.site.kill(what)
        self.site.start(what)

    def _restart_hub_under_load(self) -> None:
        asking = [
            person.popen("sh", "-c", LISTS, node="login2", env={"FFDL_HUB": URL}) for person in self.people.values()
        ]
        time.sleep(1)
        self.site.kill("hub")
        self.site.start("hub")
        for name, process in zip(self.people, asking, strict=True):
            said, _ = process.communicate(timeout=300)
            self.failed_requests += [f"{name}: list during the restart: {line}" for line in said.splitlines()]

    # --- what is there afterwards ---------------------------------------------------------------------------------

    def _result(self, one: Sent) -> dict[str, object]:
        person = self.people[one.user]
        shown = on_login2(person, "ffdl", "show", "--json", one.job, check=False).stdout
        job = json.loads(shown)["job"] if shown else {}
        results = os.fspath(job.get("results") or "/nonexistent")
        read = self.cluster.run("ctl", ["sh", "-c", 'cat "$0/runs" "$0/digest"', results], user=one.user, check=False)
        return {
            "state": job.get("state"),
            "log": on_login2(person, "ffdl", "logs", one.job, check=False).stdout,
            "files": read.stdout.split(),
            "owner": self.cluster.run("ctl", ["stat", "-c", "%U", results], check=False).stdout.strip(),
        }

    def _listed(self, person: Person) -> dict[str, str]:
        """The names of a user's jobs, by id."""
        lines = on_login2(person, "ffdl", "list", "--limit=999", "--json", check=False).stdout
        return {job["id"]: job["name"] for line in lines.splitlines() for job in _jobs(json.loads(line))}

    def _trespass(self) -> Iterable[str]:
        """What a user got of another one."""
        for one in self.sent:
            for name, person in self.people.items():
                if name == one.user:
                    continue
                for argv in (
                    ("ffdl", "logs", one.job),
                    ("ffdl", "show", one.job),
                    ("ffdl", "--user", one.user, "show", one.job),
                    ("ffdl", "--user", one.user, "list"),
                ):
                    done = on_login2(person, *argv, check=False)
                    if done.returncode == 0 or one.value in done.stdout:
                        yield f"{name}: {shlex.join(argv)}: exit status {done.returncode}"
                break  # one other user is enough for each job

    def _slurm_jobs(self, name: str) -> list[str]:
        argv = ["sacct", "-n", "-X", "-P", "-u", name, "-S", "now-1hour", "-o", "JobName,State"]
        return self.cluster.run("ctl", argv).stdout.splitlines()

    def _runs(self, begun_at: float) -> list[Run]:
        """The jobs in Slurm's accounting since then, of all users."""
        fields = "User,JobName,Submit,Start,End,AllocTRES"
        argv = ["sacct", "-n", "-a", "-X", "-D", "-P", "-S", "now-1hour", "-o", fields]
        found = []
        for line in self.cluster.run("ctl", argv).stdout.splitlines():
            user, name, *moments, tres = line.split("|")
            submitted, began, ended = (0.0 if at in ("Unknown", "None") else _seconds(at) for at in moments)
            cpus = int(tres.partition("cpu=")[2].partition(",")[0] or 0)
            if ended >= int(begun_at) and began:
                found.append(Run(user, name, submitted, max(began, float(int(begun_at))), ended, cpus))
        return found

    def _leaks(self) -> Iterable[str]:
        """Files of hub and spawner that have a secret of a user."""
        for value in self.secrets.values():
            argv = ["grep", "-rlaF", value, "/var/lib/ffdl-hub", "/run/ffdl", "/run/ffdl-hub"]
            yield from self.cluster.run("ctl", argv, check=False).stdout.split()
            if value in self.site.log():
                yield "the journal of hub and spawner"


def _jobs(document: dict[str, object]) -> list[dict[str, str]]:
    found = document.get("jobs") or [document.get("job")]
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(int(at)))


def _seconds(moment: str) -> float:
    return time.mktime(time.strptime(moment, "%Y-%m-%dT%H:%M:%S"))


def _resolve(one: Sent, listed: Mapping[str, str]) -> Sent | None:
    """Return a submission with the job that it has made, although that was not reported; None if it has made none.

    It is unknown then whether the hub has passed it on, so the audit need not have it.
    """
    name = one.value.rpartition("-")[0]
    made = [job for job, of in listed.items() if of == name]
    if one.job or len(made) > 1:
        return one
    return replace(one, job=made[0], through_hub=False) if made else None
