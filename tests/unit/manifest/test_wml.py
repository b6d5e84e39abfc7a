"""Manifests of Watson Machine Learning."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.conversion import CannotConvert, Conversion, Fate, Judged, Source
from ffdl_batch.manifest import ManifestSource, parse_manifest
from ffdl_batch.manifest.watson_ml import SIZES, WmlReader
from ffdl_batch.manifest.writer import write_manifest
from ffdl_batch.ports.conversion import ReadsScripts

WML = """\
model_definition:
  framework:
    name: tensorflow
    version: 1.10
    runtimes: {name: python, version: '3.5'}
  name: mnist
  author: {name: Ann, email: ann@example.org}
  description: digits
  execution:
    command: >
      python3 train.py
      --data ${DATA_DIR}
    compute_configuration:
      name: v100x2
      nodes: 2
training_data_reference:
  name: input
  connection:
    endpoint_url: https://s3.example.org
    access_key_id: AKIA-IN-CLEAR
    secret_access_key: s3cr3t-value
  source: {bucket: digits-in}
  type: s3
training_results_reference:
  name: output
  connection:
    endpoint_url: https://s3.example.org
    access_key_id: AKIA-IN-CLEAR
    secret_access_key: s3cr3t-value
  target: {bucket: digits-out}
  type: s3
"""


def convert(text: str) -> Conversion:
    reader = WmlReader()
    assert isinstance(reader, ReadsScripts) and reader.recognises(text)
    return reader.convert(Source(text, "job.yml"))


def told(found: Conversion, text: str) -> Judged:
    (one,) = [one for one in found.judged if one.text.startswith(text)]
    return one


def test_wml_convert_produces_a_valid_manifest() -> None:
    found = convert(WML)
    assert found.manifest == {
        "name": "mnist", "description": "digits", "learners": 2, "gpus": 2, "cpus": 52, "memory": "48Gb",
        "data_stores": [{
            "id": "input", "type": "mount_cos", "training_data": {"container": "digits-in"},
            "training_results": {"container": "digits-out"},
            "connection": {
                "auth_url": "https://s3.example.org", "user_name": "${secret:wml-data-user_name}",
                "password": "${secret:wml-data-password}",
            },
        }],
        "framework": {
            "name": "tensorflow", "version": "1.10", "command": "python3 train.py --data ${DATA_DIR}\n",
        },
    }  # fmt: skip
    parsed = parse_manifest(ManifestSource(write_manifest(found.manifest), "made.yml", "/"))
    assert parsed.spec is not None, parsed.findings
    assert parsed.spec.resources.memory_bytes == 48 * 10**9
    assert (parsed.spec.framework.version, dict(parsed.inline_secrets)) == ("1.10", {})


def test_wml_convert_judges_each_value_with_its_line() -> None:
    found = convert(WML)
    assert [one.line for one in found.judged] == sorted(one.line for one in found.judged)
    assert told(found, "model_definition.framework.name").fate is Fate.MAPPED
    size = told(found, "model_definition.execution.compute_configuration.name: v100x2")
    assert (size.line, size.fate, size.to) == (14, Fate.APPROXIMATED, "gpus, cpus, memory")
    runtime = told(found, "model_definition.framework.runtimes.version: 3.5")
    assert (runtime.line, runtime.fate) == (5, Fate.DROPPED) and runtime.reason
    assert all(one.reason for one in found.judged if one.fate is not Fate.MAPPED)
    leaves = sum(1 for line in WML.splitlines() if ": " in line and not line.endswith(">"))
    assert len(found.judged) > leaves


def test_wml_convert_hides_credentials_and_names_secret_set_command() -> None:
    found = convert(WML)
    everything = write_manifest(found.manifest) + repr(found.judged)
    assert "s3cr3t-value" not in everything and "AKIA-IN-CLEAR" not in everything
    one = told(found, "training_data_reference.connection.secret_access_key: ***")
    assert one.reason.endswith("ffdl secret set wml-data-password")
    same = told(found, "training_results_reference.connection.secret_access_key: ***")
    assert same.reason.endswith("ffdl secret set wml-data-password")


def test_wml_convert_makes_separate_store_for_results_in_other_location() -> None:
    head, _, tail = WML.partition("training_results_reference")
    found = convert(f"{head}training_results_reference{tail.replace('s3cr3t-value', 'another')}")
    stores = found.manifest["data_stores"]
    assert isinstance(stores, list)
    assert [(store["id"], "training_data" in store) for store in stores] == [("input", True), ("output", False)]
    assert stores[1]["connection"]["password"] == "${secret:wml-results-password}"
    parsed = parse_manifest(ManifestSource(write_manifest(found.manifest), "made.yml", "/"))
    assert parsed.spec is not None, parsed.findings


@pytest.mark.parametrize("size", [*SIZES, "small"])
def test_wml_convert_maps_every_size_to_gpus_cpus_and_memory(size: str) -> None:
    manifest = convert(WML.replace("v100x2", size)).manifest
    expected = SIZES.get(size, (0, 1, 1))
    assert (manifest["gpus"], manifest["cpus"], manifest["memory"]) == (*expected[:2], f"{expected[2]}Gb")


def test_wml_convert_uses_one_learner_if_nodes_is_no_number() -> None:
    found = convert(WML.replace("nodes: 2", "nodes: two"))
    assert found.manifest["learners"] == 1
    assert told(found, "model_definition.execution.compute_configuration.nodes").fate is Fate.APPROXIMATED


def test_wml_convert_drops_unknown_keys_and_hides_their_secrets() -> None:
    found = convert(WML + "extra:\n  deep: [1, {secret_key: hidden-one}]\n")
    assert told(found, "extra.deep[0]: 1").fate is Fate.DROPPED
    assert "hidden-one" not in repr(found.judged)


@pytest.mark.parametrize("text", ["name: x\nframework: {name: a, command: b}\n", "#!/bin/sh\n", "a: [\n", "- 1\n", ""])
def test_wml_reader_does_not_recognise_other_documents(text: str) -> None:
    assert not WmlReader().recognises(text)


def test_wml_convert_rejects_missing_command_and_check() -> None:
    with pytest.raises(CannotConvert, match=r"model_definition\.execution\.command is missing"):
        convert("model_definition: {framework: {name: tensorflow}}\n")
    with pytest.raises(CannotConvert, match="leave --check out"):
        WmlReader().differences(Source("", "x"), "")


def test_wml_convert_uses_first_of_several_inputs() -> None:
    before, mark, after = WML.partition("training_data_reference:\n")
    block, _, rest = after.partition("training_results_reference:")
    lines = [f"  {line}" for line in block.splitlines()]
    first = "\n".join(["  - " + lines[0].strip(), *lines[1:]])
    second = first.replace("digits-in", "more").replace("name: input", "name: second")
    found = convert(f"{before}{mark}{first}\n{second}\ntraining_results_reference:{rest}")
    assert found.manifest["data_stores"] == convert(WML).manifest["data_stores"]
    assert told(found, "training_data_reference[0].source.bucket").fate is Fate.MAPPED
    dropped = told(found, "training_data_reference[1].source.bucket")
    assert dropped.fate is Fate.DROPPED and "the first of the list" in dropped.reason
