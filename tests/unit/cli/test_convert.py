"""``ffdl convert`` as a process: what it writes, what it says, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.unit.cli.programs import FFDL, run

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=mnist -N 2
#SBATCH --ntasks-per-node=1 --overcommit
module load cuda
srun python train.py
"""
NO_IMAGE = (
    "script: approximated: no image -> framework.version (the job needs an image with its software, and none is named: "
    "name one by --image)"
)
WHOLE = "#!/bin/bash\n#SBATCH -t 5\nsource ./other.sh; python $0\n"
"""A script that runs whole: it reads its own name."""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.sbatch"
    path.write_text(SCRIPT)
    return path


def test_convert_writes_valid_manifest_and_reports_each_line(script: Path, tmp_path: Path) -> None:
    done = run(FFDL, "convert", "job.sbatch", "-o", "manifest.yml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "job.sbatch:2: mapped: --job-name=mnist -> name",
        "job.sbatch:2: mapped: -N 2 -> learners",
        "job.sbatch:3: mapped: --ntasks-per-node=1 -> cpus",
        "job.sbatch:3: dropped: --overcommit (a learner gets the CPUs that it asks for; ask for fewer with "
        "--cpus-per-task)",
        "job.sbatch:4: approximated: module load cuda -> framework.command (the image has to have modules and what "
        "they load, or choose one that has the software: --image)",
        "job.sbatch:5: mapped: srun python train.py -> framework.command, learners",
        NO_IMAGE,
        "4 mapped, 2 approximated, 1 dropped",
    ]
    manifest = yaml.safe_load((tmp_path / "manifest.yml").read_text())
    framework = {"name": "custom", "version": "custom", "command": "module load cuda; python train.py"}
    assert (manifest["learners"], manifest["framework"]) == (2, framework)
    checked = run(FFDL, "validate", "-Q", "manifest.yml", cwd=tmp_path)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_convert_prints_manifest_to_stdout_and_report_to_stderr_by_default(script: Path) -> None:
    done = run(FFDL, "convert", script)
    assert yaml.safe_load(done.stdout)["name"] == "mnist"
    assert "4 mapped, 2 approximated, 1 dropped" in done.stderr


def test_convert_strict_and_check_report_options_lost_in_round_trip(script: Path, tmp_path: Path) -> None:
    check = (FFDL, "convert", script, "-o", tmp_path / "m.yml", "--report", "none", "--check")
    assert run(FFDL, "convert", script, "--strict").returncode == 1
    assert run(*check).stdout == "- --overcommit\n"
    script.write_text(SCRIPT.replace(" --overcommit", ""))
    assert run(FFDL, "convert", script, "--strict").returncode == 0
    assert run(*check).stdout == "round trip: the script of the manifest requests the same\n"


def test_convert_prints_json_report(script: Path, tmp_path: Path) -> None:
    done = run(FFDL, "convert", script, "-o", tmp_path / "m.yml", "--report", "json")
    document = json.loads(done.stdout)
    assert document["counts"] == {"mapped": 4, "approximated": 2, "dropped": 1}
    assert document["wrapped"] is None
    assert [one["line"] for one in document["judged"]] == [2, 2, 3, 3, 4, 5, None]
    assert document["judged"][3]["fate"] == "dropped"


def test_convert_applies_command_line_and_environment_options(script: Path) -> None:
    done = run(FFDL, "convert", script, "--options", "-N3 --time=7", env={"SBATCH_QOS": "high"})
    manifest = yaml.safe_load(done.stdout)
    assert manifest["learners"] == 3
    assert {key: manifest["batch"][key] for key in ("time", "qos")} == {"time": "00:07:00", "qos": "high"}
    assert "job.sbatch:2: dropped: -N 2 (the command line says -N3, which counts)" in done.stderr


def test_convert_copies_whole_script_unchanged_into_model_dir_unless_it_has_other_file_of_same_name(
    script: Path, tmp_path: Path
) -> None:
    script.write_text(WHOLE)
    model = tmp_path / "model"
    done = run(FFDL, "convert", script, "-o", tmp_path / "m.yml", "--model-dir", model, "--", "-a", "b c")
    assert done.returncode == 0
    assert "the whole script runs unchanged: it reads its own name: $0 (line 3)" in done.stdout
    assert (model / "job.sbatch").read_bytes() == script.read_bytes()
    command = yaml.safe_load((tmp_path / "m.yml").read_text())["framework"]["command"]
    assert command == "bash job.sbatch -a 'b c'"
    (model / "job.sbatch").write_text("mine\n")
    done = run(FFDL, "convert", script, "-o", tmp_path / "other.yml", "--model-dir", model)
    assert (done.returncode, "job.sbatch is another file; nothing was written" in done.stderr) == (1, True)
    assert (model / "job.sbatch").read_text() == "mine\n"
    assert not (tmp_path / "other.yml").exists()


OF_MANIFEST = ":1: no converter recognises this file (converters: "


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name: a\n", OF_MANIFEST),
        (b"#!/bin/bash\n#SBATCH --nosuch\ntrue\n", ":2: sbatch has no option --nosuch (see sbatch --help)"),
        (b"python train.py\n", ":1: no converter recognises this file"),
        (b"#!/bin/bash\n\xff\xfe\n", ":2: it is not UTF-8"),
        (b"#!/bin/bash\nx\0y\n", ":2: it has a NUL byte"),
    ],
)
def test_convert_rejects_bad_input_with_file_and_line(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "bad.sh").write_bytes(content)
    done = run(FFDL, "convert", "bad.sh", "-o", "m.yml", cwd=tmp_path)
    assert (done.returncode, f"ffdl: bad.sh{said}" in done.stderr) == (78, True), done.stderr
    assert not (tmp_path / "m.yml").exists()


def test_convert_exits_66_for_missing_file(tmp_path: Path) -> None:
    done = run(FFDL, "convert", "none.sh", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (66, "ffdl: none.sh: No such file or directory\n")


def test_convert_reports_here_document_as_one_line(script: Path, tmp_path: Path) -> None:
    script.write_text("#!/bin/bash\ncat <<EOF\na\nb\nEOF\npython x\n")
    done = run(FFDL, "convert", "job.sbatch", "-o", "m.yml", cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "job.sbatch:2: mapped: cat <<EOF a b EOF -> framework.command",
        "job.sbatch:6: mapped: python x -> framework.command",
        NO_IMAGE,
        "2 mapped, 1 approximated, 0 dropped",
    ]


def test_convert_names_script_from_standard_input_job_sh() -> None:
    done = run(FFDL, "convert", "-", "--report", "none", text=WHOLE)
    assert yaml.safe_load(done.stdout)["framework"]["command"] == "bash job.sh"
