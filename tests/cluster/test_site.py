"""Site mode on a real cluster: hub, spawner and daemons on one login node, users on it and on another one, by munge."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.executions import wait_until
from tests.cluster.people import Completed, Person
from tests.cluster.rig import Cluster
from tests.fakes.certificates import certificate_for

ADDRESS, PORT, HUB = "10.77.0.1", 8443, 990
URL = f"https://{ADDRESS}:{PORT}"
SITE = f"""\
[spawner]
min_uid = 2000
systemd = false
environment = {{FFDL_HUB_SOCKET = "/run/ffdl-hub/hub.sock", PATH = "/opt/ffdl/venv/bin:/usr/local/bin:/usr/bin:/bin"}}

[hub]
listen = "{ADDRESS}:{PORT}"
certificate = "/etc/ffdl/hub/cert.pem"
key = "/etc/ffdl/hub/key.pem"
audit_file = "/var/lib/ffdl-hub/audit"
operators = ["bob"]
"""
PREPARE = f"""
set -eu
echo 'ffdl:x:{HUB}:{HUB}::/nonexistent:/usr/sbin/nologin' >>/etc/passwd; echo 'ffdl:x:{HUB}:' >>/etc/group
echo 'ffdl:*:19000:0:99999:7:::' >>/etc/shadow
printf 'account required pam_unix.so\\nsession required pam_limits.so\\n' >/etc/pam.d/ffdl-user
install -d -o ffdl -g ffdl -m 755 /run/ffdl-hub; install -d -o ffdl -g ffdl -m 700 /var/lib/ffdl-hub
install -d -m 755 /etc/ffdl /etc/ffdl/hub; cat >/etc/ffdl/site.toml
"""
PUT = 'umask 077; cat >"$0"; chown ffdl "$0"'
PYTHON = "/opt/ffdl/venv/bin/python3"


@dataclass
class Site:
    """The programs that run on ctl."""

    cluster: Cluster

    def daemons(self, name: str) -> list[str]:
        """Process ids of the daemons of a user that the spawner has started."""
        found = self.cluster.run("ctl", ["pgrep", "-u", name, "-f", "ffdl_batch.daemon.main --site"], check=False)
        return found.stdout.split()

    def audit(self) -> list[dict[str, object]]:
        text = self.cluster.run("ctl", ["cat", "/var/lib/ffdl-hub/audit"]).stdout
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Hub and spawner on ctl. What they write there is in the memory of the node."""
    place = tmp_path_factory.mktemp("certificate")
    files = certificate_for(ADDRESS, place)
    cluster.run("ctl", ["sh", "-c", PREPARE], input=SITE)
    for file in files:
        cluster.run("ctl", ["sh", "-c", PUT, f"/etc/ffdl/hub/{file.name}"], input=file.read_text())
    log = place / "log"
    started = []
    with log.open("w") as output:
        for argv in (
            [PYTHON, "-I", "-m", "ffdl_batch.site.spawner"],
            [
                "setpriv",
                f"--reuid={HUB}",
                f"--regid={HUB}",
                "--clear-groups",
                PYTHON,
                "-I",
                "-m",
                "ffdl_batch.site.hub.main",
            ],
        ):
            started.append(cluster.popen("ctl", argv, stdout=output.fileno(), cwd="/"))
    site = Site(cluster)
    try:
        listens = ["python3", "-c", f"import socket; socket.create_connection(('{ADDRESS}', {PORT}))"]
        wait_until(lambda: cluster.run("ctl", listens, check=False).returncode == 0, f"the hub: {log.read_text()}")
        yield site
    finally:
        for process in started:
            cluster.kill(process)
        for name in ("alice", "bob"):
            for pid in site.daemons(name):
                cluster.run("ctl", ["kill", pid], check=False)
            cluster.run("ctl", ["rm", "-f", f"/home/{name}/.config/ffdl/tokens.toml"])  # else they use this hub later
        cluster.run(
            "ctl", ["rm", "-rf", "/etc/ffdl", "/run/ffdl", "/run/ffdl-hub", "/var/lib/ffdl", "/var/lib/ffdl-hub"]
        )


@pytest.fixture
def ca(site: Site, alice: Person) -> str:
    """The certificate in a file of alice's."""
    return alice.write("~/site-ca.pem", site.cluster.run("ctl", ["cat", "/etc/ffdl/hub/cert.pem"]).stdout)


@pytest.fixture(scope="module")
def personal_job(alice: Person) -> str:
    """A job of alice's personal daemon, which the site's daemon knows nothing of."""
    job_id = alice.start("personal", "echo begun")
    assert alice.finish(job_id)["state"] == "COMPLETED"
    return job_id


@pytest.fixture(autouse=True)
def without_personal_daemons(personal_job: str, site: Site, alice: Person, bob: Person) -> None:
    for person in (alice, bob):
        person.kill_daemon("TERM")
    wait_until(lambda: alice.daemon() is None and bob.daemon() is None, "the end of the personal daemons")


def on_login2(person: Person, *argv: str, check: bool = True) -> Completed:
    return person.run(*argv, node="login2", check=check, env={"FFDL_HUB": URL})


def test_user_of_other_login_node_logs_in_by_munge_and_runs_job(
    site: Site, alice: Person, ca: str, personal_job: str
) -> None:
    done = on_login2(alice, "ffdl", "login", URL, "--ca", ca)
    assert "as alice (read, tokens, write), until 20" in done.stdout, done
    model = alice.model("empty", {"README": "nothing here\n"})
    manifest = alice.manifest("by-hub", "echo said by $(id -un)")
    job_id = on_login2(alice, "ffdl-submit", "--parsable", manifest, model).stdout.strip()
    assert on_login2(alice, "ffdl", "wait", job_id, check=False).returncode == 0, on_login2(
        alice, "ffdl", "show", job_id
    )
    assert "said by alice" in on_login2(alice, "ffdl", "logs", job_id).stdout
    assert len(site.daemons("alice")) == 1 and alice.daemon() is None
    here = alice.run("ffdl", "list").stdout  # on ctl, by the spawner and without the hub
    assert job_id in here and personal_job not in here and len(site.daemons("alice")) == 1
    assert any(line["caller"] == 2001 and line["what"] == "POST /api/v1/jobs" for line in site.audit())


def test_operator_sees_and_cancels_job_of_another_user_and_reads_no_log(
    site: Site, alice: Person, bob: Person, ca: str
) -> None:
    on_login2(alice, "ffdl", "login", URL, "--ca", ca)
    on_login2(bob, "ffdl", "login", URL, "--ca", bob.write("~/site-ca.pem", alice.read(ca)))
    model = alice.model("empty", {"README": "nothing here\n"})
    manifest = alice.manifest("long", "echo begun; sleep 600")
    job_id = on_login2(alice, "ffdl-submit", "--parsable", manifest, model).stdout.strip()
    assert job_id in on_login2(bob, "ffdl", "--user", "alice", "list").stdout
    assert job_id not in on_login2(bob, "ffdl", "list").stdout
    assert on_login2(alice, "ffdl", "--user", "bob", "list", check=False).returncode == 77
    assert on_login2(bob, "ffdl", "--user", "alice", "cancel", job_id).returncode == 0
    assert on_login2(alice, "ffdl", "wait", job_id, check=False).returncode != 0
    assert "CANCELLED" in on_login2(alice, "ffdl", "show", job_id).stdout


def test_munge_credential_proves_nobody_else_and_works_once(site: Site, bob: Person, tmp_path: Path) -> None:
    """Bob takes what a login of his would send, and sends it twice, or names alice's daemon."""
    script = f"""
import http.client, json, os, ssl, hashlib, subprocess
from ffdl_batch.domain.access import new_token, write_login
from ffdl_batch.host import munge
context = ssl._create_unverified_context()
def ask(path, body=None):
    connection = http.client.HTTPSConnection("{ADDRESS}", {PORT}, context=context)
    connection.connect()
    seen = hashlib.sha256(connection.sock.getpeercert(binary_form=True)).hexdigest()
    connection.request("POST", "/api/site/v1/logins" + path, json.dumps(body) if body else "")
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read()), seen
def login(reader, times=1):
    _, begun, seen = ask("")
    payload = f"ffdl-login {{begun['nonce']}} {{seen}}".encode()
    body = {{"to_hub": munge.encode(payload, reader=begun["hub_uid"]),
             "to_daemon": munge.encode(write_login(new_token(), "x"), reader=reader)}}
    found = [ask("/" + begun["nonce"], body)[0]]
    _, begun, _ = ask("")
    found.append(ask("/" + begun["nonce"], body)[0])
    return found
print(json.dumps([login(os.getuid()), login(2001)]))
"""
    done = bob.run("/opt/ffdl/venv/bin/python3", "-c", script, node="login2")
    own, other = json.loads(done.stdout)
    assert own == [200, 401]  # the second is another login, and a replayed credential
    assert other == [401, 401]  # bob's daemon cannot decode what alice's could
