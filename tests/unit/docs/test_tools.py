"""The programs behind the Makefile: what they count, read and write."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import module_from_spec, source_from_cache, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import IO, cast

import pytest

from tests import preloaded
from tests.sharing import Result
from tests.unit.docs.shown import ROOT
from tools import mutations, pytest_runs
from tools.checks import run_checks
from tools.processes import compile_sources, prefer_interpreter
from tools.tally import refuse


def load(path: str) -> ModuleType:
    """A program as a module; it is in no package."""
    name = "program_" + Path(path).stem
    spec = spec_from_file_location(name, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("ci", "failed"), [("", 2), ("true", 3)])
def test_tally_counts_stored_results_and_skips_fail_on_ci_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ci: str, failed: int
) -> None:
    monkeypatch.setenv("CI", ci)
    (tmp_path / "test_a.py").write_text(json.dumps(asdict(Result(3, ["a::bad"], ["a::left: no root"]))))
    (tmp_path / "test_b.py").touch()
    tally = pytest_runs.count_results(tmp_path)
    assert (tally.passed, tally.failed, tally.skipped) == (3, failed, 1)
    assert tally.troubles == ["failed: a::bad", "a::left: no root", "failed: test_b.py: its tests did not all run"]


def test_resumed_run_repeats_failed_and_unfinished_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = tmp_path / "t.shares"
    shares.mkdir()
    for name, result in (("good", Result(2)), ("bad", Result(1, ["bad::x"]))):
        (shares / name).write_text(json.dumps(asdict(result)))
    (shares / "begun").touch()
    seen: list[set[str]] = []

    def call(argv: Sequence[str], output: IO[bytes]) -> tuple[int, float]:
        seen.append({path.name for path in shares.iterdir()})
        (shares / "bad").write_text(json.dumps(asdict(Result(2))))
        return 0, 1.5

    monkeypatch.setattr(pytest_runs, "ROOT", tmp_path)
    monkeypatch.setattr(pytest_runs, "call", call)
    (tmp_path / "t").mkdir()
    tally = pytest_runs.run_shares("t", "t", results=tmp_path, options=())
    assert (seen, str(tally), tally.cpu_s) == ([{"good"}], "4 passed, 0 failed, 0 skipped", 1.5)


def test_proof_that_passed_is_not_run_again(tmp_path: Path) -> None:
    runs, passed = tmp_path / "runs", tmp_path / "passed"
    command = ("sh", "-c", f"echo x >> {runs}; test -e {tmp_path / 'well'}")
    assert run_checks(command, passed=passed).failed == 1
    (tmp_path / "well").touch()
    assert [run_checks(command, passed=passed).passed for _ in range(2)] == [1, 1]
    assert runs.read_text().split() == ["x", "x"]


def test_mutations_depend_on_sources_and_seed_alone_and_change_the_program(tmp_path: Path) -> None:
    for folder in mutations.AREAS.values():
        (tmp_path / folder).mkdir(parents=True)
        shutil.copy(ROOT / "ffdl_batch" / "domain" / "quantity.py", tmp_path / folder)
    sites = mutations.choose(tmp_path, 21, 1)
    assert sites == mutations.choose(tmp_path, 21, 1) != mutations.choose(tmp_path, 21, 2)
    assert [sum(site.path.startswith(f"{area}/") for site in sites) for area in mutations.AREAS.values()] == [
        5,
        4,
        4,
        4,
        4,
    ]
    for site in sites:
        before = (tmp_path / site.path).read_text()
        mutations.plant(tmp_path, site)
        assert ast.dump(ast.parse(before)) != ast.dump(ast.parse((tmp_path / site.path).read_text())), site.name
        (tmp_path / site.path).write_text(before)


def test_watched_code_notes_when_a_site_is_evaluated(tmp_path: Path) -> None:
    source = "from __future__ import annotations\n\n\ndef positive(number: int) -> bool:\n    return number > 0\n"
    (tmp_path / "module.py").write_text(f'"""A module."""\n\n{source}')
    sites = [site for site in mutations.sites_of(tmp_path, Path("module.py")) if site.new == "number >= 0"]
    mutations.watch(tmp_path, dict(enumerate(sites)), tmp_path)
    names: dict[str, object] = {}
    exec((tmp_path / "module.py").read_text(), names)
    assert not (tmp_path / "0").exists()
    assert cast(Callable[[int], bool], names["positive"])(1) is True
    assert int((tmp_path / "0").read_text()) <= time.time()


def test_watched_code_notes_sites_within_others(tmp_path: Path) -> None:
    source = "def f(n: int) -> bool:\n    return (n > 1 and n + 1 > 2) or not n if n != 7 else n == 7 - 0\n"
    (tmp_path / "module.py").write_text(f'"""A module."""\n\nfrom __future__ import annotations\n\n\n{source}')
    sites = list(mutations.sites_of(tmp_path, Path("module.py")))
    assert len({site.start for site in sites}) < len(sites)  # some begin with others
    mutations.watch(tmp_path, dict(enumerate(sites)), tmp_path)
    names: dict[str, object] = {}
    exec((tmp_path / "module.py").read_text(), names)
    assert [cast(Callable[[int], bool], names["f"])(n) for n in (0, 1, 2, 7)] == [True, False, True, True]
    assert all((tmp_path / str(number)).exists() for number in range(len(sites)))


def test_preloaded_programs_behave_as_executed_ones(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; print(sys.argv, os.environ['A'], os.getcwd(), sys.stdin.read());"
        "own = Path('/proc/self'); print(own.joinpath('cmdline').read_text().rstrip('\\0').split('\\0')[1:]);"
        "print('A=b' in own.joinpath('environ').read_text().split('\\0')); sys.exit(int(sys.argv[1]))"
    )
    argv = [sys.executable, "-c", code, "7"]
    ended = [
        run(argv, input="in", env={"A": "b"}, cwd=tmp_path, capture_output=True, text=True)
        for run in (preloaded.run, subprocess.run)
    ]
    assert (ended[0].returncode, ended[0].stdout, ended[0].stderr) == (
        ended[1].returncode, ended[1].stdout, ended[1].stderr
    )  # fmt: skip
    assert ended[0].returncode == 7 and ended[0].stdout.startswith("['-c', '7'] b")


@pytest.mark.parametrize("code", ["raise SystemExit('why')", "raise ValueError", "import os; os.kill(os.getpid(), 15)"])
def test_preloaded_programs_end_as_executed_ones(code: str) -> None:
    argv = [sys.executable, "-c", code]
    forked, executed = (run(argv, capture_output=True, text=True) for run in (preloaded.run, subprocess.run))
    assert forked.returncode == executed.returncode != 0
    assert forked.stderr.splitlines()[-1:] == executed.stderr.splitlines()[-1:]


def test_under_load_returns_exit_status_and_ends_busy_processes() -> None:
    children = "cat /proc/$PPID/task/$PPID/children; exit 3"
    argv = [sys.executable, "-m", "tools.under_load", "--busy", "2", "sh", "-c", children]
    done = subprocess.run(argv, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    pids = done.stdout.split()
    assert (done.returncode, len(pids)) == (3, 3)
    assert not [pid for pid in pids if Path("/proc", pid).exists()]


@pytest.mark.parametrize(("ci", "failed"), [("", 0), ("false", 0), ("true", 1), ("1", 1)])
def test_refuse_counts_failure_only_on_ci(monkeypatch: pytest.MonkeyPatch, ci: str, failed: int) -> None:
    monkeypatch.setenv("CI", ci)
    tally = refuse("no root")
    assert (tally.failed, tally.troubles) == (failed, ["no root"])


def test_compile_sources_compiles_imported_modules_but_no_tests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    for name in ("ffdl_batch", "adapters", "tests/unit"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "module.py").write_text("PLACE = 1\n")
    (tmp_path / "tests" / "unit" / "test_module.py").write_text("PLACE = 1\n")
    compile_sources(tmp_path)
    compiled = [Path(source_from_cache(path)) for path in tmp_path.rglob("*.pyc")]
    assert {str(path.relative_to(tmp_path)) for path in compiled} == {
        "ffdl_batch/module.py", "adapters/module.py", "tests/unit/module.py"
    }  # fmt: skip


@pytest.mark.parametrize("known", [("/shims", "/usr/bin"), ("/usr/bin", str(Path(sys.base_prefix) / "bin"))])
def test_prefer_interpreter_prepends_own_directory_if_missing_from_path(
    monkeypatch: pytest.MonkeyPatch, known: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join(known))
    prefer_interpreter()
    own = str(Path(sys.base_prefix) / "bin")
    assert os.environ["PATH"].split(os.pathsep) == [*([] if own in known else [own]), *known]


def test_machine_mirror_returns_enabled_main_archive(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb http://security.example.org/debian-security trixie-security main\n")
    (tmp_path / "sources.list.d" / "debian.sources").write_text(
        "Types: deb\n# a comment\nURIs: http://mirror.example.org/debian\nSuites: trixie\nComponents: main\n\n"
        "Types: deb\nURIs: http://other.example.org/debian\nSuites: trixie\nComponents: main\nEnabled: no\n"
    )
    build = load("containers/build.py")
    assert build.machine_mirror(tmp_path) == "http://mirror.example.org/debian"
    assert build.machine_mirror(tmp_path / "nowhere") == ""


def test_move_to_setup_moves_only_post_and_test_sections() -> None:
    build = load("containers/build.py")
    text = (ROOT / "containers" / "custom.def").read_text()
    moved = build.move_to_setup(text)
    assert moved.startswith(text[: text.index("%post")])
    assert "%environment\n    export LC_ALL=C.UTF-8" in moved
    sections = [line for line in moved.splitlines() if line.startswith("%")]
    assert sections == ["%arguments", "%environment", "%labels", "%setup"]
    inside = moved[moved.index("<<'END_OF_POST'") : moved.rindex("END_OF_POST")]
    assert "apt-get install" in inside and "import numpy" in inside


def test_image_build_rejects_unbuildable_and_unknown_images(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    build = load("containers/build.py")
    assert build.main(["--out", str(tmp_path), "tensorflow"]) == 2
    assert "needs a container registry" in capsys.readouterr().err
    assert build.main(["--out", str(tmp_path), "nonesuch"]) == 2
    assert "known are caffe, custom" in capsys.readouterr().err


def test_image_build_skips_image_with_same_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    build = load("containers/build.py")
    definition = build.Definition.read(ROOT / "containers" / "pytorch.def")
    (tmp_path / "pytorch.sif").write_bytes(b"sif")
    (tmp_path / "pytorch.sif.recipe").write_text(definition.recipe("trixie", "http://m/debian") + "\n")
    arguments = ["--apptainer", "/nonexistent/apptainer", "--out", str(tmp_path), "--mirror", "http://m/debian"]
    assert build.main([*arguments, "pytorch"]) == 0
    assert "is up to date" in capsys.readouterr().out
    assert build.main([*arguments, "--suite", "sid", "pytorch"]) == 69
    assert "/nonexistent/apptainer is not installed" in capsys.readouterr().err


def test_image_build_passes_mksquashfs_arguments_unchanged(tmp_path: Path) -> None:
    for program in ("apptainer", "debootstrap"):
        (tmp_path / program).write_text('#!/bin/sh\nprintf "%s\\n" "$@" >"$(dirname "$0")/asked"\nexit 1\n')
        (tmp_path / program).chmod(0o755)
    build = load("containers/build.py")
    builder = build.Builder(tmp_path, str(tmp_path / "apptainer"), "sid", "http://m/debian", False, "-comp gzip -b 1M")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        with pytest.raises(build.BuildError, match="could not build custom"):
            builder.build(build.Definition.read(ROOT / "containers" / "custom.def"), force=False)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[asked.index("--mksquashfs-args") + 1] == "-comp gzip -b 1M"


def test_fetch_data_rejects_archive_with_other_content() -> None:
    fetch = load("docs/examples/digits/fetch_data.py")

    def wheel(folder: Path) -> Path:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr(fetch.MEMBER, b"something else")
        (folder / "x.whl").write_bytes(content.getvalue())
        return folder / "x.whl"

    with pytest.raises(fetch.FetchError, match="expected is 09f66e6d"):
        fetch.extract(wheel)


def test_makefile_has_rule_for_every_phony_target() -> None:
    """One that is declared, and has no rule, ends with 0, as if it had proved something."""
    makefile = (ROOT / "Makefile").read_text()
    declared = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert declared is not None
    heads = re.findall(r"^([a-z -]+):", makefile, re.MULTILINE)
    rules = {name for names in heads for name in names.split()}
    assert set(declared[1].replace("\\\n", " ").split()) <= rules
