"""ffdl-admin tenant against the tests' API server: made, made again, differing, somebody else's, forbidden, away."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import field
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.plugins import GROUP
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.settings import read_settings
from tests.fakes.kubernetes.rig import FakeCluster, cluster
from tests.unit.admin.conftest import run_admin

KINDS = ["Namespace", "ResourceQuota", "LimitRange", "NetworkPolicy", "ServiceAccount", "Role", "RoleBinding"]
REQUEST = ("--gpus", "8", "--cpus", "64", "--memory", "1TiB", "--storage", "2Ti", "--jobs", "50", "--user", "alice",
        "--group", "ml", "--service-account", "platform/ffdl-submitd", "--resource", "nvidia.com/mig-1g.10gb=4",
        "--label", "team=a")  # fmt: skip


@dataclass
class Desk:
    """An administrator's place."""

    place: Path
    k8s: FakeCluster
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    clients: list[ClusterClient] = field(default_factory=list)

    def configure(self, kubeconfig: Path | str) -> None:
        (self.place / "config.toml").write_text(
            f'[backend.kubernetes]\nkubeconfig = "{kubeconfig}"\nrequest_timeout_s = 60\n'
        )
        self.monkeypatch.setenv("FFDL_CONFIG", str(self.place / "config.toml"))

    def run(self, *words: str) -> tuple[int, str, str]:
        """Exit code, output, errors of ``ffdl-admin tenant``."""
        return run_admin(self.capsys, self.monkeypatch, "tenant", *words)

    def client(self, namespace: str) -> ClusterClient:
        settings = read_settings({"kubeconfig": str(self.k8s.kubeconfig), "namespace": namespace})
        self.clients.append(ClusterClient(settings))
        return self.clients[-1]


def _points(_group: str) -> Sequence[EntryPoint]:
    return [
        EntryPoint("kubernetes", "ffdl_kubernetes.adapter:create", GROUP),
        EntryPoint("local", "ffdl_local.adapter:create", GROUP),
    ]


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr("ffdl_batch.plugins.installed", _points)
    with cluster(tmp_path) as k8s:
        found = Desk(tmp_path, k8s, capsys, monkeypatch)
        found.configure(k8s.kubeconfig)
        yield found
        for client in found.clients:
            client.close()


def test_tenant_create_makes_objects_and_is_idempotent(desk: Desk) -> None:
    code, out, err = desk.run("create", "team-a", *REQUEST)
    assert (code, [line.split()[:2] for line in out.splitlines()]) == (0, [["made", kind] for kind in KINDS])
    assert 'namespace = "team-a", service_account = "ffdl-batch-learner"' in err and "No user" not in err
    assert "No user may submit there yet: name users with --update" in desk.run("create", "team-b")[2]
    found = desk.client("team-a").get("ResourceQuota", "ffdl-batch-daemon")
    assert found is not None and found["spec"]["hard"] == {
        "requests.nvidia.com/gpu": "8", "requests.cpu": "64", "requests.memory": str(1 << 40),
        "requests.storage": str(2 << 40), "count/jobs.batch": "50", "requests.nvidia.com/mig-1g.10gb": "4",
    }  # fmt: skip
    account = desk.client("team-a").get("ServiceAccount", "ffdl-batch-learner")
    assert account is not None and account["automountServiceAccountToken"] is False
    code, out, _ = desk.run("create", "team-a", *REQUEST)
    assert (code, [line.split()[:2] for line in out.splitlines()]) == (0, [["same", kind] for kind in KINDS])


def test_tenant_create_changes_differing_quota_only_with_update(desk: Desk) -> None:
    desk.run("create", "team-a", "--gpus", "8", "--cpus", "4")
    code, out, err = desk.run("create", "team-a", "--gpus", "16", "--remove")
    differing = next(line for line in out.splitlines() if "ResourceQuota" in line)
    assert code == 1 and differing.startswith("differs  ResourceQuota ffdl-batch-daemon: ")
    assert "requests.cpu is 4, wanted not limited" in differing
    assert "requests.nvidia.com/gpu is 8, wanted 16" in differing and "--update changes them" in err
    found = desk.client("team-a").get("ResourceQuota", "ffdl-batch-daemon")
    assert found is not None and found["spec"]["hard"]["requests.nvidia.com/gpu"] == "8"
    for words, hard in (
        ((), {"requests.nvidia.com/gpu": "16", "requests.cpu": "4"}),
        (("--remove",), {"requests.nvidia.com/gpu": "16"}),
    ):
        code, out, _ = desk.run("create", "team-a", "--gpus", "16", *words, "--update", "--json")
        steps = {one["about"].split()[0]: one["done"] for one in json.loads(out)["steps"]}
        assert code == 0 and steps["ResourceQuota"] == "changed" and steps["Namespace"] == "same"
        found = desk.client("team-a").get("ResourceQuota", "ffdl-batch-daemon")
        assert found is not None and found["spec"]["hard"] == hard


def test_tenant_create_limits_cpus_of_containers_and_keeps_limit_in_update(desk: Desk) -> None:
    limited = ("--cpu", "64", "--resource", "limits.cpu=128")
    assert desk.run("create", "team-a", *limited)[0] == 0
    client = desk.client("team-a")

    def amounts() -> tuple[object, object]:
        quota, limits = client.get("ResourceQuota", "ffdl-batch-daemon"), client.get("LimitRange", "ffdl-batch-daemon")
        assert quota is not None and limits is not None
        return quota["spec"]["hard"], limits["spec"]["limits"][0]["default"]

    made = ({"requests.cpu": "64", "limits.cpu": "128"}, {"cpu": "1", "memory": "1Gi"})
    assert amounts() == made
    for words in (limited, ("--cpu", "64")):
        assert desk.run("create", "team-a", *words, "--update")[0] == 0
        assert amounts() == made
    assert desk.run("create", "team-a", "--resource", "limits.cpu=8", "--update")[0] == 0
    assert amounts() == ({"requests.cpu": "64", "limits.cpu": "8"}, {"cpu": "1", "memory": "1Gi"})
    assert desk.run("create", "team-a", "--cpu", "64", "--update", "--remove")[0] == 0
    assert amounts() == ({"requests.cpu": "64"}, {"memory": "1Gi"})


def test_tenant_create_changes_foreign_namespace_only_with_adopt(desk: Desk) -> None:
    client = desk.client("research")
    client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "research", "labels": {"own": "x"}}})
    code, out, err = desk.run("create", "research")
    assert (code, out) == (1, "") and "Namespace research already exists and was not created by ffdl" in err
    assert "--adopt lets ffdl manage it" in err
    assert client.get("LimitRange", "ffdl-batch-daemon") is None
    code, out, _ = desk.run("create", "research", "--adopt")
    assert code == 0 and out.startswith("changed  Namespace research: label app.kubernetes.io/managed-by is not set")
    found = client.get("Namespace", "research")
    assert found is not None and found["metadata"]["labels"]["own"] == "x"
    assert found["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert desk.run("create", "research")[0] == 0


def test_tenant_create_rejects_invalid_names_amounts_and_labels(desk: Desk) -> None:
    for words, said in (
        (("Team_A",), "is not the name of a namespace"),
        (("kube-extra",), "the cluster's own"),
        (("a" * 64,), "up to 63"),
        (("team-a", "--memory", "lots"), "--memory: 'lots' is not a size"),
        (("team-a", "--resource", "x=much"), "is not an amount"),
        (("team-a", "--label", "x"), "write name=value"),
        (("team-a", "--print", "--label", "a b=c"), "a b=c is not a label"),
        (("team-a", "--label", "a=b c"), "a=b c is not a label"),
        (("team-a", "--label", "pod-security.kubernetes.io/enforce=privileged"), "set by this command itself"),
        (("team-a", "--label", "A.example.com/a=b"), "is not a label"),
        (("team-a", "--service-account", "a/b/c"), "write namespace/name"),
        (("team-a", "--service-account", "x"), "'x' is not a service account; write namespace/name"),
        (("team-a", "--service-account", ""), "--service-account: the value is empty"),
        (("team-a", "--memory", ""), "--memory: '' is not a size"),
        (("team-a", "--cpus", "nan"), "--cpus: 'nan' is not a number of 0 or more"),
        (("team-a", "--cpus", "inf"), "--cpus: 'inf' is not a number of 0 or more"),
        (("team-a", "--cpu", "many"), "--cpus: 'many' is not a number of 0 or more"),
        (("team-a", "--cpus", "-0.5"), "--cpus: '-0.5' is not a number of 0 or more"),
        (("team-a", "--gpus", "1.5"), "--gpus: '1.5' is not a whole number of 0 or more"),
        (("team-a", "--jobs", "-1"), "--jobs: '-1' is not a whole number of 0 or more"),
        (("team-a", "--resource", "a b=3"), "'a b' is not the name of a resource"),
        (("team-a", "--print", "--resource", "foo/bar/baz=3"), "'foo/bar/baz' is not the name of a resource"),
        (("team-a", "--resource", "limits.cpu=-1"), "'-1' is not an amount"),
        (("team-a", "--resource", "jobs=3"), "no quota can limit 'jobs'; write a resource such as cpu, limits.cpu or"),
        (("team-a", "--print", "--resource", "limits.pods=3"), "no quota can limit 'limits.pods'"),
        (("team-a", "--resource", "pods=1.5"), "'1.5' is not a whole number, and a quota counts pods"),
        (("team-a", "--resource", "count/secrets=500m"), "'500m' is not a whole number"),
        (("team-a", "--resource", "nvidia.com/gpu=0.5"), "'0.5' is not a whole number"),
        (("team-a", "--jobs", "3", "--resource", "count/jobs.batch=2"), "the limit count/jobs.batch is given twice"),
        (("team-a", "--resource", "limits.cpu=1", "--resource", "limits.cpu=2"), "limits.cpu is given twice"),
        (("team-a", "--cpus", "4", "--resource", "cpu=2"), "the limit requests.cpu is given twice"),
        (("team-a", "--label", "a=b", "--label", "a=c"), "--label: a is given twice"),
        (("team-a", "--user", ""), "'' is not the name of a user"),
        (("team-a", "--print", "--user", "ada", "--user", "bob "), "'bob ' is not the name of a user"),
        (("team-a", "--group", " "), "' ' is not the name of a group"),
    ):
        code, _, err = desk.run("create", *words)
        assert code == 2 and said in err, (words, err)
    assert desk.client("team-a").get("Namespace", "team-a") is None
    code, _, err = desk.run("permissions", "team-a", "--user", "")
    assert code == 2 and "'' is not the name of a user" in err


def test_tenant_create_prints_differences_in_plain_words(desk: Desk) -> None:
    desk.run("create", "team-a", "--user", "ada", "--user", "ada")
    code, out, _ = desk.run("create", "team-a", "--user", "bob", "--service-account", "ops/ffdl", "--update")
    assert code == 0 and (
        "changed  RoleBinding ffdl-batch-daemon: missing subjects: User bob, ServiceAccount ops/ffdl\n" in out
    )
    code, out, _ = desk.run("create", "team-a", "--user", "bob", "--remove")
    extra = "differs  RoleBinding ffdl-batch-daemon: extra subjects: User ada, ServiceAccount ops/ffdl\n"
    assert code == 1 and extra in out
    code, out, _ = desk.run("create", "team-a", "--debugging", "--resource", "limits.cpu=8")
    assert code == 1 and "Role ffdl-batch-daemon: missing rules: pods/exec [create get]\n" in out
    wanted = "LimitRange ffdl-batch-daemon: spec.limits[0].default.cpu is not set, wanted 1\n"
    assert wanted in out and "{" not in out


def test_tenant_create_exits_by_cause_without_permission_or_usable_cluster(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffdl_kubernetes.client.PAUSE_S", 0.0)
    desk.configure(desk.k8s.kubeconfig_of("mallory"))
    code, _, err = desk.run("create", "team-a")
    assert code == 77 and 'User "mallory" cannot get resource "namespaces"' in err and "--print" in err
    desk.configure(desk.k8s.kubeconfig)
    desk.k8s.stop()
    code, _, err = desk.run("create", "team-a")
    assert code == 75 and "cannot be reached" in err
    code, _, err = desk.run("create", "team-a", "--backend", "local")
    assert code == 69 and "the backend 'local' has no tenants" in err
    desk.configure("/nowhere/config")
    code, _, err = desk.run("create", "team-a")
    assert code == 69 and "no cluster is configured in /nowhere/config" in err


def test_tenant_create_print_writes_same_objects_without_cluster(desk: Desk) -> None:
    desk.run("create", "team-a", *REQUEST)
    desk.configure("/nowhere/config")
    code, out, _ = desk.run("create", "team-a", *REQUEST, "--print")
    objects = list(yaml.safe_load_all(out))
    assert code == 0 and [one["kind"] for one in objects] == KINDS and "&id" not in out
    client = desk.client("team-a")
    for one in objects:
        assert client.get(one["kind"], one["metadata"]["name"]) is not None
    code, out, _ = desk.run("permissions", "team-a", "--user", "alice")
    assert code == 0 and [one["kind"] for one in yaml.safe_load_all(out)] == ["Role", "RoleBinding"]


def test_tenant_create_update_adds_debugging_and_removes_it_only_with_remove(desk: Desk) -> None:
    assert desk.run("create", "team-a", *REQUEST)[0] == 0
    client, kinds = desk.client("team-a"), ("ResourceQuota", "RoleBinding")
    before = {kind: client.get(kind, "ffdl-batch-daemon") for kind in kinds}
    for words, changes, has in (
        (("--debugging",), True, True),
        (("--nodes",), False, True),
        ((), False, True),
        (("--remove",), True, False),
    ):
        code, said, _ = desk.run("create", "team-a", *words, "--update")
        assert (code, "changed  Role ffdl-batch-daemon" in said) == (0, changes), said
        role = client.get("Role", "ffdl-batch-daemon")
        assert role is not None
        assert (["pods/exec"] in [rule["resources"] for rule in role["rules"]]) == has
        assert {kind: client.get(kind, "ffdl-batch-daemon") for kind in kinds} == before


def test_tenant_create_update_adds_member_and_removes_others_only_with_remove(desk: Desk) -> None:
    desk.run("create", "team-a", "--user", "ada")
    for words, names in (((), ["ada", "bob"]), (("--remove",), ["bob"])):
        code, said, _ = desk.run("create", "team-a", "--user", "bob", *words, "--update")
        binding = desk.client("team-a").get("RoleBinding", "ffdl-batch-daemon")
        assert code == 0 and binding is not None and [one["name"] for one in binding["subjects"]] == names, said


def test_tenant_create_nodes_binds_existing_members_to_node_role(desk: Desk) -> None:
    assert desk.run("create", "team-a", *REQUEST)[0] == 0
    client = desk.client("team-a")
    binding = client.get("RoleBinding", "ffdl-batch-daemon")
    assert binding is not None and client.get("ClusterRole", "ffdl-batch-nodes") is None
    code, said, _ = desk.run("create", "team-a", "--nodes", "--update")
    assert code == 0 and "made     ClusterRoleBinding ffdl-batch-nodes-team-a" in said, said
    cluster_role, nodes = client.get("ClusterRole", "ffdl-batch-nodes"), "ffdl-batch-nodes-team-a"
    found = client.get("ClusterRoleBinding", nodes)
    assert cluster_role is not None and found is not None and found["subjects"] == binding["subjects"]
    assert {verb for rule in cluster_role["rules"] for verb in rule["verbs"]} == {"get", "list"}
    assert "ClusterRoleBinding" in desk.run("permissions", "team-b", "--user", "ada", "--nodes")[1]
