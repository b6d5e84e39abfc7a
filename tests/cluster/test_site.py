"""Site mode on a real cluster: hub, spawner and daemons on one login node, users on it and on another one, by munge."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.site_mode import ADDRESS, PORT, URL, Site, on_login2, running_site


@pytest.fixture(scope="module")
def site(cluster: Cluster, personal_job: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Hub and spawner, installed while alice has a personal daemon."""
    with running_site(cluster, tmp_path_factory.mktemp("certificate")) as running:
        yield running


@pytest.fixture
def ca(site: Site, alice: Person) -> str:
    """The certificate in a file of alice's."""
    return site.certificate(alice)


@pytest.fixture(scope="module")
def personal_job(alice: Person) -> str:
    """A running job of alice's personal daemon, which the site's daemon takes over."""
    job_id = alice.start("personal", "echo begun; while [ ! -e $RESULT_DIR/go ]; do sleep 0.5; done; echo ended")
    alice.until(job_id, {"PROCESSING"})
    return job_id


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
    alice.run("touch", f".local/state/ffdl/jobs/{personal_job}/attempt-1/results/go")
    assert on_login2(alice, "ffdl", "wait", personal_job, check=False).returncode == 0
    assert on_login2(alice, "ffdl", "logs", personal_job).stdout == "begun\nended\n"
    here = alice.run("ffdl", "list").stdout  # on ctl, by the spawner and without the hub
    assert job_id in here and personal_job in here and len(site.daemons("alice")) == 1
    assert any(line["caller"] == 2001 and line["what"] == "POST /api/v1/jobs" for line in site.audit())


@pytest.mark.full
def test_operator_sees_and_cancels_job_of_another_user_and_reads_no_log(
    site: Site, alice: Person, bob: Person, ca: str
) -> None:
    on_login2(alice, "ffdl", "login", URL, "--ca", ca)
    on_login2(bob, "ffdl", "login", URL, "--ca", site.certificate(bob))
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


DAMAGE = """
import os, random, sys
among, (own, other) = random.Random(7), sys.argv[1:]

def replace(path, make):
    try:
        os.unlink(path)
        make(path)
    except OSError:
        pass  # a controller replaces it at the same time

def fill(path):
    with open(path, "wb") as file:
        file.write(among.randbytes(5000))

def enlarge(path):
    with open(path, "wb") as file:
        file.truncate(1 << 40)

ways = [lambda path: os.symlink(other, path), os.mkfifo, os.mkdir, fill, enlarge]
for _ in range(60):
    found = [os.path.join(place, name) for place, below, names in os.walk(own) for name in (*below, *names)]
    files = [path for path in found if os.path.islink(path) or not os.path.isdir(path)]
    replace(among.choice(files), among.choice(ways))
"""
"""Replaces files of a user's own jobs, also by links to another user's."""


def test_forged_job_names_and_damaged_attempts_change_nothing_for_another_user(
    site: Site, alice: Person, bob: Person, ca: str
) -> None:
    for person in (alice, bob):
        on_login2(person, "ffdl", "login", URL, "--ca", ca if person is alice else site.certificate(person))
    command = "echo begun; while [ ! -e $RESULT_DIR/go ]; do sleep 1; done"
    victim, own = (
        person.submit(person.manifest("waits", command, gpus=0), person.model("empty", {"README": ""}), node="login2")
        for person in (alice, bob)
    )
    alice.until(victim, {"PROCESSING"})
    bob.until(own, {"PROCESSING"})
    row = bob.run("squeue", "-h", "-n", f"{victim}-1", "-o", "%A|%k|%u").stdout.strip()
    native, comment, user = row.split("|")
    assert (user, bool(comment)) == ("alice", True)
    line_of_alice = f"x\n2001|{native}|{victim}-1|FAILED|1:0"
    for name in (f"{victim}-1", f"{victim}-2", line_of_alice):
        bob.run("sbatch", "--mem=10M", f"--job-name={name}", f"--comment={comment}", "--wrap=exit 1", node="login2")
    logs = {person: Path(person.show(job)["logs"]).parent for person, job in ((alice, victim), (bob, own))}
    bob.run("/opt/ffdl/venv/bin/python3", "-c", DAMAGE, str(logs[bob].parent), str(logs[alice] / "results"))
    for _ in range(5):
        assert json.loads(on_login2(alice, "ffdl", "show", "--json", victim).stdout)["job"]["state"] == "PROCESSING"
        on_login2(bob, "ffdl", "show", own, check=False)
    assert set(alice.run("find", str(logs[alice]), "-printf", "%u\n").stdout.split()) == {"alice"}
    alice.run("touch", str(logs[alice] / "results/go"))
    ended = alice.finish(victim)
    assert (ended["state"], ended["exit_code"], ended["attempt"]) == ("COMPLETED", 0, 1), ended
    assert on_login2(alice, "ffdl", "logs", victim).stdout == "begun\n"
    assert own not in on_login2(alice, "ffdl", "list").stdout
    bob.run("scancel", f"--name={own}-1")
