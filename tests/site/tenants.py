"""Two tenants without accounts: a cluster with their namespaces, and a spawner and a hub that know them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ffdl_batch.domain.access import Token, new_token, write_login
from ffdl_batch.domain.tenant import Tenant
from ffdl_batch.plugins import AdapterContext, create_adapter
from ffdl_batch.ports.capabilities import KeepsTenants
from tests.fakes.kubernetes.checkout import CONTROLLER_IMAGE
from tests.fakes.kubernetes.rig import FakeCluster, cluster
from tests.site.rig import ADDRESS, HUB, OUTSIDER, Host, Hub, Spawner, daemon_socket, ensure
from tests.site.shell import FFDL_ADMIN, Shell

TENANTS = {"vision": 300000, "speech": 300001}
CONFIG = """\
[backend]
default = "kubernetes"
[backend.kubernetes]
kubeconfig = "{place}/tenants.kubeconfig"
namespace = "{{user}}"
service_account = "ffdl-batch-learner"
network_policies = "enforced"
controller_image = "{image}"
python = "{python}"
run_as_user = 1000
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


@contextmanager
def tenant_cluster(place: Path, **knobs: Any) -> Iterator[FakeCluster]:
    """A cluster with a namespace for each tenant; its user `hub` may request their tokens."""
    with cluster(place, **knobs) as found:
        context = AdapterContext(str(place), "root", 0)
        keeper = create_adapter("kubernetes", {"kubeconfig": str(found.kubeconfig)}, context)
        assert isinstance(keeper, KeepsTenants)
        for name in TENANTS:
            keeper.create_tenant(Tenant(name, hub_user="hub"), adopt=False, update=False, remove=False)
        for directory in (found.place, found.authority.parent):
            directory.chmod(0o755)
        found.authority.chmod(0o644)
        yield found


@contextmanager
def tenant_site(host: Host, kubernetes: FakeCluster) -> Iterator[Hub]:
    """Spawner and hub. The operator has made the tenants; `TENANT@example.org` is a member of each."""
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "interactiveMode": "Never",
              "args": ["-I", "-m", "ffdl_batch.services.cluster_token"]}  # fmt: skip
    place = {"server": kubernetes.url, "certificate-authority": str(kubernetes.authority)}
    (host.place / "tenants.kubeconfig").write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": place}], "users": [{"name": "u", "user": {"exec": plugin}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }))  # fmt: skip
    text = CONFIG.format(place=host.place, image=CONTROLLER_IMAGE, python=sys.executable)
    (host.place / "config.toml").write_text(text)
    own = kubernetes.kubeconfig_of("hub")
    os.chown(own, HUB, HUB)
    own.chmod(0o600)
    shutil.rmtree(host.place / "hub", ignore_errors=True)
    host.environment["FFDL_CONFIG"] = str(host.place / "config.toml")
    host.configure(tenants=TENANTS, min_uid=1000)
    spawner = Spawner(host)
    hub = Hub(host, operators=["oskar"], kubeconfig=str(own))
    try:
        for tenant in TENANTS:
            operate(host, "tenant", "add", tenant)
            operate(host, "member", "add", tenant, f"{tenant}@example.org")
        yield hub
    finally:
        hub.close()
        spawner.close()


def operate(host: Host, *words: str) -> None:
    """Run `ffdl-admin` as the operator."""
    done = Shell(host, OUTSIDER).ffdl(*words, program=FFDL_ADMIN)
    assert done.returncode == 0, done


def log_in(host: Host, tenant: str, name: str = "") -> Token:
    """A token of a member of the tenant."""
    uid, token = TENANTS[tenant], new_token()
    assert ensure(host, uid, by=HUB) == f"ok {daemon_socket(host, uid)}"
    login = write_login(token, f"{name or tenant}@example.org").decode()
    assert host.python(LOGIN, str(daemon_socket(host, uid)), login, uid=HUB) == "200\n"
    return token


def far_shell(host: Host, hub: Hub, tenant: str, uid: int, name: str = "") -> Shell:
    """A member who has logged in at another machine, where the account `uid` does not matter."""
    shell = Shell(host, uid, is_near=False)
    words = ("login", f"https://{ADDRESS}:{hub.port}", "--ca", str(hub.certificate), "--token-stdin")
    done = shell.ffdl(*words, text=log_in(host, tenant, name).text)
    assert done.returncode == 0, done
    return shell


def cluster_token(kubernetes: FakeCluster, tenant: str) -> str:
    """The last token that the cluster has issued for the tenant's daemon."""
    account = f"system:serviceaccount:{tenant}:ffdl-batch-daemon"
    issued = [token for token, (user, _) in kubernetes.do("tokens").items() if user == account]
    return str(issued[-1])
