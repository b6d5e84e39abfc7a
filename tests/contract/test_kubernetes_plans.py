"""Plans of jobs for a cluster, as the daemon makes them: what is printed, and what the API server says to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ffdl_batch.attempt.layout import Root
from ffdl_batch.config import load_settings
from ffdl_batch.daemon.platform import Platform
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.submission import Caller, Submission
from ffdl_batch.domain.job.views import PlanView
from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.plugins import AdapterContext
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.refusals import Refused
from ffdl_batch.services.submission.dry_run import plan_submission
from ffdl_batch.store import open_store
from ffdl_kubernetes.adapter import KubernetesScheduler
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.settings import read_settings
from tests.fakes.kubernetes.rig import FakeCluster, cluster

MANIFEST = """\
name: digits
framework:
  name: pytorch
  version: 2.5-cuda
  command: python3 train.py
batch:
  env: {LR: "0.1"}
  partition: gpu
  profile: big
"""
KINDS = ("Job", "Pod", "ConfigMap", "Secret", "Service", "NetworkPolicy")
Plan = Callable[..., PlanView]


@pytest.fixture
def k8s(tmp_path: Path) -> Iterator[FakeCluster]:
    with cluster(tmp_path) as found:
        yield found


@pytest.fixture
def claim() -> str:
    """Of the backend's settings."""
    return ""


@pytest.fixture
def plan(k8s: FakeCluster, tmp_path: Path, claim: str) -> Iterator[Plan]:
    """Plans a manifest with this text, `trial` with the API server's word."""
    config = tmp_path / "config.toml"
    config.write_text(
        f'[backend.kubernetes]\nkubeconfig = "{k8s.kubeconfig}"\nnetwork_policies = "enforced"\n'
        f'request_timeout_s = 60\nclaim = "{claim}"\n'
        '[backend.kubernetes.profiles.big]\nnode_selector = {pool = "a100"}\n'
    )
    environ = {"HOME": str(tmp_path), "FFDL_CONFIG": str(config), "FFDL_STATE_DIR": str(tmp_path / "state")}
    settings = load_settings(cwd=tmp_path, environ=environ)
    clock, root = SystemClock(), Root(settings.jobs_dir)
    Path(root.path).mkdir(parents=True)
    store = open_store(settings.database, network_fs=False, clock=clock)
    adapters = Adapters(settings, AdapterContext(root.path, "alice", os.getuid()), clock)
    platform = Platform(settings, JobStorage(store, root, clock, "alice", os.getuid()), adapters, owner="test")

    def make(manifest: str = MANIFEST, *, trial: bool = False, environ: dict[str, str] | None = None) -> PlanView:
        submission = Submission(
            manifest, "manifest.yml", "/nowhere", "0" * 64, "k", backend="kubernetes", environ=environ or {}
        )
        return plan_submission(
            platform.storage, platform.adapters, platform.node_exclusion, Caller(os.getuid()), submission, trial=trial
        )

    yield make
    backend = adapters.get("kubernetes")
    assert isinstance(backend, KubernetesScheduler)
    backend.close()
    platform.close()


@pytest.fixture(autouse=True)
def nothing_is_created(k8s: FakeCluster) -> Iterator[None]:
    """Of no kind that plans have is an object made or deleted in the namespace."""
    client = ClusterClient(read_settings({"kubeconfig": str(k8s.kubeconfig)}))

    def everything() -> list[str]:
        return [f"{kind}/{one['metadata']['name']}" for kind in KINDS for one in client.list(kind, {})[0]]

    before = everything()
    yield
    after = everything()
    client.close()
    assert after == before


def test_plan_prints_all_objects_without_variable_values_and_creates_none(plan: Plan, k8s: FakeCluster) -> None:
    view = plan(environ={"TOKEN": "planted-value"})
    objects: list[Any] = [yaml.safe_load(document) for document in view.objects]
    assert [one["kind"] for one in objects] == ["Job", "ConfigMap", "NetworkPolicy", "Secret"]
    assert {one["metadata"]["namespace"] for one in objects} == {k8s.namespace}
    pod = objects[0]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "pytorch/pytorch:2.5-cuda"
    assert pod["nodeSelector"] == {"pool": "a100"}
    assert not [document for document in view.objects if "planted-value" in document]
    assert [warning for warning in view.warnings if "batch.partition: has no effect on Kubernetes" in warning]
    assert not [warning for warning in view.warnings if "profile" in warning and "no profiles" in warning]


def test_plan_trial_validates_all_objects_on_server_and_creates_none(plan: Plan, k8s: FakeCluster) -> None:
    k8s.counts(reset=True)
    said = f"the API server accepts all 4 objects in namespace {k8s.namespace}; none was created"
    assert plan(trial=True).trial == said
    made = {what: count for what, count in k8s.counts().items() if what.startswith("create")}
    assert sum(made.values()) == 4, "each object was shown to the server"


def test_plan_trial_reports_admission_webhook_denial(plan: Plan, k8s: FakeCluster) -> None:
    k8s.do("webhook", plural="jobs", name="images.example.com", message="images come from registry.example.org alone")
    with pytest.raises(Refused) as caught:
        plan(trial=True)
    problem = caught.value.problem
    assert (problem.code, problem.exit_code) == ("C104", ExitCode.BAD_MANIFEST)
    assert "images come from registry.example.org alone; these are rules of the cluster's own" in problem.message


def test_plan_trial_reports_exhausted_quota_with_numbers(plan: Plan, k8s: FakeCluster) -> None:
    client = ClusterClient(read_settings({"kubeconfig": str(k8s.kubeconfig)}))
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}}
    path = f"api/v1/namespaces/{k8s.namespace}/resourcequotas"
    client._ask("POST", path, body={**quota, "spec": {"hard": {"count/jobs.batch": "0"}}})
    client.close()
    with pytest.raises(Refused) as caught:
        plan(trial=True)
    problem = caught.value.problem
    assert problem.exit_code == ExitCode.TRY_AGAIN
    assert (
        "quota team of the namespace never has so much (count/jobs.batch=1 is asked for, of count/jobs.batch=0"
        in problem.message
    )


STORED = """\
data_stores:
  - id: main
    type: s3_datastore
    training_data: {container: sets}
    training_results: {container: out}
    connection: {auth_url: "http://192.0.2.7:9000", user_name: key, password: secret}
"""


@pytest.mark.parametrize("claim", ["jobs"])
def test_plan_trial_covers_loading_and_storing_jobs_with_volume_claim(plan: Plan, k8s: FakeCluster) -> None:
    view = plan(MANIFEST + STORED, trial=True)
    objects: list[Any] = [yaml.safe_load(document) for document in view.objects]
    jobs = [one["metadata"]["name"] for one in objects if one["kind"] == "Job"]
    assert jobs == ["training-dryrun000-1", "training-dryrun000-2", "training-dryrun000-2-store"]
    assert view.trial.startswith(f"the API server accepts all {len(objects)} objects in namespace {k8s.namespace}")
