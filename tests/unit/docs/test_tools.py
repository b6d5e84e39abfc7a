"""The programs behind the Makefile: what they count, read and write."""

from __future__ import annotations

import io
import os
import re
import sys
import zipfile
from importlib.util import module_from_spec, source_from_cache, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.docs.shown import ROOT
from tools.processes import compile_sources, prefer_interpreter
from tools.tally import read_report, refuse

REPORT = """<testsuites><testsuite>
<testcase classname="a" name="one"/>
<testcase classname="a" name="two"><failure/></testcase>
<testcase classname="a" name="three"><skipped message="why"/></testcase>
</testsuite></testsuites>"""


def load(path: str) -> ModuleType:
    """A program as a module; it is in no package."""
    name = "program_" + Path(path).stem
    spec = spec_from_file_location(name, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_a_report_is_counted_and_a_skip_fails_on_ci_only(tmp_path: Path) -> None:
    (tmp_path / "r.xml").write_text(REPORT)
    assert str(read_report(tmp_path / "r.xml", ci=False)) == "1 passed, 1 failed, 1 skipped"
    assert str(read_report(tmp_path / "r.xml", ci=True)) == "1 passed, 2 failed, 1 skipped"


@pytest.mark.parametrize(("ci", "failed"), [("", 0), ("false", 0), ("true", 1), ("1", 1)])
def test_what_cannot_run_fails_on_ci_and_is_named_elsewhere(
    monkeypatch: pytest.MonkeyPatch, ci: str, failed: int
) -> None:
    monkeypatch.setenv("CI", ci)
    tally = refuse("no root")
    assert (tally.failed, tally.troubles) == (failed, ["no root"])


def test_programs_under_test_find_compiled_what_they_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
def test_python3_is_an_interpreter_where_the_path_has_none_of_ours(
    monkeypatch: pytest.MonkeyPatch, known: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join(known))
    prefer_interpreter()
    own = str(Path(sys.base_prefix) / "bin")
    assert os.environ["PATH"].split(os.pathsep) == [*([] if own in known else [own]), *known]


def test_the_mirror_of_an_image_is_the_machines_main_archive(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb http://security.example.org/debian-security trixie-security main\n")
    (tmp_path / "sources.list.d" / "debian.sources").write_text(
        "Types: deb\n# a comment\nURIs: http://mirror.example.org/debian\nSuites: trixie\nComponents: main\n\n"
        "Types: deb\nURIs: http://other.example.org/debian\nSuites: trixie\nComponents: main\nEnabled: no\n"
    )
    build = load("containers/build.py")
    assert build.machine_mirror(tmp_path) == "http://mirror.example.org/debian"
    assert build.machine_mirror(tmp_path / "nowhere") == ""


def test_post_and_test_move_into_setup_and_the_rest_stays() -> None:
    build = load("containers/build.py")
    text = (ROOT / "containers" / "custom.def").read_text()
    moved = build.move_to_setup(text)
    assert moved.startswith(text[: text.index("%post")])
    assert "%environment\n    export LC_ALL=C.UTF-8" in moved
    sections = [line for line in moved.splitlines() if line.startswith("%")]
    assert sections == ["%arguments", "%environment", "%labels", "%setup"]
    inside = moved[moved.index("<<'END_OF_POST'") : moved.rindex("END_OF_POST")]
    assert "apt-get install" in inside and "import numpy" in inside


def test_an_unbuilt_image_is_refused_with_its_reason(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    build = load("containers/build.py")
    assert build.main(["--out", str(tmp_path), "tensorflow"]) == 2
    assert "needs a container registry" in capsys.readouterr().err
    assert build.main(["--out", str(tmp_path), "nonesuch"]) == 2
    assert "known are caffe, custom" in capsys.readouterr().err


def test_an_image_of_the_same_recipe_is_not_built_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    build = load("containers/build.py")
    definition = build.Definition.read(ROOT / "containers" / "pytorch.def")
    (tmp_path / "pytorch.sif").write_bytes(b"sif")
    (tmp_path / "pytorch.sif.recipe").write_text(definition.recipe("trixie", "http://m/debian") + "\n")
    arguments = ["--apptainer", "/nonexistent/apptainer", "--out", str(tmp_path), "--mirror", "http://m/debian"]
    assert build.main([*arguments, "pytorch"]) == 0
    assert "is up to date" in capsys.readouterr().out
    assert build.main([*arguments, "--suite", "sid", "pytorch"]) == 69
    assert "/nonexistent/apptainer is not installed" in capsys.readouterr().err


def test_what_packs_an_image_is_passed_on_as_it_was_given(tmp_path: Path) -> None:
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


def test_data_of_another_content_are_noticed() -> None:
    fetch = load("docs/examples/digits/fetch_data.py")

    def wheel(folder: Path) -> Path:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr(fetch.MEMBER, b"something else")
        (folder / "x.whl").write_bytes(content.getvalue())
        return folder / "x.whl"

    with pytest.raises(fetch.FetchError, match="expected is 09f66e6d"):
        fetch.extract(wheel)


def test_whatever_the_makefile_calls_a_target_does_something() -> None:
    """One that is declared, and has no rule, ends with 0, as if it had proved something."""
    makefile = (ROOT / "Makefile").read_text()
    declared = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert declared is not None
    heads = re.findall(r"^([a-z -]+):", makefile, re.MULTILINE)
    rules = {name for names in heads for name in names.split()}
    assert set(declared[1].replace("\\\n", " ").split()) <= rules
