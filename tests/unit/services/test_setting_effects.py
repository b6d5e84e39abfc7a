"""Every setting changes what a backend is sent, something else that is shown here, or what a test named here shows.

The settings come from their dataclasses, so that a new one without an effect fails here.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.config import load_settings
from ffdl_batch.config.settings import ElasticPool, FrameworkImages, ImagePolicy, Retention, Settings
from ffdl_batch.daemon.loops import Loops
from ffdl_batch.daemon.platform import open_platform
from ffdl_batch.domain.backend_facts import BackendFacts, NodeShape
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.incidents.site_settings import FaultPolicy, NodeRules, NoticeSettings
from ffdl_batch.domain.job.spec import JobSpec, NetworkLevel
from ffdl_batch.domain.job.views import PlanView
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.metrics.rates import Rates
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SubmissionUncertain
from ffdl_batch.plugins import AdapterContext, create_adapter
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.leader_lease import LeaderLease
from ffdl_batch.services.refusals import Refused
from ffdl_batch.services.submission.dry_run import plan_submission
from ffdl_kubernetes.attach.claim_files import reader_job
from ffdl_kubernetes.lifecycle.termination import AskedEnds
from ffdl_kubernetes.planning import launch_plan as kubernetes_plan
from ffdl_kubernetes.settings import KubernetesSettings, Profile
from ffdl_local import launch_plan as local_plan
from ffdl_local.settings import LocalSettings
from ffdl_local.settings import read_settings as read_local
from ffdl_slurm.adapter import SlurmScheduler
from ffdl_slurm.gateways.gateway import SiteShape, SlurmGateway
from ffdl_slurm.observing.parsers import SiteConfig
from ffdl_slurm.planning import launch_plan as slurm_plan
from ffdl_slurm.settings import SlurmSettings
from ffdl_slurm.settings import read_settings as read_slurm
from tests.fakes.scheduler import FakeScheduler
from tests.unit.kubernetes.request_rig import request_of, settled
from tests.unit.kubernetes.test_patience import pod
from tests.unit.services.conftest import Site
from tests.unit.services.test_key_effects import BASE, FACTS, NODES, parsed

MODELS: Mapping[str, type] = {
    "": Settings, "nodes": NodeRules, "notices": NoticeSettings, "rates": Rates, "fault_policies": FaultPolicy,
    "image_policy": ImagePolicy, "slurm": SlurmSettings, "local": LocalSettings, "kubernetes": KubernetesSettings,
    "profiles": Profile, "pools": ElasticPool, "retention": Retention,
}  # fmt: skip
IN_PLAN: Mapping[str, dict[str, object]] = {
    "slurm": {
        "runtime": "pyxis", "apptainer": "/opt/apptainer", "gpu_flag": "nv", "partition": "cpu", "account": "a",
        "qos": "q",
        "scratch_base": "/scratch", "srun_args": ["--mpi=none"], "fence_s": 60, "kill_wait_s": 60,
        "command_timeout_s": 7, "continue_in_place": True, "network_feature": "other", "egress_feature": "other",
        "network_dir": "/run/other", "job_mark": "mark:", "gpu_devices": {"nvidia": ["/dev/other*"]},
        "gres_devices": {"nic": ["/dev/nic*"]},
    },
    "local": {
        "max_jobs": 7, "require_gpus": True, "runtime": "apptainer", "apptainer": "/opt/apptainer",
        "scratch_base": "/scratch",
    },
    "kubernetes": {
        "controller_image": "other", "image_pull_policy": "Always", "image_pull_secrets": ["s"], "run_as_user": 7,
        "service_account": "s", "claim": "c", "volumes": {"/lab": "c/lab"}, "store_networks": ["192.0.2.0/24"],
        "queue": "q", "priority_class": "p", "runtime_class": "r", "scheduler": "s", "gpu_resource": "example.org/gpu",
        "gpu_resources": {"a100": "example.org/a100"}, "gpu_label": "example.org/gpu", "gpu_types": {"a100": "A100"},
        "node_selector": {"pool": "p"}, "tolerations": ["team=a"], "profiles": {"big": {"priority_class": "p"}},
        "dns_namespace": "dns", "dns_labels": {"app": "dns"}, "cpu_limit": "request", "controller_cpus": "1",
        "controller_cpu_limit": "2", "controller_memory_bytes": 2**30, "controller_storage_bytes": 2**30,
        "shm_bytes": 2**30, "load_patience_s": 7, "store_patience_s": 7, "network_policies": "enforced", "keep_s": 7,
    },
}  # fmt: skip
"""Another value than the default one."""
IN_DRY_RUN: dict[str, object] = {
    "images_dirs": ("/elsewhere",), "check_images": False, "default_memory": "9GB", "default_cpus": 3.0,
    "frameworks": {"custom": FrameworkImages({"one": "docker://r.example.org/two:2"})},
    "image_policy": ImagePolicy(allow=("docker://",)),
    "network_minimum": NetworkLevel.NONE, "log_file_size": "1MiB", "log_files": 2, "log_rate": "2MiB",
    "cache_dir": "/other", "cache_bytes": 7, "data_mount": Mounting.ALWAYS,
}  # fmt: skip
SHOWN_BY = {
    "config/test_image_policy.py": {
        "test_permitted_image_starts_in_full_at_its_mirror": "image_policy.mirrors",
        "test_image_outside_of_allowed_places_is_refused_with_rule_and_cure": "image_policy.allow",
        "test_image_without_required_digest_is_refused_with_form_of_digest": "image_policy.require_digest",
    },
    "controller/test_image_signature.py": {
        "test_image_without_signature_of_accepted_key_fails_attempt": "image_policy.signers",
    },
    "services/test_binding.py": {
        "test_open_platform_rejects_other_jobs_dir_while_a_job_is_live": "jobs_dir",
    },
    "client/test_site_mode.py": {"test_nearest_named_way_wins": "hub_url"},
    "daemon/test_token_routes.py": {
        "test_login_that_only_hub_has_checked_is_refused_unless_site_trusts_it": "trust_hub_sessions",
    },
    "daemon/test_log_file.py": {"test_record_is_a_json_object_of_one_line": "log_json"},
    "daemon/test_keeper.py": {"test_keeper_ends_daemon_after_idle_time": "idle_exit_s"},
    "daemon/test_loops.py": {"test_silence_loop_derives_pause_from_silence_limit": "silent_s"},
    "daemon/test_outlets.py": {"test_metrics_textfile_of_killed_daemon_is_replaced_and_removed": "metrics_textfile"},
    "../contract/test_daemon_metrics.py": {
        "test_daemon_warns_and_keeps_running_when_metrics_port_is_taken": "metrics_port",
    },
    "../contract/test_host_commands.py": {
        "test_cli_reads_host_from_configuration_without_environment_variable": "host host_program",
    },
    "services/reports/test_usage.py": {
        "test_usage_report_applies_parts_of_gpu_types_in_settings": "rates.gpu_parts",
        "test_usage_report_applies_rates_of_gpu_type":
            "rates rates.currency rates.gpu_hour rates.cpu_hour rates.gpu_types",
    },
    "services/test_lemons.py": {
        "test_deployer_excludes_no_node_by_default": "nodes nodes.exclude_unreliable",
        "test_deployer_excludes_node_by_rules_of_site": "nodes.threshold nodes.hours",
    },
    "domain/test_node_findings.py": {
        "test_node_exclusion_respects_share_limit_and_keeps_last_node": "nodes.percent",
    },
    "services/test_removal.py": {
        "test_retention_removes_jobs_after_days_and_only_then": "retention retention.days",
    },
    "services/test_notices.py": {
        "test_notifier_sends_each_incident_once_by_mail_and_webhook":
            "notices notices.mail notices.webhooks notices.smtp notices.sender",
        "test_notifier_posts_to_no_address_that_site_excludes": "egress",
        "test_notifier_sends_only_incidents_of_configured_origins": "notices.origins",
        "test_notifier_signs_webhook_body_with_key": "notices.webhook_key_file",
        "test_notifier_sends_no_mail_to_relay_that_cannot_prove_its_identity": "notices.login_file notices.ca_file",
        "test_notifier_posts_to_addresses_of_fault_policy_and_logs_mail_that_has_no_relay": "fault_policies.notify",
    },
    "services/test_scaler.py": {
        "test_jobs_of_other_backend_or_partition_run_as_submitted": "pools.backend pools.partition",
    },
    "services/test_scaler_loop.py": {
        "test_decision_is_due_after_interval_or_when_a_job_comes_or_ends": "pools.interval_s",
    },
    "services/test_scaler_sizes.py": {
        "test_running_jobs_shrink_in_pool_that_is_too_small_for_them": "elastic pools.gpus",
        "test_attempt_trains_with_its_size_for_minimum_time": "pools.min_between_s",
        "test_objective_of_pool_decides_whether_second_job_waits": "pools.objective",
    },
    "services/test_fault_policies.py": {
        "test_fault_policy_stops_retries_and_is_named_in_message": "fault_policies.name fault_policies.stop_retrying",
        "test_fault_policy_excludes_node_from_next_attempts": "fault_policies fault_policies.exclude_node",
        "test_fault_policy_without_match_leaves_retries_unchanged": "fault_policies.match",
        "test_fault_policy_without_kind_keeps_classified_kind": "fault_policies.kind",
    },
    "kubernetes/test_settings.py": {
        "test_cluster_client_uses_named_kubeconfig_and_context": "kubernetes.kubeconfig kubernetes.context",
        "test_kubernetes_adapter_is_registered_and_explains_settings": "kubernetes.namespace kubernetes.model_bytes",
    },
    "kubernetes/test_attach.py": {
        "test_reach_runs_attach_program_in_running_pod_of_the_node": "kubernetes.request_timeout_s",
    },
    "../contract/test_kubernetes_canary.py": {
        "test_canary_proves_network_policies_for_all_daemons_of_cluster_until_proof_expires":
            "kubernetes.canary_interval_s",
    },
    "kubernetes/test_plan.py": {
        "test_kubernetes_plan_places_pods_by_profile":
            "profiles.node_selector profiles.tolerations profiles.priority_class profiles.runtime_class",
    },
    "kubernetes/test_limits.py": {
        "test_kubernetes_plan_sets_cpu_limits_by_settings_profile_and_namespace": "profiles.cpu_limit",
    },
}  # fmt: skip
"""Tests that a person has read, by their file below tests/unit, and the settings whose effect they show."""
SHOWN_HERE = """
backend backends state_dir database_url watch_interval_s doorbell_interval_s lease_s local.gpus
slurm.python slurm.staging_python slurm.credential_life_s slurm.gateway slurm.submit_host
kubernetes.python kubernetes.image_patience_s
"""
TRAINING: tuple[dict[str, Any], ...] = (
    BASE | {"gpu_type": "a100", "batch": {"network": {"level": "egress", "allow": ["192.0.2.1:443"]}}},
    BASE | {"batch": {"network": {"level": "job"}, "gres": {"nic": 1}}},
    BASE | {"batch": {"profile": "big"}},
    BASE | {"data_stores": [{"id": "here", "type": "directory", "connection": {"path": "/lab"},
                             "training_results": {"container": "results"}}]},
)  # fmt: skip
"""Manifests that between them use what settings are about."""
ABLE = tuple(replace(node, gres={"nic": 4}, features=("ffdl-network", "ffdl-egress")) for node in NODES)
ITS_OWN = frozenset({NetworkLevel.HOST, NetworkLevel.NONE})
MACHINES = FACTS | {"slurm": replace(FACTS["slurm"], nodes=ABLE, network_levels=ITS_OWN)}
WITHOUT_GPUS = replace(FACTS["local"], nodes=(NodeShape("here", 80, 10**11),))


def plans(backend: str, settings: dict[str, object]) -> list[object]:
    """Return what is sent for each manifest under these settings of the backend, or why it is refused."""

    def plan(spec: JobSpec, facts: BackendFacts) -> object:
        request = request_of(spec, facts=facts, image="/images/one.sif", mounting=Mounting.AUTO)
        try:
            if backend == "slurm":
                return to_plain(slurm_plan.make_plan(request, read_slurm(settings)))
            if backend == "local":
                return to_plain(local_plan.make_plan(request, read_local(settings), "/q", "/p"))
            return to_plain(kubernetes_plan.make_plan(request, settled(settings)))
        except InvalidRequest as refused:
            return str(refused)

    specs = [parsed(manifest).spec for manifest in TRAINING]
    machines = [MACHINES[backend]] + [WITHOUT_GPUS] * (backend == "local")
    return [plan(spec, facts) for spec in specs if spec is not None for facts in machines]


@pytest.mark.parametrize(("backend", "key"), [(backend, key) for backend, keys in IN_PLAN.items() for key in keys])
def test_backend_setting_changes_plan(backend: str, key: str) -> None:
    runtime = "apptainer" if (backend, key) == ("local", "apptainer") else ""
    around: dict[str, object] = {"runtime": runtime} if runtime else {}
    assert default_plans(backend, runtime) != plans(backend, {**around, key: IN_PLAN[backend][key]})


@cache
def default_plans(backend: str, runtime: str) -> list[object]:
    """Return what is sent with the default settings, but for the runtime if there is one."""
    return plans(backend, {"runtime": runtime} if runtime else {})


class Planning(FakeScheduler):
    """Plans as Slurm does, and needs images."""

    def probe(self) -> BackendFacts:
        return FACTS["slurm"]

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        return slurm_plan.make_plan(request, SlurmSettings())


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
@pytest.mark.parametrize("key", IN_DRY_RUN)
def test_setting_changes_dry_run(site: Site, tmp_path: Path, key: str) -> None:
    for directory in ("images", "elsewhere"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "one.sif").touch()
    version = "/nowhere/one.sif" if key == "check_images" else "one"
    store = {**BASE["data_stores"][0], "connection": {"user_name": "u", "password": "p"}}
    manifest = {name: value for name, value in BASE.items() if name not in ("cpus", "memory")}
    text = json.dumps(manifest | {"framework": {**BASE["framework"], "version": version}, "data_stores": [store]})
    site.platform.adapters.use("fake", Planning())

    def dry_run(**changes: object) -> object:
        site.set_settings(**{"images_dirs": (str(tmp_path / "images"),), "cache_dir": "/cache", **changes})
        platform = site.platform
        try:
            return plan_submission(
                platform.storage,
                platform.adapters,
                platform.node_exclusion,
                site.caller,
                site.submission("k", text),
                trial=False,
            )
        except Refused as refused:
            return str(refused)

    value = (str(tmp_path / "elsewhere"),) if key == "images_dirs" else IN_DRY_RUN[key]
    before, after = dry_run(), dry_run(**{key: value})
    assert before != after and PlanView in (type(before), type(after))


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_image_policy_refuses_job_at_submission_and_one_that_waits(site: Site) -> None:
    manifest = json.dumps(BASE | {"framework": {**BASE["framework"], "version": "quay.io/a:1"}, "data_stores": []})
    site.platform.adapters.use("fake", Planning())
    waits = site.accept("k1", manifest)
    site.set_settings(image_policy=ImagePolicy(allow=("docker://r.example.org",)))
    problem = site.problem("k2", manifest)
    assert (problem.code, problem.exit_code) == ("C107", 78)
    assert re.match(
        r"manifest\.yml:\d+:\d+: error: framework\.version: image 'docker://quay\.io/a:1' .*allow", problem.message
    )
    site.deploy()
    assert (site.job(waits.id).state, site.job(waits.id).error_code) == (JobState.FAILED, "C107")


def test_image_file_is_verified_on_nodes_if_site_names_signers() -> None:
    spec = parsed(BASE).spec
    assert spec is not None
    for image, signers, verify in (
        ("/i.sif", ("A1",), ("apptainer", "verify", "--local", "--json", "/i.sif")),
        ("/i.sif", (), ()),
        ("docker://quay.io/a:1", ("A1",), ()),
    ):
        request = request_of(spec, facts=MACHINES["slurm"], image=image, signers=signers)
        signature = slurm_plan.make_plan(request, SlurmSettings()).launch.signature
        assert ((signature.verify, signature.signers) if signature else ((), ())) == (verify, signers if verify else ())


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_lease_setting_limits_how_long_another_daemon_waits(site: Site) -> None:
    for lease_s, is_over in ((3.0, True), (300.0, False)):
        settings = replace(site.platform.settings, lease_s=lease_s)
        one, two = (
            LeaderLease(replace(site.platform, owner=owner, settings=settings).leases, "loop")
            for owner in ("one", "two")
        )
        assert one.take()
        site.clock.tick(4)
        assert two.take() is is_over
        two.end()
        one.end()


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_interval_settings_pace_watcher_and_listener(site: Site) -> None:
    settings = replace(site.platform.settings, watch_interval_s=7.0, doorbell_interval_s=9.0)
    loops = Loops(replace(site.platform, settings=settings), lambda: None)
    try:
        assert (loops._watch_turn(), loops._listen_turn()) == (7.0, 9.0)
    finally:
        loops.stop()
        loops.join()


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_backend_settings_choose_and_configure_backend(site: Site) -> None:
    settings = replace(site.platform.settings, backend="local", backends={"local": {"gpus": 7}})
    adapters = Adapters(settings, AdapterContext(site.platform.storage.root.path, "alice", 1000), site.clock)
    assert adapters.default_name() == "local"
    assert adapters.get("local").probe().nodes[0].gpus == {"": 7}


def test_database_lies_in_state_directory_unless_url_names_another(tmp_path: Path) -> None:
    for directory in ("state", "other"):
        (tmp_path / directory).mkdir(mode=0o700)
    found = []
    for more in ({}, {"FFDL_DATABASE_URL": f"sqlite:///{tmp_path}/other/jobs.sqlite3"}):
        environ = {"HOME": str(tmp_path), "FFDL_STATE_DIR": str(tmp_path / "state"), **more}
        open_platform(load_settings(cwd=tmp_path, environ=environ)).close()
        found.append({str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.sqlite3")})
    assert found == [{"state/ffdl.sqlite3"}, {"state/ffdl.sqlite3", "other/jobs.sqlite3"}]


def slurm(tmp_path: Path, **settings: object) -> SlurmScheduler:
    """The adapter of a Slurm without nodes."""
    made = create_adapter("slurm", settings, AdapterContext(str(tmp_path), "alice", 1000))
    assert isinstance(made, SlurmScheduler)
    site = SiteShape((), (), "26.05.5", SiteConfig(1001, None, None))
    made._gateway = cast(SlurmGateway, SimpleNamespace(describe_site=lambda: site))
    return made


def test_slurm_settings_choose_interpreters_and_credential_life(tmp_path: Path) -> None:
    scheduler = slurm(tmp_path, python="/opt/python", staging_python="/opt/other", credential_life_s=7)
    assert (scheduler.probe().python, scheduler.traits.credential_life_s) == ("/opt/python", 7.0)
    assert scheduler.probe().staging[0] == "/opt/other"


@pytest.mark.parametrize(("kind", "module"), [("cli", "cli_gateway"), ("pyslurm", "pyslurm_gateway")])
def test_slurm_settings_choose_gateway_and_name_of_submit_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, module: str
) -> None:
    made = create_adapter("slurm", {"gateway": kind, "submit_host": "login7"}, AdapterContext("/t", "alice", 1000))
    assert isinstance(made, SlurmScheduler) and type(made._gateway).__module__.endswith(module)
    if kind == "cli":
        (tmp_path / "sbatch").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "sbatch").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        attempt = AttemptDir(str(tmp_path / "attempt-1"))
        Path(attempt.submit).mkdir(parents=True)
        with pytest.raises(SubmissionUncertain, match="sbatch on login7 exited with status 1"):
            made._gateway.submit(attempt, 0o077)


def test_kubernetes_settings_choose_interpreter_and_patience_with_images(tmp_path: Path) -> None:
    job: Any = reader_job("r", "c", "", settled({"python": "/opt/python"}))
    assert job["spec"]["template"]["spec"]["containers"][0]["command"][0] == "/opt/python"

    class Ends(AskedEnds):
        def __init__(self, patience_s: int) -> None:
            self._settings, self.ended = settled({"image_patience_s": patience_s}), False

        def _attempt(self, token: str) -> AttemptDir:
            return AttemptDir(str(tmp_path / token))

        def _end_because(self, *_: object) -> None:
            self.ended = True

    for patience_s, is_over in ((900, False), (7, True)):
        ends = Ends(patience_s)
        ends._judge_images("t", [pod(1000, 100)])
        assert ends.ended is is_over


def test_every_setting_has_an_effect_that_a_test_shows() -> None:
    elsewhere = " ".join(names for tests in SHOWN_BY.values() for names in tests.values())
    planned = [f"{backend}.{key}" for backend, keys in IN_PLAN.items() for key in keys]
    shown = [*SHOWN_HERE.split(), *elsewhere.split(), *IN_DRY_RUN, *planned]
    known = {f"{table}.{one.name}".lstrip(".") for table, model in MODELS.items() for one in fields(model)}
    assert sorted(shown) == sorted(known - {"origins"})
    for file, tests in SHOWN_BY.items():
        text = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
        defined = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
        assert tests.keys() <= defined, file
        words = {name.rpartition(".")[2] for names in tests.values() for name in names.split()}
        assert {word for word in words if word not in text and f"FFDL_{word.upper()}" not in text} == set(), file
