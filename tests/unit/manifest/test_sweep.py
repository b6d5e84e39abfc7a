"""`batch.array` and `batch.sweep`: what they stand for, and what is wrong with them, at its own line."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.findings import Severity
from ffdl_batch.runtimes.learner_contract import PROTECTED
from tests.unit.manifest.samples import MINIMAL, errors, parse, read


def manifest(text: str) -> str:
    return f"{MINIMAL}batch:\n" + "".join(f"  {line}\n" for line in text.splitlines())


def sweep_of(text: str) -> list[dict[str, str]]:
    return [dict(values) for values in read(manifest(text)).batch.sweep]


def test_sweep_grid_varies_last_variable_fastest_and_keeps_raw_text() -> None:
    assert sweep_of("sweep: {lr: [0.10, 1e-3], depth: [2, yes]}") == [
        {"lr": "0.10", "depth": "2"},
        {"lr": "0.10", "depth": "yes"},
        {"lr": "1e-3", "depth": "2"},
        {"lr": "1e-3", "depth": "yes"},
    ]


def test_sweep_list_gives_one_element_per_entry() -> None:
    text = "sweep:\n- {lr: 0.1, depth: 2}\n- lr: 0.01\n  depth:\n"
    assert sweep_of(text) == [{"lr": "0.1", "depth": "2"}, {"lr": "0.01", "depth": ""}]


def test_sweep_is_empty_if_absent_or_null() -> None:
    assert sweep_of("sweep:\nenv: {A: 1}") == []
    assert read(MINIMAL).batch.sweep == ()


def test_sweep_and_array_are_both_kept() -> None:
    batch = read(manifest("array: 1,3%1\nsweep: {a: [1, 2, 3, 4]}")).batch
    assert (batch.array, len(batch.sweep)) == ("1,3%1", 4)


def test_array_option_overrides_manifest_array() -> None:
    parsed = parse(manifest("array: 0-3"), options={"array": "5"})
    assert parsed.spec is not None and parsed.spec.batch.array == "5"
    assert parsed.spec.sources["batch.array"] == "command line"
    assert errors(parse(manifest("array: 0-3"), options={"array": "3-1"})) == [
        "error: --array: '3-1' ends before it begins (write 1-3)"
    ]


FIRST = len(MINIMAL.splitlines()) + 2


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("array: 0-10000", 0, "batch.array: '0-10000' has 10001 elements (an array has 10000 at most)"),
        ("sweep: 3", 0, "batch.sweep: '3' is not a sweep"),
        ("sweep: {}", 0, "batch.sweep: the sweep has no elements"),
        ("sweep: []", 0, "batch.sweep: the sweep has no elements"),
        ("sweep:\n  lr: [1]\n  depth: 2", 2, "batch.sweep.depth: a list of values is needed here"),
        ("sweep:\n  lr: [1]\n  depth: []", 2, "batch.sweep.depth: a list of values is needed here"),
        ("sweep:\n  lr:\n  - 1\n  - [2]", 3, "batch.sweep.lr[1]: one value is needed here"),
        ("sweep:\n  lr: [1]\n  my-depth: [2]", 2, "'my-depth' is not a variable's name"),
        ("sweep:\n- {lr: 1}\n- lr", 2, "batch.sweep[1]: a mapping of variables to values is needed here"),
        ("sweep:\n- {lr: 1}\n- {}", 2, "batch.sweep[1]: a mapping of variables to values is needed here"),
        ("sweep:\n- {lr: 1}\n- {lr: {a: 1}}", 2, "batch.sweep[1].lr: one value is needed here"),
        ("sweep:\n- {lr: 1}\n- {SINGULARITY_BIND: 1}", 2, "belongs to the container runtime"),
        ("sweep:\n  lr: [1]\n  JOB_STATE_DIR: [a, b]", 2, "batch.sweep.JOB_STATE_DIR: the platform sets JOB_STATE_DIR"),
        ("sweep:\n  lr: [1]\n  FFDL_ARRAY_INDEX: [3]", 2, "the platform sets FFDL_ARRAY_INDEX itself"),
        ("sweep:\n- {lr: 1}\n- {SLURM_ARRAY_TASK_ID: 1}", 2, "the platform sets SLURM_ARRAY_TASK_ID itself"),
        ("sweep:\n- {TRAINING_ID: 1}\n- {TRAINING_ID: 2}", 1, "the platform sets TRAINING_ID itself"),
        ("array: 0,4\nsweep:\n- {lr: 1}", 0, "batch.array: the sweep has no element 4; its elements are 0 to 0"),
    ],
)
def test_sweep_and_array_errors_name_the_line(text: str, line: int, why: str) -> None:
    (found,) = errors(parse(manifest(text)))
    assert found.startswith(f"m.yml:{FIRST + line}:") and why in found


def test_sweep_rejects_oversized_grid_with_one_error() -> None:
    numbers = ", ".join(map(str, range(30)))
    found = errors(parse(manifest(f"sweep: {{a: [{numbers}], b: [{numbers}], c: [{numbers}]}}")))
    assert len(found) == 1
    assert "the grid has 30 x 30 x 30 = 27000 elements; an array has 10000 at most" in found[0]


def test_sweep_list_accepts_10000_elements_and_rejects_one_more() -> None:
    lines = "".join(f"  - {{a: {n}, b: x}}\n" for n in range(10_000))
    spec = read(f"{MINIMAL}batch:\n  sweep:\n{lines}")
    assert len(spec.batch.sweep) == 10_000
    (found,) = errors(parse(f"{MINIMAL}batch:\n  sweep:\n{lines}  - {{a: 1, b: x}}\n"))
    assert "the list has 10001 elements; an array has 10000 at most" in found


def test_sweep_warns_about_missing_and_duplicate_variables() -> None:
    parsed = parse(manifest("env: {lr: 1}\nsweep:\n- {lr: 1, depth: 2}\n- {lr: 2}"))
    warnings = [str(finding) for finding in parsed.findings if finding.severity is Severity.WARNING]
    assert parsed.spec is not None and len(warnings) == 2
    assert "batch.env.lr: the sweep sets this variable, too" in warnings[0]
    assert "batch.sweep[1]: depth is not set here" in warnings[1]


def test_sweep_warns_about_credential_like_variable() -> None:
    parsed = parse(manifest("sweep: {API_TOKEN: [a, b]}"))
    assert any("looks like a credential" in str(finding) for finding in parsed.findings)


def warned(text: str) -> list[str]:
    parsed = parse(text)
    assert parsed.spec is not None, errors(parsed)
    return [str(finding) for finding in parsed.findings if finding.severity is Severity.WARNING]


@pytest.mark.parametrize("text", ["sweep:\n  PATH: [a, b]", "env:\n  PATH: a", "sweep:\n- {PATH: a}\n- {PATH: b}"])
def test_path_variable_warns_once_in_env_or_sweep(text: str) -> None:
    (found,) = warned(manifest(text))
    assert found.startswith(f"m.yml:{FIRST + 1}:") and "PATH: the learner's shell and programs are looked for" in found


@pytest.mark.parametrize("name", ["HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME"])
def test_loader_variable_warns_in_env_and_sweep(name: str) -> None:
    assert [name in found for found in warned(manifest(f"env: {{{name}: /x}}"))] == [True]
    assert [name in found for found in warned(manifest(f"sweep: {{{name}: [/x]}}"))] == [True]


def test_env_refuses_every_protected_variable() -> None:
    names = "".join(f"  {name}: x\n" for name in PROTECTED)
    found = errors(parse(manifest(f"env:\n{names}")))
    assert len(found) == len(PROTECTED)
    assert all(f"the platform sets {name} itself" in text for name, text in zip(PROTECTED, found, strict=True))


def test_env_refuses_array_variable_only_in_arrays() -> None:
    assert errors(parse(manifest("env: {FFDL_ARRAY_INDEX: 3}"))) == []
    (found,) = errors(parse(manifest("env: {FFDL_ARRAY_INDEX: 3}\narray: 0-3")))
    assert "batch.env.FFDL_ARRAY_INDEX: the platform sets FFDL_ARRAY_INDEX itself" in found
