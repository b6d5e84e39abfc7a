"""The JSON Schema, the starter manifest, the lazy package, literal paths."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import jsonschema
import pytest
import yaml

from ffdl_batch.domain.launch.network_level import NetworkLevel
from ffdl_batch.manifest import json_schema, literal_paths, starter_manifest
from tests.unit.manifest.samples import MINIMAL, parse, read


def test_json_schema_is_valid_2020_12_and_plain_json_and_describes_every_key() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert json.loads(json.dumps(schema)) == schema
    definitions = schema["$defs"]
    assert isinstance(definitions, dict)
    blocks = [schema, *definitions.values()]
    bare = [key for block in blocks for key, value in block["properties"].items() if not value.get("description")]
    assert bare == [] and all(block.get("description") for block in blocks)
    schema.clear()
    assert "properties" in json_schema(), "each caller has a copy of its own"


@pytest.mark.parametrize(
    "text",
    [
        "cpus: {v}", "gpus: {v}", "learners: {v}", "memory: {v}", "storage: {v}", "description: {v}", "batch: {v}",
        "data_stores: {v}", "batch: {{time: {v}}}", "batch: {{hold: {v}}}", "batch: {{network: {v}}}",
        "batch: {{placement: {v}}}", "batch: {{env: {v}}}", "batch: {{retry: {{failures: {v}}}}}",
        "batch: {{retry: {{gpu_hours: {v}}}}}",
        "evaluation_metrics: {v}", "evaluation_metrics: {{eventTypes: {v}}}", "batch: {{partition: {v}}}",
        "batch: {{sweep: {v}}}", "batch: {{sweep: {{a: {v}}}}}",
    ],
)  # fmt: skip
def test_json_schema_and_parser_accept_the_same_values(text: str) -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    for value in ("~", "1", "0", "-1", "0.5", "1e3", "'2'", "8GB", "job", "yes", "[]", "{}", "[a]", "{a: 1}"):
        manifest = f"name: x\nframework: {{name: n, version: v, command: c}}\n{text.format(v=value)}\n"
        accepted = validator.is_valid(yaml.safe_load(manifest))
        assert accepted == (parse(manifest).spec is not None), manifest


@pytest.mark.parametrize(
    "name", ["digits", "yes", "a: b", "#1", "it's", 'a "b"', "Größe", "null", "0123", "- x", "a # b"]
)
def test_starter_manifest_parses_without_findings_for_any_name(name: str) -> None:
    text = starter_manifest(name)
    job = read(text)
    assert job.name == name
    assert (job.framework.name, job.resources.gpus, job.data_stores) == ("custom", 0, ())
    assert "$RESULT_DIR" in job.framework.command
    assert parse(text, strict=True).findings == ()
    assert read(starter_manifest(name, "tensorflow", "1.10")).framework.version == "1.10"


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\0b"])
def test_starter_manifest_rejects_unusable_name(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a name"):
        starter_manifest(name)


def test_starter_manifest_commented_parts_parse() -> None:
    lines = starter_manifest("x").splitlines()
    store = [line.removeprefix("# ") for line in lines if line.startswith(("# data_stores:", "#   "))]
    options = [
        "batch:",
        *(line.replace("  # ", "  ", 1) for line in lines if line.startswith(("  # part", "  # netw", "  # env"))),
    ]
    job = read(MINIMAL + "\n".join([*store, *options]) + "\n")
    assert (
        job.data_stores[0].id == "mine" and job.batch.partition == "gpu" and job.batch.env == {"LEARNING_RATE": "0.1"}
    )


def test_starter_manifest_lists_every_network_level() -> None:
    (line,) = [line for line in starter_manifest("x").splitlines() if "network:" in line]
    _, offered, _ = re.split(r"network: | *;", line.replace("HOST:PORT", "data.example.org:443"))
    words = re.split(r" +# or |, (?![^{]*})", offered)
    levels = {read(f"{MINIMAL}batch: {{network: {word}}}\n").batch.network for word in words}
    assert levels == set(NetworkLevel) - {NetworkLevel.AUTO}
    assert "default (auto)" in line


def test_manifest_package_import_does_not_load_pydantic_or_yaml() -> None:
    code = "import sys, ffdl_batch.manifest; sys.exit(any(m in sys.modules for m in ('pydantic', 'yaml')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python a.py --data /mnt/data/in --out=/mnt/results", ("/mnt/data", "/mnt/results")),
        ('cat /job/logs/x > "/job"; ls /jobs $HOME/job ./job /my/job ${X}/job', ("/job",)),
        ("python a.py $DATA_DIR", ()),
        ("ls /mnt/database /mnt/data-old", ()),
    ],
)
def test_literal_paths_finds_job_directories_in_command(command: str, found: tuple[str, ...]) -> None:
    job = read(f"name: x\nframework: {{name: n, version: v, command: {json.dumps(command)}}}\n")
    assert literal_paths(job) == found


def test_literal_paths_searches_environment_and_roles() -> None:
    job = read(MINIMAL + "batch: {env: {P: 'x:/job/lib'}, roles: {worker: {command: ls /mnt/data}}}\n")
    assert literal_paths(job) == ("/job", "/mnt/data")
