"""Tenants without accounts: real spawner, hub and daemons, and a fake Kubernetes with a namespace for each tenant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ffdl_batch.plugins import AdapterContext, create_adapter
from ffdl_batch.ports.capabilities import KeepsTenants
from tests.fakes.kubernetes.rig import FakeCluster
from tests.site.rig import ADA, BOB, HUB, Host, Hub, Spawner, ensure
from tests.site.shell import Shell
from tests.site.tenants import TENANTS, cluster_token, far_shell, log_in, tenant_cluster, tenant_site
from tests.site.test_spawner import field

JOB = """\
name: job
framework: {name: custom, version: registry.example.org/image:1, command: "true"}
"""
OVER_SSH = f"""\
{JOB}data_stores:
- id: far
  type: fsspec_datastore
  training_data: {{container: data}}
  connection: {{protocol: sftp, host: data.example.org, path: /srv}}
"""


@pytest.fixture(scope="module")
def kubernetes(host: Host) -> Iterator[FakeCluster]:
    with tenant_cluster(host.place) as found:
        yield found


@pytest.fixture
def site(host: Host, kubernetes: FakeCluster) -> Iterator[Hub]:
    with tenant_site(host, kubernetes) as hub:
        yield hub


def member(host: Host, hub: Hub, tenant: str, uid: int) -> Shell:
    """A member at another machine, with files to submit."""
    shell = far_shell(host, hub, tenant, uid)
    for name, text in (("job.yml", JOB), ("ssh.yml", OVER_SSH), ("model/README", "nothing")):
        (shell.home / name).parent.mkdir(exist_ok=True)
        (shell.home / name).write_text(text)
    return shell


def test_members_use_daemon_of_their_tenant_in_its_namespace_and_reach_no_other(
    host: Host, site: Hub, kubernetes: FakeCluster
) -> None:
    ada, bob = member(host, site, "vision", ADA), member(host, site, "speech", BOB)
    submitted = ada.ffdl("submit", "--parsable", f"{ada.home}/job.yml", f"{ada.home}/model")
    assert submitted.returncode == 0, submitted
    job_id = submitted.stdout.strip()
    shown = json.loads(ada.ffdl("show", "--json", job_id).stdout)["job"]
    assert (shown["user"], shown["backend"]) == ("vision@example.org", "kubernetes")
    ada.ffdl("wait", "--for", "queued", "--timeout", "100", job_id)
    names = {
        tenant: [one["metadata"]["name"] for one in
                 kubernetes.ask("GET", f"apis/batch/v1/namespaces/{tenant}/jobs")["items"]]
        for tenant in TENANTS
    }  # fmt: skip
    assert names == {"vision": [f"{job_id}-1"], "speech": []}
    assert bob.ffdl("show", job_id).returncode == 1
    assert job_id not in bob.ffdl("list").stdout
    for words, why in (
        (("--backend=local", f"{ada.home}/job.yml"), "may not start jobs of the backend local"),
        (("--backend=slurm", f"{ada.home}/job.yml"), "backend 'slurm' is not allowed"),
        ((f"{ada.home}/ssh.yml",), "fsspec stores and ca_file are not allowed"),
    ):
        refused = ada.ffdl("submit", *words, f"{ada.home}/model")
        assert (refused.returncode != 0, why in refused.stderr) == (True, True), refused
    assert {(line["caller"], line["user"]) for line in site.audit() if line["what"] == "POST /api/v1/jobs"} == {
        (TENANTS["vision"], TENANTS["vision"])
    }
    token = cluster_token(kubernetes, "vision").encode()
    for uid in TENANTS.values():
        assert not any(
            token in path.read_bytes() for path in Path(f"{host.place}/state/{uid}").rglob("*") if path.is_file()
        )


def test_daemon_of_tenant_has_nothing_but_its_uid(host: Host, site: Hub, kubernetes: FakeCluster) -> None:
    log_in(host, "vision")
    uid = TENANTS["vision"]
    owner = host.place / f"state/{uid}/state"
    assert (owner.stat().st_uid, owner.stat().st_mode & 0o777) == (uid, 0o700)
    (pid,) = daemons_of(uid)
    assert field(pid, "Uid") == [str(uid)] * 4
    assert field(pid, "Groups") == [str(uid)]
    environ = dict(part.split("=", 1) for part in Path(f"/proc/{pid}/environ").read_text().split("\0") if part)
    assert (environ["USER"], environ["HOME"], environ["FFDL_TENANT"]) == ("vision", str(owner), "vision")
    with pytest.raises(AssertionError, match="cannot"):
        own = kubernetes.kubeconfig_of("hub")
        scheduler = create_adapter("kubernetes", {"kubeconfig": str(own), "namespace": "kube-system"},
                                   AdapterContext(str(host.place), "hub", HUB))  # fmt: skip
        assert isinstance(scheduler, KeepsTenants)
        try:
            scheduler.daemon_token(600)
        except Exception as error:
            raise AssertionError(str(error)) from error


def daemons_of(uid: int) -> list[int]:
    """Process ids, without those of programs that a daemon starts at this moment: they have its command line until they
    are executed."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        if is_daemon_of(uid, process):
            with suppress(FileNotFoundError, ProcessLookupError):
                found[int(process.name)] = int(field(int(process.name), "PPid")[0])
    return [pid for pid, parent in found.items() if parent not in found]


def is_daemon_of(uid: int, process: Path) -> bool:
    """Whether a process below /proc is the daemon of this user, and not a program that it has started."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return process.stat().st_uid == uid and b"ffdl_batch.daemon.main" in (process / "cmdline").read_bytes()
    return False


@pytest.mark.parametrize(
    ("tenants", "uid", "why"),
    [
        ({"vision": 300000}, 300001, "refused"),
        ({"ada": ADA}, ADA, "account or group"),
        ({"vision": 110000}, 110000, "in a range of /etc/subuid"),
        ({"vision": 61184}, 61184, "is in a reserved range"),
        ({"vision": 524288}, 524288, "is in a reserved range"),
        ({"a b": 300000}, 300000, "invalid name"),
    ],
)
def test_spawner_starts_no_daemon_for_tenant_whose_uid_may_belong_to_others(
    host: Host, tenants: dict[str, int], uid: int, why: str
) -> None:
    host.configure(tenants=tenants)
    spawner = Spawner(host)
    try:
        answer = ensure(host, uid, by=HUB)
        assert (answer.startswith("refused "), why in answer, spawner.daemons()) == (True, True, []), answer
        assert ensure(host, 300000, by=ADA).startswith("refused user")
    finally:
        spawner.close()
