"""Objects for those who apply them by hand."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from kubernetes_validate import validate

from ffdl_batch.domain.conversion import CannotConvert, ExportedJob, ExportRequest, Fate
from ffdl_batch.manifest import ManifestSource, parse_manifest
from ffdl_batch.ports.conversion import ExportsJobs
from ffdl_kubernetes.exporter import KEY_FATES, KubernetesExporter

MANIFEST = """\
name: digits
learners: 2
cpus: 2
gpus: 1
memory: 1GiB
framework: {name: custom, version: "registry.example.org/a/b:1", command: "python3 train.py"}
"""
RELEASES = ("1.29", "1.37")


def export(text: str = MANIFEST, **settings: object) -> ExportedJob:
    parsed = parse_manifest(ManifestSource(text, "digits.yml", "/home/ann"))
    assert parsed.spec is not None, parsed.findings
    exporter = KubernetesExporter()
    assert isinstance(exporter, ExportsJobs) and exporter.pulls_images
    return exporter.export(ExportRequest(parsed.spec, "digits.yml", "registry.example.org/a/b:1", settings))


def objects(exported: ExportedJob) -> list[Any]:
    return list(yaml.safe_load_all(exported.text))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("more", [
    "",
    "batch: {time: 2h, env: {A: 'yes'}, secrets: {TOKEN: '${secret:hub}'}, network: job}\n",
    "batch: {sweep: [{LR: 0.1}, {LR: 0.2}]}\n",
])  # fmt: skip
def test_kubernetes_export_passes_schemas_of_supported_releases(release: str, more: str) -> None:
    found = objects(export(MANIFEST + more))
    assert {"Job", "ConfigMap", "NetworkPolicy", "Service"} <= {one["kind"] for one in found}
    for one in found:
        validate(one, release, strict=True)


def test_kubernetes_export_runs_without_daemon_in_named_namespace() -> None:
    found = export(namespace="team")
    job = next(one for one in objects(found) if one["kind"] == "Job")
    assert job["spec"]["suspend"] is False
    assert "finalizers" not in job["spec"]["template"]["metadata"]
    assert all(one["metadata"]["namespace"] == "team" for one in objects(found))
    model = f"{job['metadata']['name']}-model"
    assert f"kubectl create configmap {model} " in found.text
    volume = next(one for one in job["spec"]["template"]["spec"]["volumes"] if one["name"] == "model")
    assert volume["projected"]["sources"][0]["configMap"]["name"] == model


def test_kubernetes_export_is_reproducible_with_names_unique_per_manifest() -> None:
    assert export().text == export().text
    names = {objects(export(MANIFEST.replace("digits", name)))[0]["metadata"]["name"] for name in ("a", "b", "digits")}
    assert len(names) == 3


def test_kubernetes_export_omits_secret_values() -> None:
    text = MANIFEST + "batch: {env: {A: plain}, secrets: {TOKEN: 'in-clear-here'}}\n"
    found = export(text)
    assert "in-clear-here" not in found.text
    secret = next(one for one in objects(found) if one["kind"] == "Secret")
    assert (
        '"A": "plain"' in secret["stringData"]["environment.json"]
        and "(not shown)" in secret["stringData"]["secrets.json"]
    )


def test_kubernetes_export_judges_each_manifest_key() -> None:
    judged = {one.text: one for one in export(MANIFEST + "batch: {time: 2h, partition: gpu, hold: true}\n").judged}
    assert (judged["learners"].fate, judged["learners"].line) == (Fate.MAPPED, 2)
    assert judged["batch.hold"].fate is Fate.DROPPED
    assert all(one.reason for one in judged.values() if one.fate is not Fate.MAPPED)


def test_kubernetes_export_explains_every_schema_key() -> None:
    from ffdl_batch.manifest.models.batch import BatchBlock, ManifestBlock

    keys = {*ManifestBlock.model_fields, *(f"batch.{name}" for name in BatchBlock.model_fields)} - {"batch"}
    assert sorted(keys - set(KEY_FATES)) == []


def test_kubernetes_export_rejects_gpu_fraction_and_large_array() -> None:
    with pytest.raises(CannotConvert, match="shares of a GPU"):
        export(MANIFEST.replace("gpus: 1", "gpus: 0.5"))
    with pytest.raises(CannotConvert, match="as many Jobs"):
        export(MANIFEST + "batch: {array: 0-2000}\n")
