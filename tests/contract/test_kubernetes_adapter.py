"""The Kubernetes adapter against the tests' API server, without a kubelet: requests, watches, permissions, refusals."""

from __future__ import annotations

import base64
import copy
import json
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.backend_facts import Absent
from ffdl_batch.domain.job.job import JobId, attempt_token, new_job_id
from ffdl_batch.domain.job.spec import BatchOptions, Framework, ImageLocation, JobSpec, NetworkLevel, Resources
from ffdl_batch.domain.outcome.continuation import Budget
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.domain.scheduler_errors import InvalidRequest, NotNow, SchedulerError, SubmissionUncertain
from ffdl_batch.domain.tenant import Tenant
from ffdl_batch.plugins import AdapterContext
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_kubernetes.adapter import KubernetesScheduler, create
from ffdl_kubernetes.api_errors import TooManyJobs
from ffdl_kubernetes.client import MERGE, ClusterClient
from ffdl_kubernetes.objects.carried_files import CARRIED_BYTES
from ffdl_kubernetes.objects.pod_files import PART_BYTES
from ffdl_kubernetes.objects.pod_template import model_volume
from ffdl_kubernetes.observing import cluster_watch
from ffdl_kubernetes.settings import read_settings
from ffdl_kubernetes.tenancy.tenant_objects import tenant_objects
from tests.fakes.kubernetes.rig import FakeCluster, cluster, node

WAIT_S = 90.0


class Site:
    """A cluster, an adapter, and a tree of jobs."""

    def __init__(self, base: Path, k8s: FakeCluster) -> None:
        self.base, self.k8s, self.root = base, k8s, Root(str(base / "tree"))
        self.settings: dict[str, object] = {
            "kubeconfig": str(k8s.kubeconfig), "run_as_user": 1000, "request_timeout_s": 60,
            "network_policies": "enforced",
        }  # fmt: skip
        self.made: list[KubernetesScheduler] = []
        self.administrator = ClusterClient(read_settings({"kubeconfig": str(k8s.kubeconfig)}))
        self.scheduler = self.start()

    def start(self, **changes: object) -> KubernetesScheduler:
        """An adapter as a daemon that was started again has it."""
        context = AdapterContext(self.root.path, "alice", 1000)
        self.made.append(create({**self.settings, **changes}, context))
        return self.made[-1]

    def plan(self, **changes: Any) -> LaunchPlan:
        """An attempt of a new job, its files written."""
        job = JobId(new_job_id())
        spec = JobSpec(
            "digits",
            Framework("custom", "python:3", "python3 train.py"),
            resources=changes.pop("resources", Resources(cpus=0.5, memory_bytes=256 * 1024**2)),
            batch=changes.pop("batch", BatchOptions()),
        )
        directory = self.root.job(job)
        request = LaunchRequest(
            job_id=job, attempt=1, token=attempt_token(job, 1), spec=spec, job_dir=directory,
            attempt_dir=directory.attempt(1), doorbell=self.root.doorbell, facts=self.scheduler.probe(),
            image="python:3", user_env={"API_KEY": "planted-value"}, budget=Budget(),
        )  # fmt: skip
        plan = self.scheduler.plan(replace(request, **changes))
        attempt = Path(plan.attempt_dir.path)
        attempt.mkdir(parents=True, mode=0o700)
        with zipfile.ZipFile(directory.model_archive, "w") as archive:
            archive.writestr("train.py", "print('model')\n")
        for file in plan.files:
            (attempt / file.name).write_text(file.text)
        return plan

    def observe(self, native: NativeId) -> Observation:
        return self.scheduler.observe([native])[native]

    def wait(self, native: NativeId, until: Callable[[Observation], bool] = lambda _: True) -> Observation:
        """Return what is observed of the job, once it is observed and `until` holds."""
        end = time.monotonic() + WAIT_S
        while (seen := self.scheduler.observe([native]).get(native)) is None or not until(seen):
            assert time.monotonic() < end, seen
            time.sleep(0.05)
        return seen

    def job(self, token: str) -> dict[str, Any]:
        """Return the Job of an attempt."""
        found = self.administrator.get("Job", token)
        assert found is not None, token
        return found

    def pods(self, token: str) -> list[dict[str, Any]]:
        return self.administrator.list("Pod", {"labelSelector": f"batch.kubernetes.io/job-name={token}"})[0]

    def set_status(self, token: str, **status: object) -> None:
        """Give the pods of an attempt this status, as kubelets do."""
        for pod in self.pods(token):
            path = f"api/v1/namespaces/{self.k8s.namespace}/pods/{pod['metadata']['name']}/status"
            self.administrator._ask("PATCH", path, body={"status": status}, content=MERGE)

    def admin(self) -> ClusterClient:
        return self.administrator

    def close(self) -> None:
        self.administrator.close()
        for one in self.made:
            one.close()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr("ffdl_kubernetes.client.PAUSE_S", 0.0)
    with cluster(tmp_path, nodes=[node("n1", gpus=1)]) as k8s:
        found = Site(tmp_path, k8s)
        try:
            yield found
        finally:
            found.close()


def test_kubernetes_probe_reports_version_namespace_and_network_levels(site: Site) -> None:
    facts = site.scheduler.probe()
    assert facts.version.startswith("Kubernetes v1.") and facts.partitions[0].name == site.k8s.namespace
    assert facts.pulls_images
    assert site.start(network_policies="").probe().network_levels == frozenset({NetworkLevel.HOST})


def test_kubernetes_submit_creates_job_that_owns_its_other_objects_and_variables_only_in_secret(site: Site) -> None:
    plan = site.plan(resources=Resources(learners=2, cpus=0.5, memory_bytes=256 * 1024**2))
    assert "planted-value" not in json.dumps(plan.objects)
    native = site.scheduler.submit(plan)
    assert native == NativeId(plan.token)
    seen = site.wait(native, lambda one: bool(one.nodes))
    assert (seen.phase, seen.nodes, seen.name) == (Phase.PENDING, "n1", plan.token)
    admin = site.admin()
    job = site.job(plan.token)
    found = {kind: admin.get(kind, plan.token) for kind in ("ConfigMap", "Secret", "NetworkPolicy")}
    for kind, one in found.items():
        assert one is not None, kind
        assert [owner["uid"] for owner in one["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    assert "planted-value" not in json.dumps(found["ConfigMap"])
    assert found["Secret"] is not None and "environment.json" in found["Secret"]["data"]


def requests_of(site: Site) -> dict[str, int]:
    """What was asked since the last call, without lists and watches."""
    asked = site.k8s.counts(reset=True)
    return {what: count for what, count in asked.items() if what.startswith(("create", "get", "patch", "delete"))}


def test_kubernetes_submit_makes_small_job_by_one_request_beside_shared_policy(site: Site) -> None:
    first, second, third = (site.plan(user_env={}) for _ in range(3))
    requests_of(site)
    site.scheduler.submit(first)
    assert requests_of(site) == {"get networkpolicies": 1, "create networkpolicies": 1, "create jobs": 1}
    site.scheduler.submit(second)
    assert requests_of(site) == {"create jobs": 1}
    site.start().submit(third)
    assert requests_of(site) == {"get networkpolicies": 1, "create jobs": 1}
    job = site.job(second.token)
    template = job["spec"]["template"]
    assert not job["spec"]["suspend"] and "private" not in [one["name"] for one in template["spec"]["volumes"]]
    (policy,) = site.admin().list("NetworkPolicy", {})[0]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert "ownerReferences" not in policy["metadata"]
    assert site.admin().list("ConfigMap", {})[0] == []
    archive = Path(site.root.job(second.launch.job_id).model_archive).read_bytes()
    carried = template["metadata"]["annotations"]
    assert base64.b64decode(carried["ffdl-batch/model.zip.base64"]) == archive
    assert carried["ffdl-batch/launch.json"] == second.objects[1]["data"]["launch.json"]  # type: ignore[index]
    seen = site.wait(NativeId(second.token), lambda one: bool(one.nodes))
    known = site.scheduler._watcher.job(second.token)
    assert seen.phase is Phase.PENDING and known is not None
    kept = known["spec"]["template"]["metadata"]["annotations"]
    assert "ffdl-batch/name" in kept and not any("model" in key for key in kept), "the daemon keeps no copy of models"


def test_kubernetes_submit_asks_once_for_policy_of_jobs_that_begin_together(site: Site) -> None:
    plans = [site.plan(user_env={}) for _ in range(4)]
    requests_of(site)
    with ThreadPoolExecutor(len(plans)) as pool:
        found = list(pool.map(site.scheduler.submit, plans))
    assert found == [NativeId(plan.token) for plan in plans]
    assert requests_of(site) == {"get networkpolicies": 1, "create networkpolicies": 1, "create jobs": len(plans)}


def test_kubernetes_submit_makes_config_map_of_suspended_job_for_model_that_no_annotation_holds(site: Site) -> None:
    plan = site.plan(user_env={})
    Path(site.root.job(plan.launch.job_id).model_archive).write_bytes(b"x" * CARRIED_BYTES)
    requests_of(site)
    site.scheduler.submit(plan)
    assert requests_of(site) == {
        "get networkpolicies": 1, "create networkpolicies": 1, "create jobs": 1, "create configmaps": 1,
        "patch jobs": 1,
    }  # fmt: skip
    assert site.admin().get("ConfigMap", plan.token) is not None and not site.job(plan.token)["spec"]["suspend"]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_kubernetes_submit_creates_no_job_before_shared_policy_exists(site: Site, method: str) -> None:
    plan = site.plan(user_env={})
    site.k8s.fault("status", method=method, path="/networkpolicies", code=500, count=50)
    with pytest.raises(SchedulerError):
        site.scheduler.submit(plan)
    assert site.admin().get("Job", plan.token) is None
    site.k8s.do("clear_faults")
    site.start().submit(plan)
    assert len(site.admin().list("NetworkPolicy", {})[0]) == 1 and not site.job(plan.token)["spec"]["suspend"]


def test_kubernetes_submit_waits_while_shared_policy_allows_something_else(site: Site) -> None:
    site.scheduler.submit(site.plan(user_env={}))
    (policy,) = site.admin().list("NetworkPolicy", {})[0]
    name = policy["metadata"]["name"]
    site.admin().patch("NetworkPolicy", name, {"spec": {"egress": [{}]}})
    plan, later = site.plan(user_env={}), site.start()
    with pytest.raises(NotNow, match=f"{name} was changed, and jobs rely on its rules: delete it"):
        later.submit(plan)
    assert site.admin().get("Job", plan.token) is None
    site.admin().delete("NetworkPolicy", name)
    assert later.submit(plan) == NativeId(plan.token)
    assert site.admin().list("NetworkPolicy", {})[0][0]["spec"].get("egress", []) == []


def test_kubernetes_find_completes_suspended_job_of_earlier_release(site: Site) -> None:
    """It was created before its ConfigMap, and its daemon died in between."""
    plan = site.plan(user_env={})
    site.admin().create({**plan.objects[0]})
    assert site.scheduler.find(plan.token, plan.attempt_dir) == {NativeId(plan.token)}
    assert not site.job(plan.token)["spec"]["suspend"]
    assert site.admin().get("ConfigMap", plan.token) is not None and site.admin().list("NetworkPolicy", {})[0]


@pytest.mark.parametrize("older", [False, True])
def test_kubernetes_submit_uses_model_configmaps_for_large_model_or_older_job(site: Site, older: bool) -> None:
    """`older`: the Job was made, and never let go, by a daemon that gave every model ConfigMaps of its own."""
    plan = site.plan()
    content = b"x" * (100 if older else 2 * PART_BYTES + 1)
    Path(site.root.job(plan.launch.job_id).model_archive).write_bytes(content)
    if older:
        first: dict[str, Any] = copy.deepcopy(dict(plan.objects[0]))
        volumes = first["spec"]["template"]["spec"]["volumes"]
        volumes[[one["name"] for one in volumes].index("model")] = model_volume(plan.token, 1)
        site.admin().create(first)
    site.scheduler.submit(plan)
    job = site.job(plan.token)
    (model,) = [one for one in job["spec"]["template"]["spec"]["volumes"] if one["name"] == "model"]
    named = [one["configMap"] for one in model["projected"]["sources"]]
    assert len(named) == (1 if older else 3) and not any(one.get("optional") for one in named), "pods need all of them"
    parts = [site.admin().get("ConfigMap", one["name"]) for one in named]
    joined = b"".join(base64.b64decode(text) for one in parts if one for text in one["binaryData"].values())
    assert joined == content
    plain = site.admin().get("ConfigMap", plan.token)
    assert plain is not None and "launch.json" in plain["data"] and "binaryData" not in plain


def test_kubernetes_submit_creates_owned_pull_secret_for_image_credentials(site: Site) -> None:
    location = ImageLocation("registry.example.org", "team", "", "${secret:hub-user}", "${secret:hub-token}")
    spec = JobSpec("digits", Framework("pytorch", "2.5", "true", image_location=location))
    plan = site.plan(spec=spec, image="registry.example.org/team/pytorch:2.5")
    secrets = {"hub-user": "ada", "hub-token": "planted-token"}
    Path(plan.attempt_dir.secrets).write_text(json.dumps(secrets))
    assert "planted-token" not in json.dumps(plan.objects)
    site.scheduler.submit(plan)
    secret = site.admin().get("Secret", f"{plan.token}-image")
    assert secret is not None and secret["type"] == "kubernetes.io/dockerconfigjson"
    (known,) = json.loads(base64.b64decode(secret["data"][".dockerconfigjson"]))["auths"].items()
    assert known[0] == "registry.example.org"
    assert known[1] == {
        "username": "ada", "password": "planted-token", "auth": base64.b64encode(b"ada:planted-token").decode(),
    }  # fmt: skip
    of_pods = site.admin().get("Secret", plan.token)
    assert of_pods is not None and base64.b64decode(of_pods["data"]["secrets.json"]) == b"{}\n", "no pod has them"
    job = site.job(plan.token)
    assert job["metadata"]["uid"] == secret["metadata"]["ownerReferences"][0]["uid"]
    assert job["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": f"{plan.token}-image"}]


def test_kubernetes_submit_keeps_existing_job_when_repeated_after_restart(site: Site) -> None:
    plan = site.plan()
    site.scheduler.submit(plan)
    uid = site.job(plan.token)["metadata"]["uid"]
    assert site.start().submit(plan) == NativeId(plan.token)
    assert site.job(plan.token)["metadata"]["uid"] == uid


def test_kubernetes_submit_finds_job_when_create_response_is_lost(site: Site) -> None:
    plan = site.plan()
    assert site.scheduler.find(plan.token, plan.attempt_dir) == frozenset()
    site.k8s.fault("drop", method="POST", path="/jobs")
    assert site.scheduler.submit(plan) == NativeId(plan.token)
    assert site.start().find(plan.token, plan.attempt_dir) == {NativeId(plan.token)}


@pytest.fixture
def full(site: Site) -> Site:
    """One Job fills its quota, and quotas are asked before it is seen whether a name is taken."""
    quota = {"metadata": {"name": "jobs"}, "spec": {"hard": {"count/jobs.batch": "1"}}}
    site.k8s.ask("POST", f"api/v1/namespaces/{site.k8s.namespace}/resourcequotas", quota)
    return site


def test_kubernetes_submit_finds_job_after_lost_response_when_job_fills_quota(full: Site) -> None:
    plan, later = full.plan(), full.plan()
    full.k8s.fault("drop", method="POST", path="/jobs")
    assert full.scheduler.submit(plan) == NativeId(plan.token)
    with pytest.raises(TooManyJobs):
        full.scheduler.submit(later)


def test_kubernetes_find_completes_job_left_suspended_by_dead_daemon_when_job_fills_quota(full: Site) -> None:
    plan = full.plan()
    full.k8s.fault("status", method="POST", path="/secrets", code=500, count=50)
    with pytest.raises(SchedulerError):
        full.scheduler.submit(plan)
    assert full.job(plan.token)["spec"]["suspend"]
    full.k8s.do("clear_faults")
    assert full.start().find(plan.token, plan.attempt_dir) == {NativeId(plan.token)}
    assert not full.job(plan.token)["spec"]["suspend"]
    assert full.admin().get("Secret", plan.token) is not None


def test_kubernetes_submit_raises_uncertain_when_lookup_fails_after_quota_error(full: Site) -> None:
    full.scheduler.submit(full.plan())
    plan = full.plan()
    full.k8s.fault("status", method="GET", path=f"/jobs/{plan.token}", code=500, count=50)
    with pytest.raises(SubmissionUncertain):
        full.scheduler.submit(plan)


def test_kubernetes_submit_rejects_oversized_model_before_creating_objects(site: Site) -> None:
    plan = site.plan()
    small = site.start(model_bytes=10)
    site.k8s.counts(reset=True)
    with pytest.raises(InvalidRequest, match=r"ConfigMaps take 10 \(model_bytes\): leave data out of it"):
        small.submit(plan)
    assert not [what for what in site.k8s.counts() if what.startswith("create")]


def test_kubernetes_submit_rejects_token_of_foreign_job_and_keeps_that_job(site: Site) -> None:
    plan = site.plan()
    other = {**plan.objects[0]}
    other["metadata"] = {"name": plan.token, "labels": {"ffdl-batch/job": "other"}}
    site.admin().create(other)
    with pytest.raises(InvalidRequest, match="somebody else's"):
        site.scheduler.submit(plan)
    assert site.admin().get("Job", plan.token) is not None


def test_kubernetes_adapter_reports_never_created_job_as_forgotten(site: Site) -> None:
    native = NativeId("training-zzzzzzzzz-1")
    assert site.scheduler.find_absent([native]) == Absent(frozenset({native}))
    site.scheduler.signal(native, "URG")
    site.scheduler.cancel(native)


def make_tenant(site: Site, tenant: Tenant) -> None:
    client = ClusterClient(read_settings({"kubeconfig": str(site.k8s.kubeconfig), "namespace": tenant.namespace}))
    for thing in tenant_objects(tenant):
        client.create(thing)
    client.close()


def test_kubernetes_tenant_user_runs_jobs_and_pending_reason_names_quota(site: Site) -> None:
    make_tenant(site, Tenant("team-a", gpus=0, users=("alice",)))
    site.settings |= {"kubeconfig": str(site.k8s.kubeconfig_of("alice")), "namespace": "team-a"}
    site.scheduler = site.start()
    native = site.scheduler.submit(site.plan(resources=Resources(gpus=1, cpus=1, memory_bytes=1 << 28)))
    seen = site.wait(native, lambda one: bool(one.reason))
    assert seen.phase is Phase.PENDING
    assert seen.reason.startswith("quota ffdl-batch-daemon never has so much: requests.nvidia.com/gpu=1 is asked for")
    runs = site.scheduler.submit(site.plan())
    site.wait(runs, lambda one: bool(one.nodes))
    site.scheduler.cancel(native)
    site.wait(native, lambda one: one.end is EndCause.CANCELLED)


def test_kubernetes_watch_resumes_with_new_list_after_expiry(site: Site) -> None:
    first = site.scheduler.submit(site.plan())
    site.wait(first, lambda one: bool(one.nodes))
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}
    site.admin().create(other)  # a version that no watch tells of, so that those of the watches are too old
    site.k8s.do("expire")
    site.k8s.counts(reset=True)
    site.k8s.do("close_watches")
    second = site.scheduler.submit(site.plan())
    site.wait(second, lambda one: bool(one.nodes))
    assert site.k8s.counts().get("list pods"), "the watch was refused"


def test_kubernetes_observe_does_not_end_job_when_api_server_is_down(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_watch, "STALE_S", 3600.0)  # nobody knows how long the server takes to end
    native = site.scheduler.submit(site.plan())
    site.wait(native)
    site.k8s.stop()
    seen = site.observe(native)
    assert seen is not None and seen.phase is not Phase.ENDED
    with pytest.raises(SchedulerError):
        site.scheduler.find(native.job, site.root.job("training-zzzzzzzzz").attempt(1))  # type: ignore[arg-type]


def test_kubernetes_adapter_keeps_job_of_another_namespace_as_unknown(site: Site) -> None:
    """A daemon that was started again finds another current context in the kubeconfig: what it does not see may run."""
    plan = site.plan()
    native = site.scheduler.submit(plan)
    make_tenant(site, Tenant("team-b"))
    site.scheduler = site.start(namespace="team-b")
    seen = site.wait(native)
    assert seen.phase is Phase.UNKNOWN
    assert f"{site.k8s.url}, namespace {site.k8s.namespace}" in seen.lacks and "namespace team-b" in seen.lacks
    assert site.scheduler.find_absent([native]) == Absent()
    with pytest.raises(SchedulerError, match="was sent to"):
        site.scheduler.find(plan.token, plan.attempt_dir)
    site.scheduler.cancel(native)
    seen = site.observe(native)
    assert seen is not None and seen.end is EndCause.CANCELLED, "its owner has given it up"
    site.scheduler = site.start()
    site.observe(native)
    job = site.admin().get("Job", plan.token)
    assert job is None or job["spec"]["activeDeadlineSeconds"] == 1, "nobody else would end it"


def test_kubernetes_observe_sends_no_requests(site: Site) -> None:
    ids = [site.scheduler.submit(site.plan()) for _ in range(5)]
    for native in ids:
        site.wait(native)
    site.k8s.counts(reset=True)
    for _ in range(20):
        assert len(site.scheduler.observe(ids)) == 5
    assert {what: count for what, count in site.k8s.counts().items() if not what.startswith("watch")} == {}
