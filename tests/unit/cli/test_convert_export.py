"""``ffdl convert --to`` and manifests of Watson Machine Learning, at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ffdl_batch.cli.commands.convert.command import convert
from tests.unit.cli.test_convert_history import invoke

MANIFEST = """\
name: digits
learners: 2
cpus: 2
memory: 1GiB
framework: {name: custom, version: "registry.example.org/a/b:1", command: "python3 train.py"}
data_stores:
  - id: s
    type: s3_datastore
    connection: {auth_url: "https://s3.example.org", user_name: AKIA-IN-CLEAR, password: s3cr3t-value}
    training_data: {container: in}
batch: {time: 2h, retry: {failures: 3}}
"""
WML = """\
model_definition:
  framework: {name: tensorflow, version: '1.15'}
  name: mnist
  execution: {command: python3 train.py, compute_configuration: {name: k80, nodes: 1}}
training_data_reference:
  name: input
  connection: {endpoint_url: "https://s3.example.org", access_key_id: AKIA-IN-CLEAR, secret_access_key: s3cr3t-value}
  source: {bucket: in}
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "digits.yml"
    path.write_text(MANIFEST)
    return path


@pytest.mark.parametrize(("to", "begins"), [("slurm", "#!/bin/bash\n#SBATCH "), ("kubernetes", "# Made of ")])
def test_convert_to_writes_target_format_without_secrets(manifest: Path, tmp_path: Path, to: str, begins: str) -> None:
    out = tmp_path / "out"
    code, said, _ = invoke(str(manifest), "--to", to, "-o", str(out))
    text = out.read_text()
    assert code == 0 and text.startswith(begins)
    assert f"{manifest}:1: " in said and "batch.retry" in said and "dropped" in said
    assert "s3cr3t-value" not in text + said and "AKIA-IN-CLEAR" not in text + said


def test_convert_to_prints_json_report(manifest: Path) -> None:
    code, out, err = invoke(str(manifest), "--to", "slurm", "--report", "json")
    assert code == 0 and out.startswith("#!/bin/bash")
    told = json.loads(err.splitlines()[-1])
    assert told["counts"]["dropped"] >= 1 and {one["line"] for one in told["judged"]} <= set(range(1, 12))


@pytest.mark.parametrize("to", ["pbs", "wml"])
def test_convert_to_rejects_format_it_cannot_write(manifest: Path, to: str) -> None:
    code, out, err = invoke(str(manifest), "--to", to)
    assert (code, out) == (2, "") and f"'{to}' is not a format that can be written: kubernetes, sbatch, slurm" in err


def test_convert_reads_wml_manifest_without_copying_secrets(tmp_path: Path) -> None:
    source, out = tmp_path / "wml.yml", tmp_path / "manifest.yml"
    source.write_text(WML)
    code, said, _ = invoke(str(source), "-o", str(out))
    text = out.read_text()
    assert code == 0 and "name: mnist\n" in text and "${secret:wml-data-password}" in text
    assert "ffdl secret set wml-data-password" in said
    assert "s3cr3t-value" not in text + said and "AKIA-IN-CLEAR" not in text + said
    code, _, err = invoke(str(source), "-o", str(out), "--check")
    assert code == 2 and "no writer for such scripts is installed" in err


def test_convert_help_lists_history_and_target_options() -> None:
    said = CliRunner().invoke(convert, ["--help"]).output
    assert all(word in said for word in ("--history", "--to FORMAT", "--since TIME", "--account NAME"))


@pytest.mark.parametrize("arguments", [["--to", "kubernetes"], ["--to", "slurm"], ["--history"]])
def test_convert_names_configuration_file_with_unusable_backend_table(
    manifest: Path, tmp_path: Path, arguments: list[str]
) -> None:
    config = tmp_path / "site.toml"
    config.write_text("".join(f"[backend.{name}]\npartitoin = 1\n" for name in ("kubernetes", "slurm")))
    files = [] if arguments == ["--history"] else [str(manifest)]
    code, out, err = invoke(*files, *arguments, FFDL_CONFIG=str(config))
    assert (code, out) == (78, "")
    assert err.startswith(f"ffdl: the configuration cannot be used: {config}: [backend.")
    assert "unknown key 'partitoin'" in err and err.count("\n") == 1
