"""The limits of tenants as Slurm's own: the commands that `ffdl-admin tenant slurm --print` prints."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from ffdl_batch.admin.site_tenants import sacctmgr_lines
from tests.cluster.people import Person
from tests.cluster.rig import Cluster

ACCOUNT = "vision"
TENANT = {
    "name": "vision",
    "weight": 2.0,
    "accounts": [ACCOUNT],
    "members": ["alice", "bob"],
    "quotas": [
        {"member": "", "resource": "gpus", "amount": 3.0},
        {"member": "", "resource": "gpus:a100", "amount": 2.0},
        {"member": "*", "resource": "jobs", "amount": 2.0},
        {"member": "alice", "resource": "jobs", "amount": 1.0},
    ],
}


@pytest.fixture
def account(cluster: Cluster) -> Iterator[str]:
    """An account of Slurm with two users."""
    cluster.run("ctl", ["sacctmgr", "-i", "add", "account", ACCOUNT, "Description=x", "Organization=x"])
    cluster.run("ctl", ["sacctmgr", "-i", "add", "user", "alice,bob", f"account={ACCOUNT}"])
    yield ACCOUNT
    cluster.run("ctl", ["sacctmgr", "-i", "remove", "user", "alice,bob", f"account={ACCOUNT}"])
    cluster.run("ctl", ["sacctmgr", "-i", "remove", "account", ACCOUNT])


def test_slurm_enforces_the_printed_limits_of_a_tenant_for_sbatch(
    cluster: Cluster, alice: Person, account: str
) -> None:
    for line in sacctmgr_lines(TENANT):
        cluster.run("ctl", shlex.split(line))
    fields = "User,Fairshare,GrpTRES,GrpSubmitJobs"
    shown = cluster.run("ctl", ["sacctmgr", "-nP", "show", "assoc", f"account={account}", f"format={fields}"]).stdout
    assert sorted(shown.split()) == ["alice|1||1", "bob|1||2", "|2|gres/gpu:a100=2,gres/gpu=3|"]
    argv = ["sbatch", "--parsable", f"--account={account}", "--hold", "--wrap=true"]
    first = alice.run(*argv).stdout.strip()
    try:
        refused = alice.run(*argv, check=False)
        assert refused.returncode != 0
        assert "AssocGrpSubmitJobsLimit" in refused.stderr
    finally:
        alice.run("scancel", first)
