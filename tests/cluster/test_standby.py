"""Failover of the hub to another login node, on a real cluster."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.site_mode import Site, running_site

HOSTS = ("ctl", "login2")
SHARED, MOUNTED = "/shared/site-state", "/srv/site-state"
"""Where the state of users' daemons is, and where hosts mount it: only root may change the directories above it."""
STATE, BACKUP = f"{MOUNTED}/users", f"{MOUNTED}/hub.db"


def test_other_host_serves_jobs_tokens_and_tenants_after_loss_of_hub_host(
    cluster: Cluster, alice: Person, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    for node in HOSTS:
        cluster.run(node, ["sh", "-ec", f"mkdir -p {SHARED} {MOUNTED}; mount --bind {SHARED} {MOUNTED}"])
    second = Site(
        cluster, tmp_path / "second", operators=("ffdl",), node="login2", address="10.77.0.2", state_dir=STATE
    )
    try:
        with running_site(cluster, tmp_path / "first", operators=("ffdl",), state_dir=STATE) as first:
            assert first.as_hub("ffdl-admin", "tenant", "add", "vision").returncode == 0
            token = alice.run("ffdl", "token", "create", "laptop").stdout
            job_id = alice.start("long", "echo begun; while [ ! -e $RESULT_DIR/go ]; do sleep 0.2; done; echo ended")
            alice.until(job_id, {"PROCESSING"})
            results = alice.show(job_id)["results"]
            assert first.as_hub("ffdl-hub", "--backup", "/var/lib/ffdl-hub/copy").returncode == 0
            cluster.run("ctl", ["cp", "/var/lib/ffdl-hub/copy", BACKUP])
            first.lose()
            alice.run("touch", f"{results}/go", node="login2")

            began = time.monotonic()
            copy = ["install", "-o", "ffdl", "-g", "ffdl", "-m", "600", BACKUP, "/var/lib/ffdl-hub/hub.db"]
            cluster.run("login2", copy)
            second.start("spawner")
            second.start("hub")
            login = ("sh", "-c", f"ffdl login {second.url} --ca {second.certificate(alice)} --token-stdin <token2")
            alice.write("~/token2", token)
            refused = alice.run(*login, node="login2", check=False)
            assert refused.returncode == 75, refused
            cluster.run("login2", ["sh", "-c", f"rm {STATE}/*/state/daemon.lock"])
            alice.run(*login, node="login2")
            print(f"recovered after {time.monotonic() - began:.1f} s")
            env = {"FFDL_HUB": second.url}
            waited = alice.run("ffdl", "wait", "--timeout", "120", job_id, node="login2", env=env, check=False)
            assert waited.returncode == 0, waited
            assert alice.run("ffdl", "logs", job_id, node="login2", env=env).stdout == "begun\nended\n"
            assert "vision" in second.as_hub("ffdl-admin", "tenant", "list").stdout
            second.lose()
    finally:
        second.close()
        for node in HOSTS:
            cluster.run(node, ["umount", MOUNTED])
        cluster.run("ctl", ["rm", "-rf", SHARED])
