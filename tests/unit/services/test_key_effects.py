"""Every key of a manifest changes what a backend is sent, or is reported.

The keys come from the models, so that a new one without an effect fails here.
"""

from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import ffdl_batch
from ffdl_batch.config.images import UnknownImage, resolve_image, resolve_oci_image
from ffdl_batch.config.settings import Settings
from ffdl_batch.domain.backend_facts import BackendFacts, NodeShape
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.job.array import ArrayId, expand
from ffdl_batch.domain.job.spec import NetworkLevel
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.manifest import Defaults, ManifestSource, parse_manifest
from ffdl_batch.manifest.checks.keys import _model_in, fields_of
from ffdl_batch.manifest.contract import Parsed
from ffdl_batch.manifest.models.batch import ManifestBlock
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.services.outcome.retry_budget import budget_of, lead_of
from ffdl_kubernetes.planning import launch_plan as kubernetes_plan
from ffdl_local import launch_plan as local_plan
from ffdl_local.settings import LocalSettings
from ffdl_slurm.planning import launch_plan as slurm_plan
from ffdl_slurm.settings import SlurmSettings
from tests.unit.kubernetes.request_rig import FACTS as CLUSTER
from tests.unit.kubernetes.request_rig import request_of, settled


def is_read(name: str) -> bool:
    """Whether production code reads an attribute of this name, without the modules that define and parse settings."""
    root = Path(ffdl_batch.__file__).parents[1]
    files = [*root.glob("ffdl_batch/**/*.py"), *root.glob("adapters/**/*.py")]
    own = {root / "ffdl_batch/config" / name for name in ("load.py", "settings.py", "fingerprint.py")}
    texts = (file.read_bytes() for file in files if file not in own and file.name != "settings.py")
    return any(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)
        for text in texts
        if f".{name}".encode() in text
        for node in ast.walk(ast.parse(text))
    )


def elements(one: Parsed) -> int:
    """Return how many jobs the manifest is."""
    assert one.spec is not None
    is_array = one.spec.batch.array or one.spec.batch.sweep
    return len(expand(one.spec, ArrayId("array-0a1b2c3d4"))) if is_array else 1


CONNECTION = {"auth_url": "https://s3.example.org", "user_name": "${secret:u}", "password": "${secret:p}"}
IMAGE = {"registry": "q.example.org", "namespace": "m", "user_name": "${secret:a}", "access_token": "${secret:b}"}
ROLES = {"r": {"learners": 2}, "s": {"learners": 1}}
METRICS = {
    "regex": "loss (?P<loss>.*)",
    "scalars": {"loss": {"type": "FLOAT", "value": "$loss"}},
    "etimes": {"step": {"type": "INT", "value": "1"}},
}
BASE: dict[str, Any] = {
    "name": "digits", "cpus": 1, "gpus": 1, "memory": "1GB", "learners": 2,
    "framework": {"name": "custom", "version": "docker://r.example.org/one:1", "command": "python3 train.py"},
    "data_stores": [{"type": "mount_cos", "training_data": {"container": "data"}, "connection": CONNECTION,
                     "training_results": {"container": "results"}}],
    "evaluation_metrics": {"type": "regex_extractor", "groups": {"g": METRICS}},
}  # fmt: skip
VALUES: dict[str, Any] = {
    "name": "other", "cpus": 3, "gpus": 2, "gpu_type": "a100", "learners": 3, "memory": "2GB", "storage": "5GB",
    "data_stores.*.type": "swift_datastore", "data_stores.*.training_data.container": "other",
    "data_stores.*.training_results.container": "other", "data_stores.*.connection": {**CONNECTION, "region": "x"},
    "framework.name": "pytorch", "framework.version": "docker://r.example.org/two:1",
    "framework.command": "python3 other.py", "framework.image_tag": "t", "framework.image_location.registry": "r.x.org",
    "framework.image_location.namespace": "n", "framework.image_location.user_name": "${secret:c}",
    "framework.image_location.access_token": "${secret:d}", "framework.image_location.email": "a@example.org",
    "evaluation_metrics.type": "tensorboard", "evaluation_metrics.image_tag": "t", "evaluation_metrics.in": "x",
    "evaluation_metrics.line_lookahead": 9, "evaluation_metrics.eventTypes": ["images"],
    "evaluation_metrics.groups.*.regex": "lost (?P<loss>.*)", "evaluation_metrics.groups.*.meta.time": "$loss",
    "evaluation_metrics.groups.*.scalars.*.type": "INT", "evaluation_metrics.groups.*.scalars.*.value": "3",
    "evaluation_metrics.groups.*.etimes.*.type": "FLOAT", "evaluation_metrics.groups.*.etimes.*.value": "2",
    "batch.time": "2h", "batch.profile": "big", "batch.partition": "cpu", "batch.account": "b", "batch.qos": "q",
    "batch.constraint": "c", "batch.reservation": "r", "batch.priority": "7", "batch.preemptible": True,
    "batch.placement": "pack", "batch.network.level": "none", "batch.network.allow": ["192.0.2.2:443"],
    "batch.env": {"A": "1"}, "batch.secrets": {"S": "${secret:s}"}, "batch.checkpoint.signal": "USR1",
    "batch.checkpoint.saved_by": "first",
    "batch.checkpoint.grace_s": 33, "batch.checkpoint.lead_s": 44, "batch.checkpoint.shared": True,
    "batch.retry.timeouts": 7, "batch.retry.preemptions": 7, "batch.retry.node_failures": 7, "batch.retry.failures": 7,
    "batch.retry.gpu_hours": 7, "batch.health.hang_s": 7, "batch.idle.gpu_below": "7%",
    "batch.idle.for": "7m", "batch.restart": "learner", "batch.staging": "ahead",
    "batch.mount": "always", "batch.roles.*.learners": 3, "batch.roles.*.cpus": 2, "batch.roles.*.gpus": 2,
    "batch.roles.*.memory": "3GB", "batch.roles.*.command": "python3 r.py", "batch.roles.*.service": True,
    "batch.elastic.min_learners": 3, "batch.elastic.max_learners": 1, "batch.elastic.batch.min": 48,
    "batch.elastic.batch.max": 16, "batch.elastic.batch.per_gpu_max": 8, "batch.elastic.batch.start": 48,
    "batch.elastic.learning_rate": "none", "batch.notify.mail": "a@example.org", "batch.notify.events": "END",
    "batch.slurm.args": ["--exclusive"], "batch.slurm_environment": True, "batch.kubernetes": {"priority_class": "x"},
    "batch.nodelist": "n1", "batch.exclude": "n2", "batch.dependency": "afterok:7",
    "batch.begin": "2027-01-20T12:00:00+00:00", "batch.hold": True, "batch.requeue": True, "batch.signal": "USR1@60",
    "batch.comment": "c", "batch.output": "/o/%j", "batch.gres": {"shard": 1},
}  # fmt: skip
"""Another value than that of BASE for each key; ``*`` stands for an item or a name."""
ELSEWHERE: dict[str, tuple[object, str, Callable[[Parsed], object]]] = {
    "description": ("text", "kept in the manifest of the job", lambda one: one.redacted_text.count("text")),
    "version": ("v9", "kept in the manifest of the job", lambda one: one.redacted_text.count("v9")),
    "data_stores.*.id": ("mine", "names the secrets of the store", lambda one: set(one.inline_secrets)),
    "batch.array": ("0-3", "how many jobs there are", elements),
    "batch.sweep": ({"lr": [1, 2]}, "how many jobs there are", elements),
    "batch.elastic.weight": (2, "kept with the job", lambda one: one.spec and one.spec.batch.elasticity),
    "batch.elastic.pool": ("night", "kept with the job", lambda one: one.spec and one.spec.batch.elasticity),
    "batch.elastic.in_place": (True, "kept with the job", lambda one: one.spec and one.spec.batch.elasticity),
    "batch.notify.webhook": (
        "https://h.example.org/x", "notices go there (services/incidents/notices.py)",
        lambda one: one.spec and is_read("webhook") and one.spec.batch.notify.webhook,
    ),
}  # fmt: skip
"""Keys whose effect is not in the plan: a value, where the effect is, and what shows it."""
WITHOUT_EFFECT = {
    "kubernetes": {
        "batch.retry.": "the daemon starts later attempts, not the launch file (services/outcome/job_change.py)"
    },
    "local": {
        "name": "ffdl list shows it; processes have no names",
        "batch.placement": "there is one machine",
        "batch.network.allow": "no machine has level egress: the job is refused",
        "gpu_type": "GPUs of one machine have no types here",
        "cpus": "processes are not limited; there is a warning if the machine has less",
        "batch.roles.*.cpus": "processes are not limited; there is a warning if the machine has less",
        "batch.roles.*.memory": "processes are not limited; there is a warning if the machine has less",
    },
}
"""Keys, by their beginning, that change nothing on one backend, and why nobody is misled."""
AROUND: dict[str, dict[str, Any]] = {
    "data_stores.*.id": {
        "data_stores": [{**BASE["data_stores"][0], "connection": {"user_name": "u", "password": "p"}}]
    },
    "batch.roles": {"learners": None, "batch": {"roles": ROLES}},
    "batch.elastic": {
        "batch": {
            "elastic": {
                "max_learners": 4,
                "batch": {"min": 32, "max": 64, "per_gpu_max": 32, "start": 33},
            }
        }
    },
    "batch.network.allow": {"batch": {"network": {"level": "egress", "allow": ["192.0.2.1:443"]}}},
    "framework.image_location": {"framework": {**BASE["framework"], "version": "one:1", "image_location": IMAGE}},
}
"""What a key needs around it to mean anything."""
NODES = (NodeShape("n[1-9]", 80, 10**11, {"a100": 4, "shard": 4}, ("main", "cpu")),)
MACHINE = BackendFacts(NODES, (), frozenset(NetworkLevel), "26.05.5", "/py", ("ctl",), staging=CLUSTER.staging)
ALONE = replace(MACHINE, network_levels=frozenset({NetworkLevel.HOST, NetworkLevel.NONE}))
FACTS = {"slurm": MACHINE, "local": ALONE, "kubernetes": CLUSTER}


def leaves(model: type[BaseModel] = ManifestBlock, above: str = "") -> Iterator[str]:
    """Yield the keys that hold no other keys of the schema."""
    for key, annotation in fields_of(model).items():
        inner = _model_in(annotation)
        several = ".*" if "list[" in str(annotation) or "dict[" in str(annotation) else ""
        yield from [above + key] if inner is None else leaves(inner, f"{above}{key}{several}.")


def manifests(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a manifest without the value of this key, and one with it."""
    around = next((more for key, more in AROUND.items() if path.startswith(key)), {})
    before = copy.deepcopy({key: value for key, value in (BASE | around).items() if value is not None})
    after = copy.deepcopy(before)
    node: Any = after
    *steps, last = path.split(".")
    for step in steps:
        name = next(iter(node)) if step == "*" and isinstance(node, dict) else step
        node = node[0] if isinstance(node, list) else node.setdefault(name, {})
    node[last] = VALUES[path] if path in VALUES else ELSEWHERE[path][0]
    return before, after


def parsed(manifest: dict[str, Any]) -> Parsed:
    return parsed_text(json.dumps(manifest))


@cache
def parsed_text(text: str) -> Parsed:
    """Most tests compare with the same manifest."""
    return parse_manifest(ManifestSource(text, "m.yml", "/home/a"), defaults=Defaults())


@cache
def plans(manifest: str) -> dict[str, object]:
    """Return what each backend would be sent, or why it refuses."""
    spec = parsed_text(manifest).spec
    assert spec is not None

    def plan(backend: str) -> LaunchPlan:
        lead, settings = lead_of(spec, ()), Settings("/s", "/j")
        is_cluster = backend == "kubernetes"
        request = request_of(
            spec, facts=FACTS[backend], user_env=dict(spec.batch.env), lead_s=lead.seconds,
            lead_from=lead.origin, budget=budget_of(spec.batch.retry), mounting=Mounting.AUTO, images_dir="/images",
            image=(resolve_oci_image if is_cluster else resolve_image)(settings, spec.framework),
        )  # fmt: skip
        if backend == "slurm":
            return slurm_plan.make_plan(request, SlurmSettings())
        if backend == "local":
            return local_plan.make_plan(request, LocalSettings(runtime="apptainer"), "/q", "/p")
        return kubernetes_plan.make_plan(request, settled({}))

    found: dict[str, object] = {}
    for backend in FACTS:
        try:
            found[backend] = to_plain(plan(backend))
        except (InvalidRequest, UnknownImage) as refused:
            found[backend] = str(refused)
    return found


def reports(one: Parsed, path: str) -> set[str]:
    """Return the findings about a key."""
    places = {f"{found.path}: {found.message}": re.sub(r"\[\d+\]", ".*", found.path or "") for found in one.findings}
    return {text for text, place in places.items() if place.startswith(path)}


@pytest.mark.parametrize("path", sorted({*leaves(), *VALUES}))
def test_manifest_key_changes_plan_of_backend_or_is_reported(path: str) -> None:
    texts = [json.dumps(manifest) for manifest in manifests(path)]
    before, after = map(parsed_text, texts)
    assert before.spec is not None
    if path in ELSEWHERE:
        _, _, shown = ELSEWHERE[path]
        assert shown(before) != shown(after)
        return
    if after.spec is None or reports(after, path) - reports(before, path):
        return
    sent, altered = map(plans, texts)
    same = {backend for backend in FACTS if sent[backend] == altered[backend]}
    excused = {name for name, keys in WITHOUT_EFFECT.items() if any(path.startswith(key) for key in keys)}
    assert same == excused
