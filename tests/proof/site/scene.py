"""The scene: three users submit from two login nodes by all ways while hub, spawner and daemons are killed."""

from __future__ import annotations

import itertools
import json
import os
import random
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tests.cluster.people import Completed, Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.rootfs import USERS
from tests.cluster.site_mode import URL, Site, on_login2
from tests.proof.site.verdict import Found, Sent

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
Say = Callable[[str], None]


class Scene:
    """`broken` names the check that is taken away: `roles`, everybody is an operator; `audit`, no audit is written;
    `twice`, one of the jobs is sent twice. `kills` is the number of kills at random moments; 0: one of each program,
    and then no request may fail that is repeated once."""

    def __init__(self, cluster: Cluster, site: Site, broken: str, kills: int, say: Say) -> None:
        self.cluster, self.site, self._broken, self._kills, self._say = cluster, site, broken, kills, say
        self.people = {name: Person(cluster, name) for name in USERS}
        self.sent: list[Sent] = []
        self.secrets = {name: f"planted-{random.Random(f'{SEED}{name}').randbytes(8).hex()}" for name in USERS}
        self.failed_requests: list[str] = []

    def run(self) -> Found:
        """Everything; what was found."""
        for name, person in self.people.items():
            self._say(f"{name} logs in")
            self._log_in(name, person)
        begun_at = time.time()
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
            self._ask(person, "ffdl", "wait", f"--timeout={PATIENCE_S}", *ids)
        self._say("looks at everything")
        return Found(
            sent=self.sent,
            results={one.job: self._result(one) for one in self.sent},
            listed={name: sorted(self._listed(person)) for name, person in self.people.items()},
            trespasses=list(self._trespass()),
            audited=[line for line in self.site.audit() if float(line["audit"]) >= begun_at],
            slurm_jobs={name: self._slurm_jobs(name) for name in USERS},
            leaks=list(self._leaks()),
            failed_requests=self.failed_requests,
            uids=dict(USERS),
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

    # --- what the users do ---------------------------------------------------------------------------------------

    def _log_in(self, name: str, person: Person) -> None:
        """Alice and bob by munge, carol by a token that she made on the hub's host."""
        person.write("~/.config/ffdl/config.toml", CONFIG)
        person.model("empty", {"README": "nothing here\n"})
        ca = self.site.certificate(person)
        if name == "carol":
            token = person.run("ffdl", "token", "create", "proof").stdout
            place = person.write("~/token", token)
            login = f"ffdl login {URL} --ca {ca} --token-stdin <{place}; rm {place}"
            on_login2(person, "sh", "-c", login)
        else:
            on_login2(person, "ffdl", "login", URL, "--ca", ca)
        person.run("sh", "-c", f"printf %s {self.secrets[name]} | ffdl secret set own")

    def _send(self, name: str, person: Person, number: int) -> None:
        """Even numbers through the hub, odd ones on its own host."""
        value = f"{name}-{number}-{random.Random(f'{SEED}{name}{number}').randrange(10**9)}"
        text = MANIFEST.format(name=f"{name}-{number}", value=value, seconds=5 + 3 * number)
        manifest = person.write(f"~/manifests/{name}-{number}.yml", text)
        argv = ("ffdl-submit", "--parsable", manifest, f"{person.home}/models/empty")
        through_hub = number % 2 == 0
        times = 2 if self._broken == "twice" and (name, number) == ("bob", 1) else 1
        for _ in range(times):
            if self._kills:
                done = on_login2(person, *argv, check=False) if through_hub else person.run(*argv, check=False)
                self._note(person, done, "submit")
            else:
                done = self._ask(person, *argv) if through_hub else person.run(*argv)
        self.sent.append(Sent(name, done.stdout.strip(), value, through_hub))

    def _note(self, person: Person, done: Completed, what: str) -> None:
        """Note a request that failed in another way than one may under kills."""
        if done.returncode not in (0, 75):
            self.failed_requests.append(f"{person.name}: {what}: {done.returncode} {done.stderr[-300:]}")

    def _ask(self, person: Person, *argv: str) -> Completed:
        """A command on login2, which may be repeated once: then the hub or a daemon was just starting."""
        done = on_login2(person, *argv, check=False)
        if done.returncode == 75:
            time.sleep(2)
            done = on_login2(person, *argv, check=False)
        if done.returncode != 0:
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


def _resolve(one: Sent, listed: Mapping[str, str]) -> Sent | None:
    """Return a submission with the job that it has made, although that was not reported; None if it has made none.

    It is unknown then whether the hub has passed it on, so the audit need not have it.
    """
    name = one.value.rpartition("-")[0]
    made = [job for job, of in listed.items() if of == name]
    if one.job or len(made) > 1:
        return one
    return replace(one, job=made[0], through_hub=False) if made else None
