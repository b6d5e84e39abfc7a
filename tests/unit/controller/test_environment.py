"""Quoting of a learner's environment, proved by the shell itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffdl_batch.controller.learner.environment import (
    EnvironmentRefused,
    check_shell,
    file_text,
    host_subset,
    merge,
    read_user_environment,
)
from ffdl_batch.domain.launch.launch_file import EXPORTS_VARIABLE
from ffdl_batch.manifest.models.ffdl import MAX_COMMAND_BYTES

READ_BACK = (
    f'set -a; . "$1"; set +a; eval "${{{EXPORTS_VARIABLE}-}}"; unset {EXPORTS_VARIABLE}; exec "$2" -I -S -c "$3"'
)
DUMP = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(k + b'=' + v for k, v in os.environb.items()))"
values = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40)
names = st.from_regex(r"\AV_[A-Z0-9_]{1,12}\Z") | st.sampled_from(["HOME", "PATH", "LD_LIBRARY_PATH", "IFS", "PS1"])


def through_bash(variables: dict[str, str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "env"
        path.write_bytes(file_text(variables).encode("utf-8", "surrogateescape"))
        argv = ["bash", "-c", READ_BACK, "bash", str(path), sys.executable, DUMP]
        out = subprocess.run(argv, check=True, capture_output=True, env={"PATH": os.environ["PATH"]}).stdout
    pairs = (item.split(b"=", 1) for item in out.split(b"\0"))
    return {name.decode(): value.decode("utf-8", "surrogateescape") for name, value in pairs}


@pytest.mark.parametrize(
    ("variables", "refused"),
    [
        ({"V": "x" * 131069}, ""),
        ({"V": "x" * 131070}, "V has 131072 bytes"),
        ({"PATH": "\u00e4" * 60000, "V": "x"}, "PATH: escaped for the container runtime, the values are too long"),
    ],
)
def test_variable_longer_than_linux_accepts_is_refused(variables: dict[str, str], refused: str) -> None:
    if refused:
        with pytest.raises(EnvironmentRefused, match=refused):
            file_text(merge(variables, {}, ()))
    else:
        assert subprocess.run(["true"], env=merge(variables, {}, ()), check=True).returncode == 0


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(names, values, max_size=8))
def test_environment_file_preserves_any_value_through_bash(variables: dict[str, str]) -> None:
    found = through_bash(variables)
    assert {name: found.get(name) for name in variables} == variables


def test_environment_file_preserves_shell_special_characters() -> None:
    nasty = [
        "$(id)",
        "`id`",
        'it\'s "x"',
        "\\",
        "a\\\nb",
        "a\r\nb",
        "\n\n",
        " x \t ",
        "",
        "ü漢",
        "!x",
        "~",
        "*",
        "\udcff",
    ]
    variables = {f"V_{i}": text for i, text in enumerate(nasty)}
    found = through_bash(variables)
    assert {name: found[name] for name in variables} == variables


def test_environment_with_longest_command_can_start_process(tmp_path: Path) -> None:
    line = 'echo "{\\"a\\": [$A, $((1 + 1))]}" | jq ".[]|{(.b)}" >"$X" && [ ! -e "$Y" ] \\\n'
    path = tmp_path / "env"
    path.write_text(file_text({"TRAINING_COMMAND": (line * 1000)[: MAX_COMMAND_BYTES - 1]}))
    subprocess.run(["bash", "-c", 'set -a; . "$1"; exec true', "bash", str(path)], check=True)


def test_environment_file_encodes_values_that_apptainer_would_alter() -> None:
    text = file_text({"PLAIN": "x", "HOME": "/h", "LINES_": "a\r\nb"})
    assert text.splitlines()[-1] == "PLAIN='x'"
    assert "HOME='/h'" not in text
    assert "\r" not in text


BAD_NAMES = ["", "a-b", "1A", "A B", "A=B", "UID", "BASHOPTS", "APPTAINERENV_A", "SINGULARITY_BIND", "é"]


@pytest.mark.parametrize(
    ("name", "value", "message"), [*((name, "x", "cannot|not a variable") for name in BAD_NAMES), ("A", "\0", "NUL")]
)
def test_environment_merge_rejects_bad_names_and_nul_in_value(name: str, value: str, message: str) -> None:
    with pytest.raises(EnvironmentRefused, match=message):
        merge({}, {name: value}, ())


@pytest.mark.parametrize("path", ["a", "", "/nowhere:/proc"])
def test_shell_check_rejects_path_without_bash(path: str) -> None:
    with pytest.raises(EnvironmentRefused, match=re.escape(f"no bash on the PATH that the job was given ({path!r})")):
        check_shell({"PATH": path})
    check_shell({"PATH": f"{path}:{os.environ['PATH']}"})
    check_shell({})


def test_environment_merge_prefers_user_values_except_protected_names() -> None:
    assert merge({"A": "1", "B": "1"}, {"A": "2", "B": "2"}, ("B",)) == {"A": "2", "B": "1"}


def test_host_subset_excludes_container_runtime_settings() -> None:
    host = {"PATH": "/bin", "APPTAINER_BIND": "/", "SLURM_JOB_ID": "1", "SECRET": "x", "SINGULARITYENV_A": "1",
            "SINGULARITYHUB": "x"}  # fmt: skip
    kept = {name: host[name] for name in ("PATH", "SLURM_JOB_ID", "SECRET", "SINGULARITYHUB")}
    assert host_subset(host, ("PATH", "SLURM_*", "APPTAINER*", "*")) == kept
    assert host_subset(host, ("PATH", "SLURM_*")) == {"PATH": "/bin", "SLURM_JOB_ID": "1"}


@pytest.mark.parametrize("text", ["[1]", '{"A": 1}', "{"])
def test_user_environment_rejects_damaged_file(text: str) -> None:
    with pytest.raises(EnvironmentRefused, match=r"environment\.json"):
        read_user_environment(text)


def test_user_environment_reads_empty_and_valid_file() -> None:
    assert read_user_environment("") == {}
    assert read_user_environment(json.dumps({"A": "b"})) == {"A": "b"}
