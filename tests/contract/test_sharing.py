"""The dealing out of test files to several runs: each file to one, with its fixtures, and none is left."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import LONG, turn
from tests.sharing import read_results

ROOT = Path(__file__).parents[2]
CONFTEST = """\
import pytest
def told(what):
    with open("told", "a") as file:
        file.write(what + " ")
@pytest.fixture(scope="session", autouse=True)
def whole():
    yield
    told("end")
@pytest.fixture(scope="module", autouse=True)
def part(request, whole):
    yield
    told(request.path.stem)
"""
TESTS = "from conftest import told\ndef test_one(): told('1')\ndef test_two(): told('2')\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of two tests each, whose fixtures tell when they end."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in ("a", "b", "c"):
        (tmp_path / f"test_{name}.py").write_text(TESTS)
    (tmp_path / "shares").mkdir()
    return tmp_path


def run(folder: Path, *names: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """One of the runs; the files in this order."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "tests.sharing", "-p", "no:cacheprovider", "--shares=shares"]
    # The folder's own tests import its conftest; the plugin is this project's.
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take most of a start
    return subprocess.run(
        [*argv, *options, "--rootdir=.", *(f"test_{name}.py" for name in names)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_sharing_plugin_runs_files_in_given_order_and_ends_fixtures_in_time(folder: Path) -> None:
    done = run(folder, "c", "a", "b")
    assert (done.returncode, "6 passed" in done.stdout) == (0, True), done.stdout + done.stderr
    assert (folder / "told").read_text() == "1 2 test_c 1 2 test_a 1 2 test_b end "
    assert sorted(path.name for path in (folder / "shares").iterdir()) == ["test_a.py", "test_b.py", "test_c.py"]


def test_sharing_plugin_keeps_compiled_tests_for_next_run(folder: Path) -> None:
    run(folder, "a", "b")
    compiled = {path.name.partition(".")[0] for path in folder.rglob("*-pytest-*.pyc")}
    assert compiled >= {"test_a", "test_b"}


def test_cluster_suite_runs_existing_long_files_first() -> None:
    names = sorted(path.name for path in (ROOT / "tests" / "cluster").glob("test_*.py"))
    assert tuple(sorted(names, key=turn)[: len(LONG)]) == LONG


def test_results_of_each_file_are_stored_when_its_tests_have_run(folder: Path) -> None:
    (folder / "test_b.py").write_text(
        "import pytest\ndef test_good(): pass\ndef test_bad(): assert 0\n@pytest.fixture\ndef broken():\n    yield\n"
        "    assert 0\ndef test_ends_badly(broken): pass\n@pytest.mark.skip(reason='no root')\ndef test_left(): pass\n"
    )
    assert run(folder, "a", "b").returncode == 1
    results = read_results(folder / "shares")
    a, b = results["test_a.py"], results["test_b.py"]
    assert a is not None and (a.passed, a.failed, a.skipped) == (2, [], []) and a.wall_s >= 0 <= a.cpu_s
    assert b is not None and b.passed == 1
    assert b.failed == ["test_b.py::test_bad", "test_b.py::test_ends_badly"]
    assert b.skipped == ["test_b.py::test_left: skipped: Skipped: no root"]


def test_files_that_an_interrupted_run_had_begun_have_no_result(folder: Path) -> None:
    (folder / "test_b.py").write_text("import os\ndef test_one(): pass\ndef test_two(): os._exit(3)\n")
    assert run(folder, "a", "b", "c").returncode == 3
    results = read_results(folder / "shares")
    assert results["test_a.py"] is not None
    assert (results["test_b.py"], results["test_c.py"]) == (None, None), "begun, and taken in advance"


def test_sharing_plugin_skips_file_taken_by_another_run(folder: Path) -> None:
    (folder / "shares" / "test_a.py").touch()
    assert "4 passed" in run(folder, "a", "b", "c").stdout
    assert (folder / "told").read_text() == "1 2 test_b 1 2 test_c end "


def test_sharing_plugin_exits_0_when_every_file_is_taken(folder: Path) -> None:
    run(folder, "a", "b", "c")
    late = run(folder, "a", "b", "c")
    assert (late.returncode, "passed" in late.stdout) == (0, False), late.stdout + late.stderr


def test_fork_of_run_takes_files_and_prints_to_its_log(folder: Path) -> None:
    """Each process waits in its first file for the other's."""
    (folder / "conftest.py").write_text(
        "import os, time, pytest\n@pytest.fixture(scope='session', autouse=True)\ndef meeting(tmp_path_factory):\n"
        "    open(f'pid-{os.getpid()}', 'w').write(str(tmp_path_factory.getbasetemp()))\n"
        "    while sum(name.startswith('pid-') for name in os.listdir()) < 2: time.sleep(0.01)\n"
    )
    for name in "abc":
        (folder / f"test_{name}.py").write_text(
            "import os\ndef test_one(capfd): os.system('echo x')\ndef test_bad(): assert 0\n"
        )
    done = run(folder, "a", "b", "c", options=("--fork=second", f"--basetemp={folder / 'here'}"))
    said = [done.stdout, (folder / "second").read_text()]
    assert (done.returncode, done.stderr) == (1, "")
    assert sorted(len(re.findall("^FAILED", text, re.MULTILINE)) for text in said) in ([1, 2], [0, 3])
    assert {path.read_text() for path in folder.glob("pid-*")} == {str(folder / "here"), str(folder / "2")}
    results = read_results(folder / "shares")
    assert [(one.passed, len(one.failed)) for one in results.values() if one] == [(1, 1)] * 3


def test_run_fails_when_its_fork_is_killed(folder: Path) -> None:
    text = (
        "import os, time\nMAIN = os.getpid()\ndef test_one():\n    if os.getpid() != MAIN: os._exit(9)\n"
        "    while len(os.listdir('shares')) < 2: time.sleep(0.01)\ndef test_two(): pass\n"
    )
    for name in "ab":
        (folder / f"test_{name}.py").write_text(text)
    done = run(folder, "a", "b", options=("--fork=second",))
    assert done.returncode == 3 and "a fork of this run ended with exit status 9" in done.stdout


def test_sharing_plugin_takes_no_file_when_only_collecting(folder: Path) -> None:
    listed = run(folder, "a", "b", options=("--collect-only",))
    assert (listed.returncode, "test_b.py::test_two" in listed.stdout) == (0, True), listed.stdout + listed.stderr
    assert list((folder / "shares").iterdir()) == [] and not (folder / "told").exists()


def test_sharing_plugin_fails_on_import_error_and_takes_no_file(folder: Path) -> None:
    (folder / "test_b.py").write_text("import nonesuch_module\n")
    done = run(folder, "a", "b")
    assert done.returncode not in (0, 5), done.stdout
    assert list((folder / "shares").iterdir()) == []
