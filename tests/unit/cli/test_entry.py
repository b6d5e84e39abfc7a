"""The console scripts before and below what the commands handle themselves: no traceback, an exit code that helps."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from ffdl_batch import entry
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.resource_exhaustion import FILES, MEMORY, THREADS
from tests.unit.cli.programs import environment

PROGRAMS = ("ffdl", "ffdl-submit", "ffdl-admin")
SCRIPTS = Path(__file__).parents[3] / "bin"


def start_of(program: str) -> list[str]:
    """Return the argv that starts a command as its script does, but lets PYTHONPATH replace modules."""
    name = program.replace("-", "_")
    return [sys.executable, "-c", f"from ffdl_batch.entry import {name}; {name}()", "--help"]


def run_help(program: str, env: dict[str, str]) -> tuple[int, str]:
    """Return exit code and standard error of a command with --help."""
    done = subprocess.run(
        start_of(program), env=environment(None, env), capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stderr


def replace_click(directory: Path, text: str) -> dict[str, str]:
    """An environment in which the first heavy import of each command is `text`."""
    (directory / "click.py").write_text(text)
    return {"PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}


FOREIGN = {
    "PYTHONHOME": "/none", "PYTHONPLATLIBDIR": "none", "PYTHONUSERBASE": "/none", "PYTHONEXECUTABLE": "/none/python3",
    "__PYVENV_LAUNCHER__": "/none/python3", "PYTHONSAFEPATH": "", "PYTHONSTARTUP": "/none", "PYTHONINSPECT": "1",
}  # fmt: skip
"""What environment modules and launchers of another Python set."""


@pytest.mark.parametrize("program", [*PROGRAMS, "ffdl-submitd"])
@pytest.mark.parametrize("place", ["{bin}/{program}", "{links}/{program}"])
@pytest.mark.parametrize("first_line", [f"#!{sys.executable}", "#!/bin/sh"])
def test_script_starts_command_despite_pythonpath_and_pythonhome(
    tmp_path: Path, program: str, place: str, first_line: str
) -> None:
    installed, links, shadows = tmp_path / "b in", tmp_path / "links", tmp_path / "shadows"
    for directory in (installed, links, shadows):
        directory.mkdir()
    for name in ("click", "typing_extensions", "json", "sitecustomize"):
        (shadows / f"{name}.py").write_text("raise SystemExit('replaced')\n")
    shutil.copy(SCRIPTS / program, installed)
    (installed / "ffdl-controller").write_text(f"{first_line}\n")
    (installed / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (installed / "python3").chmod(0o755)
    (links / program).symlink_to(installed / program)
    argv = [
        place.format(bin=installed, links=links, program=program),
        *(["version"] if program == "ffdl" else ["--version"]),
    ]
    env = environment(None, {**FOREIGN, "PYTHONPATH": str(shadows)})
    done = subprocess.run(argv, env=env, cwd=shadows, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{program} {version('ffdl-batch')}\n", "")


def test_entry_exit_codes_match_those_of_commands() -> None:
    assert (entry.INTERRUPTED, entry.TRY_AGAIN) == (ExitCode.INTERRUPTED, ExitCode.TRY_AGAIN)


@pytest.mark.parametrize("program", PROGRAMS)
def test_console_script_exits_silently_on_ctrl_c_during_import(tmp_path: Path, program: str) -> None:
    env = replace_click(tmp_path, "import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    with subprocess.Popen(
        start_of(program), env=environment(None, env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "importing\n"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, "")


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("MemoryError", MEMORY),
        ("OSError(24, 'Too many open files')", FILES),
        ('RuntimeError("can\'t start new thread")', THREADS),
    ],
)
def test_console_script_reports_lack_of_resources_at_import_in_one_line(
    tmp_path: Path, program: str, raised: str, said: str
) -> None:
    env = replace_click(tmp_path, f"raise {raised}\n")
    assert run_help(program, env) == (75, f"{program}: {said}\n")


def test_console_script_prints_traceback_for_defect_at_import(tmp_path: Path) -> None:
    code, said = run_help("ffdl", replace_click(tmp_path, "raise ZeroDivisionError\n"))
    assert code == 1 and "Traceback" in said


@pytest.mark.parametrize("program", PROGRAMS)
def test_console_script_reports_lack_of_descriptors_in_one_line(program: str) -> None:
    """Three are open from the start, and no fourth may be opened."""
    name = program.replace("-", "_")
    limited = (
        f"import resource; from ffdl_batch.entry import {name}; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))"
    )
    argv = [sys.executable, "-c", f"{limited}; {name}()", "--help"]
    done = subprocess.run(argv, env=environment(None, {}), capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (75, "", f"{program}: {FILES}\n")


@pytest.mark.parametrize("lacking", ["MemoryError()", "OSError(24, 'Too many open files')"])
def test_list_reports_lack_of_memory_or_descriptors_in_one_line(tmp_path: Path, lacking: str) -> None:
    """In a command's own work, where errors of the client and of files have sentences of their own."""
    broken = f"import ffdl_batch.config.load as load\ndef fail(*a, **k): raise {lacking}\nload.load_settings = fail\n"
    argv = [sys.executable, "-c", broken + "from ffdl_batch.cli.main import main; main()", "list"]
    env = environment(None, {"HOME": str(tmp_path)})
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (75, 1), done.stderr
    assert "ulimit" in done.stderr and "defect" not in done.stderr
