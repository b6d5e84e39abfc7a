"""Every command that README and docs show is run by a test, covered by a tier, or listed with a reason."""

from __future__ import annotations

import ast
import gzip
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import preloaded
from tests.contract.daemon_rig import signal_daemon
from tests.unit.docs.shown import ROOT, commands_in, shown_commands, site_only

PROGRAMS = {
    "ffdl": preloaded.FFDL,
    "ffdl-submit": preloaded.FFDL_SUBMIT,
    "ffdl-admin": (sys.executable, "-c", "from ffdl_batch.admin.main import main; main()"),
    "python3": (sys.executable,),
}
"""The installed scripts are run by the tier `quickstart`."""
EXAMPLE_ID = "training-0a1b2c3d4"
SUBMIT = "ffdl-submit docs/examples/digits/manifest.yml docs/examples/digits/model"
# Run as they stand, in a copy of what they name; no daemon.
ALONE = (
    "ffdl validate docs/examples/digits/manifest.yml",
    "ffdl validate --json docs/examples/digits/manifest.yml",
    *(f"ffdl validate docs/examples/distributed/{name}.yml" for name in ("manifest", "torchrun", "mpi")),
    "ffdl convert docs/examples/sbatch/train.sbatch",
    "ffdl convert --check --report none docs/examples/sbatch/train.sbatch",
    "ffdl schema",
    "ffdl convert docs/examples/wml/wml.yml -o manifest.yml",
    *(
        f"ffdl convert docs/examples/imports/{name} -o manifest.yml"
        for name in ("pytorchjob.yaml", "skypilot.yaml", "task.dstack.yml")
    ),
    "ffdl convert docs/examples/digits/manifest.yml --to slurm -o digits.sbatch",
    "ffdl convert docs/examples/distributed/torchrun.yml --to kubernetes -o torchrun.yaml",
    "ffdl simulate --synthetic bursty --gpus 16 --policy fifo --policy completion",
    "ffdl config",
    "python3 containers/build.py --list",
    "python3 slurm-configs/render.py --values slurm-configs/values.env --values site.env --overlay slurm-24.11 "
    "--out build/slurm",
)
# Run in this order with the local backend; the example's id stands for the job that SUBMIT made.
TOUR = (
    "ffdl-submit --dry-run docs/examples/digits/manifest.yml docs/examples/digits/model",
    "ffdl plan docs/examples/digits/manifest.yml docs/examples/digits/model",
    "ffdl advise --profile docs/examples/digits/manifest.yml",
    SUBMIT,
    f"ffdl why {EXAMPLE_ID}",
    "ffdl list",
    f"ffdl logs -f {EXAMPLE_ID}",
    f"ffdl wait {EXAMPLE_ID}",
    f"ffdl show {EXAMPLE_ID}",
    f"ffdl events {EXAMPLE_ID}",
    f"ffdl metrics {EXAMPLE_ID}",
    f"ffdl metrics --usage {EXAMPLE_ID}",
    "ffdl advise docs/examples/digits/manifest.yml",
    "ffdl report usage",
    "ffdl report usage --since 7d --by framework",
    "ffdl report usage --month 2026-11 --format html --output november.html",
    "ffdl report usage --month 2026-11 --format csv --output november.csv",
    "ffdl report faults",
    "ffdl report faults --since 7d --format html --output faults.html",
    "ffdl report faults --since yesterday --format csv --output faults.csv",
    f"ffdl download {EXAMPLE_ID}",
    f"ffdl download --model --out submitted {EXAMPLE_ID}",
    f"ffdl cancel {EXAMPLE_ID}",
    f"ffdl support {EXAMPLE_ID}",
    "ffdl-admin support",
    "ffdl report nodes",
    "ffdl report nodes --format csv -o nodes.csv",
    "ffdl daemon status",
    "ffdl daemon metrics",
    "ffdl daemon restart",
    "ffdl daemon stop",
    "ffdl-admin db current",
    "ffdl-admin db upgrade --dry-run",
    "ffdl-admin db upgrade",
    "ffdl-admin db check",
    "ffdl-admin db backup jobs-monday",
    "ffdl-admin db restore jobs-monday --force",
)
LOOP = "ffdl-submit docs/examples/loop/manifest.yml docs/examples/loop/model"
# Run in this order on the job that LOOP made.
INTERRUPTED = (
    "ffdl drill halt --after 2s docs/examples/loop/manifest.yml",
    LOOP,
    f"ffdl halt --wait {EXAMPLE_ID}",
    f"ffdl resume {EXAMPLE_ID}",
)
EXAMPLE_ARRAY = "array-0a1b2c3d4"
SWEEP = "ffdl-submit docs/examples/sweep/manifest.yml docs/examples/sweep/model"
# Run in this order on the array that SWEEP made.
ARRAY = (
    "ffdl validate docs/examples/sweep/manifest.yml",
    SWEEP,
    f"ffdl list --array {EXAMPLE_ARRAY}",
    f"ffdl wait {EXAMPLE_ARRAY}",
    f"ffdl show {EXAMPLE_ARRAY}",
    f"ffdl logs {EXAMPLE_ARRAY}_3",
)
# Run by a tier of tools/run_tests.py.
BY_TIER = {
    "make quickstart": ("quickstart",),
    "python3 docs/examples/digits/fetch_data.py": ("quickstart",),
    "make check": ("lint", "unit"),
    "make docs": ("docs",),
}


def test_commands_in_finds_prompted_commands_and_skips_output() -> None:
    text = "```console\n$ ffdl list\nID  NAME\n$ ffdl \\\n  show x\n```\n"
    text += "```bash\n# why\nmake a\n```\n```python\nmake b\n```\n"
    assert list(commands_in(text)) == ["ffdl list", "ffdl    show x", "make a"]


def test_documented_commands_are_all_run_or_listed_with_reason() -> None:
    known = {*ALONE, *TOUR, *INTERRUPTED, *ARRAY, *BY_TIER, *site_only()}
    unknown = [f"{shown.file}: {shown.text}" for shown in shown_commands() if shown.text not in known]
    assert not unknown, "run them here, or give the reason in docs/site-only-commands.toml"


def test_command_lists_contain_only_documented_commands() -> None:
    shown = {command.text for command in shown_commands()}
    assert {*ALONE, *TOUR, *INTERRUPTED, *ARRAY, *BY_TIER, *site_only()} - shown == set()


def test_site_only_commands_have_a_reason() -> None:
    assert all(len(reason.split()) >= 4 for reason in site_only().values())


def test_tiers_that_cover_commands_exist() -> None:
    runner = [sys.executable, str(ROOT / "tools" / "run_tests.py"), "--list"]
    tiers = subprocess.run(runner, capture_output=True, text=True, check=True).stdout.split()
    assert {tier for covering in BY_TIER.values() for tier in covering} <= set(tiers)


@dataclass(frozen=True)
class Place:
    """A copy of the files that commands name, with a state directory and a socket of its own."""

    path: Path
    env: dict[str, str]

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a shown command; it must succeed."""
        program, *words = shlex.split(command)
        done = preloaded.run(
            [*PROGRAMS[program], *words],
            cwd=self.path, env=self.env, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    path = tmp_path_factory.mktemp("shown")
    shutil.copytree(ROOT / "docs/examples", path / "docs/examples", ignore=shutil.ignore_patterns("data"))
    shutil.copytree(ROOT / "containers", path / "containers", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "slurm-configs", path / "slurm-configs", ignore=shutil.ignore_patterns("__pycache__"))
    (path / "site.env").write_text("GRES_LINES=Name=gpu File=/dev/nvidia0\nACCOUNTING_STORAGE_HOST=dbd\n")
    write_digits(path / "docs/examples/digits/data/digits/digits.csv.gz")
    env = {
        "HOME": str(path / "home"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}",
        "FFDL_BACKEND": "local",
        "FFDL_STATE_DIR": str(path / "state"),
        "FFDL_SOCKET": str(path / "s"),
        "FFDL_IDLE_EXIT_S": "600",
    }
    (path / "home").mkdir()
    try:
        yield Place(path, env)
    finally:
        signal_daemon(path / "state", signal.SIGTERM)


def write_digits(target: Path) -> None:
    """A stand-in with the shape of the data set: 1,797 lines of 64 grey values and a digit."""
    target.parent.mkdir(parents=True)
    lines = (",".join([str((i * 7 + k * (i % 10)) % 17) for k in range(64)] + [str(i % 10)]) for i in range(1797))
    with gzip.open(target, "wt", encoding="ascii") as file:
        file.writelines(f"{line}\n" for line in lines)


@pytest.mark.parametrize("command", ALONE)
def test_documented_command_without_service_succeeds(place: Place, command: str) -> None:
    done = place.run(command)
    assert done.stdout or (place.path / command.rpartition("--out ")[2]).is_dir(), "it printed and wrote nothing"


def test_documented_tour_succeeds_on_local_backend(place: Place) -> None:
    job_id = EXAMPLE_ID
    for command in TOUR:
        done = place.run(command.replace(EXAMPLE_ID, job_id))
        if command == SUBMIT:
            job_id = done.stdout.split()[-1]
            assert done.stdout == f"Submitted batch job {job_id}\n"
        if "logs" in command:
            assert "accuracy" in done.stdout
        if "show" in command:
            assert "COMPLETED" in done.stdout
        if "ffdl plan" in command:
            assert "### when it may start\n# " in done.stdout
        if "ffdl why" in command:
            assert job_id in done.stdout and ("\nWhy: " in done.stdout or "\nNow: " in done.stdout)
        if "--usage" in command:
            assert "node 0/memory" in done.stdout
        if "daemon metrics" in command:
            assert 'ffdl_jobs{backend="local",state="COMPLETED"} 1\n' in done.stdout


def test_documented_cron_line_replaces_backup_of_same_weekday(place: Place) -> None:
    """As cron does it: the fields of the time cut off, the backslash before a percent sign, too."""
    (line,) = re.findall(r"^(?:\S+ ){5} *(.* db backup .*)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    assert line.count("/opt/ffdl/venv/bin/") == 1 and line.count("%") == line.count("\\%") == 1
    command = line.replace("/opt/ffdl/venv/bin", str(Path(sys.executable).parent)).replace("\\%", "%")
    place.run("ffdl list")
    noon = {"TZ": f"NOON{time.gmtime().tm_hour - 12}"}  # else a day may end between the two
    for _ in ("a week", "and the next one"):
        done = subprocess.run(
            ["sh", "-c", command], env=place.env | noon, capture_output=True, text=True, check=False, timeout=600
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        (made,) = (place.path / "home/ffdl-backups").iterdir()
    assert len(made.name) == 3


def test_documented_halt_resume_and_drill_commands_succeed(place: Place) -> None:
    job_id = EXAMPLE_ID
    for command in INTERRUPTED:
        done = place.run(command.replace(EXAMPLE_ID, job_id))
        if "drill" in command:
            assert "Result:              a checkpoint was confirmed" in done.stdout
        if command == LOOP:
            job_id = done.stdout.split()[-1]
        if "halt --wait" in command:
            assert done.stdout == f"{job_id} HALTED\n"
        if "resume" in command:
            assert done.stdout == f"{job_id} PENDING, resumed\n"
    place.run(f"ffdl cancel {job_id}")


def test_documented_sweep_commands_succeed(place: Place) -> None:
    array_id = EXAMPLE_ARRAY
    for command in ARRAY:
        done = place.run(command.replace(EXAMPLE_ARRAY, array_id))
        if command == SWEEP:
            array_id = done.stdout.split()[-1]
            assert done.stdout == f"Submitted batch job {array_id}\n"
        if "list" in command:
            assert [line.split()[1] for line in done.stdout.splitlines()[1:]] == [f"sweep[{n}]" for n in range(6)]
        if "wait" in command:
            assert done.stdout == f"{array_id} 6 COMPLETED\n"
        if "logs" in command:
            assert done.stdout.startswith("element 3: rate 0.05, 500 steps, loss ")


def test_documented_sweep_program_finds_best_result(place: Place) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/arrays.md").read_text(), re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=place.path, env=place.env, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    best = ast.literal_eval(done.stdout)
    assert best["loss"] < 0.02, "the best of six, of which most are far worse"
