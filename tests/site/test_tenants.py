"""Tenants without accounts: real spawner, hub and daemons, and a fake Kubernetes with a namespace for each tenant."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ffdl_batch.domain.access import Token, new_token, write_login
from ffdl_batch.domain.tenant import Tenant
from ffdl_batch.plugins import AdapterContext, create_adapter
from ffdl_batch.ports.capabilities import KeepsTenants
from tests.fakes.kubernetes.rig import FakeCluster, cluster
from tests.site.rig import ADA, ADDRESS, BOB, HUB, OUTSIDER, Host, Hub, Spawner
from tests.site.test_commands import FFDL_ADMIN, Shell
from tests.site.test_spawner import daemon_socket, ensure, field

TENANTS = {"vision": 300000, "speech": 300001}
CONFIG = """\
[backend]
default = "kubernetes"
[backend.kubernetes]
kubeconfig = "{place}/tenants.kubeconfig"
namespace = "{{user}}"
service_account = "ffdl-batch-learner"
network_policies = "enforced"
"""
LOGIN = """
import http.client, json, socket, sys
class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(sys.argv[1])
connection = Unix("daemon", timeout=300)
body = json.dumps({"login": sys.argv[2]})
connection.request("POST", "/api/v1/trusted-logins", body, {"Content-Type": "application/json"})
print(connection.getresponse().status)
"""
"""What the hub sends after a login by OpenID Connect."""
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
    """A cluster with a namespace for each tenant; its user `hub` may request their tokens."""
    with cluster(host.place) as found:
        context = AdapterContext(str(host.place), "root", 0)
        keeper = create_adapter("kubernetes", {"kubeconfig": str(found.kubeconfig)}, context)
        assert isinstance(keeper, KeepsTenants)
        for name in TENANTS:
            keeper.create_tenant(Tenant(name, hub_user="hub"), adopt=False, update=False, remove=False)
        for directory in (found.place, found.authority.parent):
            directory.chmod(0o755)
        found.authority.chmod(0o644)
        yield found


@pytest.fixture
def site(host: Host, kubernetes: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Spawner and hub, whose operator has made the tenants."""
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "interactiveMode": "Never",
              "args": ["-I", "-m", "ffdl_batch.services.cluster_token"]}  # fmt: skip
    place = {"server": kubernetes.url, "certificate-authority": str(kubernetes.authority)}
    (host.place / "tenants.kubeconfig").write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": place}], "users": [{"name": "u", "user": {"exec": plugin}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }))  # fmt: skip
    (host.place / "config.toml").write_text(CONFIG.format(place=host.place))
    own = kubernetes.kubeconfig_of("hub")
    os.chown(own, HUB, HUB)
    own.chmod(0o600)
    shutil.rmtree(host.place / "hub", ignore_errors=True)
    monkeypatch.setitem(host.environment, "FFDL_CONFIG", str(host.place / "config.toml"))
    monkeypatch.setenv("FFDL_CONFIG", str(host.place / "config.toml"))
    host.configure(tenants=TENANTS, min_uid=1000)
    spawner = Spawner(host)
    hub = Hub(host, operators=["oskar"], kubeconfig=str(own))
    operator = Shell(host, OUTSIDER)
    for tenant in TENANTS:
        for words in (("tenant", "add", tenant), ("member", "add", tenant, f"{tenant}@example.org")):
            done = operator.ffdl(*words, program=FFDL_ADMIN)
            assert done.returncode == 0, done
    yield hub
    hub.close()
    spawner.close()


def log_in(host: Host, tenant: str) -> Token:
    """A token of the tenant's member."""
    uid, token = TENANTS[tenant], new_token()
    assert ensure(host, uid, by=HUB) == f"ok {daemon_socket(host, uid)}"
    login = write_login(token, f"{tenant}@example.org").decode()
    assert host.python(LOGIN, str(daemon_socket(host, uid)), login, uid=HUB) == "200\n"
    return token


def member(host: Host, hub: Hub, tenant: str, uid: int) -> Shell:
    """A member at another machine, where the account does not matter."""
    shell = Shell(host, uid, is_near=False)
    for name, text in (("job.yml", JOB), ("ssh.yml", OVER_SSH), ("model/README", "nothing")):
        (shell.home / name).parent.mkdir(exist_ok=True)
        (shell.home / name).write_text(text)
    words = ("login", f"https://{ADDRESS}:{hub.port}", "--ca", str(hub.certificate), "--token-stdin")
    done = shell.ffdl(*words, text=log_in(host, tenant).text)
    assert done.returncode == 0, done
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
    token = member_token_of_cluster(kubernetes, "vision")
    for uid in TENANTS.values():
        assert not any(
            token in path.read_bytes() for path in Path(f"{host.place}/state/{uid}").rglob("*") if path.is_file()
        )


def member_token_of_cluster(kubernetes: FakeCluster, tenant: str) -> bytes:
    """The last token that the cluster has issued for the tenant's daemon."""
    account = f"system:serviceaccount:{tenant}:ffdl-batch-daemon"
    issued = [token for token, (user, _) in kubernetes.do("tokens").items() if user == account]
    return str(issued[-1]).encode()


def test_daemon_of_tenant_has_nothing_but_its_uid(host: Host, site: Hub, kubernetes: FakeCluster) -> None:
    log_in(host, "vision")
    uid = TENANTS["vision"]
    owner = host.place / f"state/{uid}/state"
    assert (owner.stat().st_uid, owner.stat().st_mode & 0o777) == (uid, 0o700)
    (pid,) = [int(line.name) for line in Path("/proc").glob("[0-9]*") if is_daemon_of(uid, line)]
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
