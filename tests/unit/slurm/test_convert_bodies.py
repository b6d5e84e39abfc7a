"""What is understood of a script's commands, and what makes it run whole."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ffdl_batch.domain.conversion import CannotConvert, Conversion, Fate, Origin, Source
from ffdl_batch.manifest.writer import write_manifest
from ffdl_slurm.convert.converter import create
from tests.proof.convert.__main__ import spec_of

TAKES_STEPS = {"batch": {"learners": 1}, "node": {"learners": 1, "command": "take-steps bash job.sh"}}


def convert(
    *lines: str, arguments: tuple[str, ...] = (), environ: Mapping[str, str] | None = None, image: str = "base",
    shebang: str = "#!/bin/bash",
) -> Conversion:  # fmt: skip
    return create().convert(Source("\n".join((shebang, *lines, "")), "job.sh", (), arguments, environ or {}, image))


def command_of(conversion: Conversion) -> object:
    return part(conversion, "framework")["command"]


def part(conversion: Conversion, name: str) -> Mapping[str, object]:
    found = conversion.manifest[name]
    assert isinstance(found, Mapping)
    return found


@pytest.mark.parametrize(
    ("options", "line", "command", "image"),
    [
        ("", "python train.py --lr 0.1", "python train.py --lr 0.1", "base"),
        ("-N2", "srun python train.py 'a  b' $HOME", "python train.py 'a  b' $HOME", "base"),
        ("-N2", "A=1 srun -N2 --ntasks 2 -u python x", "A=1 python x", "base"),
        ("", "exec python x", "python x", "base"),
        ("", "apptainer exec --nv /a/b.sif python x", "python x", "/a/b.sif"),
        ("", "singularity -q exec docker://a/b:1 python x", "python x", "docker://a/b:1"),
        ("-N2", "srun --container-image=nvcr.io#a/b:1 python x", "python x", "docker://nvcr.io/a/b:1"),
        ("-N2", "srun --container-image a/b:1 python x", "python x", "docker://a/b:1"),
        ("", "mpirun -np 4 ./solver", "mpirun -np 4 ./solver", "base"),
        ("-N2", "srun bash -c 'echo $SLURM_PROCID'", "bash -c 'echo $SLURM_PROCID'", "base"),
    ],
)
def test_convert_maps_command_and_image_without_wrapping(options: str, line: str, command: str, image: str) -> None:
    found = convert(f"#SBATCH {options}", line)
    assert found.wrapped == ""
    assert part(found, "framework") == {"name": "custom", "version": image, "command": command}
    assert found.contained == (image != "base")


@pytest.mark.parametrize(
    ("options", "lines", "why"),
    [
        ("", ["python a.py && python b.py"], "line 3 has a background or conditional command"),
        ("", ["python a.py | tee x"], "line 3 has a pipe"),
        ("", ["cd x || exit 1", "python a.py"], "line 3 has a background or conditional command"),
        ("", ["nodes=(a b)", "python a.py"], "line 3 has an array"),
        ("", ["stop() {", "  exit 1", "}", "python a.py"], "line 3: a function begins there"),
        ("", ["function stop {", "  exit 1", "}", "python a.py"], "line 3: a function begins there"),
        ("", ["if true; then python x; fi"], "line 3: if begins a compound command"),
        ("-N2", ["""srun python x --name "of '$SLURM_PROCID'\""""], "$SLURM_PROCID is expanded once"),
        ("", ["""python x --name "of '$1'\""""], "it reads the script's arguments"),
        ("", ["python a.py > x"], "line 3 has a redirection"),
        ("", ["cat <<EOF", "x", "EOF", "python a.py"], "line 3 has a here-document"),
        ("", ["for i in 1 2; do python $i; done"], "line 3"),
        ("", ["if true", "then python x", "fi"], "line 3: if begins a compound command"),
        ("", ["python a.py", "python b.py"], "python runs before the last command (line 3)"),
        ("", ["python -c '", "print(1)'"], "line 3 has a line break within quotes"),
        ("", ["python x $1"], "it reads the script's arguments"),
        ("", ["export A=$1", "python x"], "it reads the script's arguments (line 3)"),
        ("-N2", ["srun python x $SLURM_PROCID"], "$SLURM_PROCID is expanded once"),
        ("-N2", ["srun python x $(date)"], "a command is substituted once"),
        ("-N2", ["export PORT=$RANDOM", "srun python x"], "$RANDOM is expanded once"),
        ("-N2 --ntasks-per-node=4", ["srun python x"], "srun starts 8 tasks on 2"),
        ("", ["srun --mpi=pmix python x"], "srun's --mpi=pmix"),
        ("", ["srun -l python x"], "srun's -l"),
        ("-N2", ["srun -n1 python x"], "srun's -n1 asks"),
        ("", ["apptainer run a.sif x"], "apptainer run starts what the image says"),
        ("", ["mpirun -np 4 apptainer exec a.sif x"], "mpirun starts a container of its own"),
        ("", ["srun bash -c 'docker run a x'"], "bash starts a container of its own"),
        ("", ["apptainer exec -B /a a.sif x"], "apptainer's -B changes"),
        ("", ["apptainer exec $IMAGE x"], "the image $IMAGE is not known"),
        ("", ["srun --container-image=/a.sqsh x"], "an enroot image"),
        ("", ["srun --container-image=a srun x"], "it starts srun within another launcher"),
        ("", ["set -e", "python x"], "set runs before the last command (line 3)"),
        ("-N2", ["export MASTER_ADDR=$(hostname)", "torchrun x"], "MASTER_ADDR is set, and a command of the first"),
        ("", [], "it has no command"),
    ],
)  # fmt: skip
def test_convert_wraps_script_with_reason_if_body_is_not_convertible(options: str, lines: list[str], why: str) -> None:
    found = convert(f"#SBATCH {options}", *lines)
    assert why in found.wrapped
    assert command_of(found) == "bash job.sh"


@pytest.mark.parametrize(
    ("lines", "env", "command"),
    [
        pytest.param(
            ["#SBATCH --array=1-9", "rate=$(echo 1 2 | awk '{print $1}')", "python x --lr $rate"], {},
            "rate=$(echo 1 2 | awk '{print $1}'); python x --lr $rate", id="quoted-dollar-field"),
        pytest.param(
            ["export A=1 B='x y'", "export C=$A", "module load cuda", "export D=4", "python x"],
            {"A": "1", "B": "x y", "C": "1"}, "module load cuda; export D=4; python x", id="only-leading-exports"),
        pytest.param(
            ["export DATA_DIR=/data LR=1", "export CHECKPOINT_DIR=ckpt", "python x"], {},
            "export DATA_DIR=/data LR=1; export CHECKPOINT_DIR=ckpt; python x", id="platform-variables"),
        pytest.param(
            ["export MASTER_ADDR=$(hostname)", "/usr/bin/nvidia-smi", "srun python x"], {"SLURM_NTASKS": "1"},
            "export MASTER_ADDR=$(hostname); /usr/bin/nvidia-smi; python x", id="hostname-of-one-node"),
    ],
)  # fmt: skip
def test_convert_moves_only_leading_exports_to_env(lines: list[str], env: dict[str, str], command: str) -> None:
    found = convert(*lines)
    assert (found.wrapped, command_of(found)) == ("", command)
    assert part(found, "batch").get("env", {}) == env


def test_convert_runs_wrapped_script_on_first_learner_and_steps_on_others() -> None:
    body = ("prepare", "A=1", "if [ $A ]; then", "B=$(date)", "fi", "scontrol requeue $SLURM_JOB_ID", "srun x")
    alone, several = convert("#SBATCH -N1", *body), convert("#SBATCH -N2", *body)
    assert alone.wrapped and several.wrapped
    fates = [[one.fate is Fate.MAPPED for one in found.judged[1:6]] for found in (alone, several)]
    assert fates == [[True] * 5] * 2
    assert "the platform restarts jobs" in several.judged[6].reason
    assert "starts its tasks" in alone.judged[7].reason
    assert "on Kubernetes that needs a claim" in several.judged[7].reason
    assert "roles" not in part(alone, "batch")
    assert part(several, "batch")["roles"] == TAKES_STEPS


def test_convert_takes_image_from_pyxis_directive() -> None:
    found = convert("#SBATCH --container-image=nvcr.io/a/b:1 --container-mounts=/d:/d", "python x")
    assert part(found, "framework")["version"] == "docker://nvcr.io/a/b:1"
    image, mounts = found.judged[:2]
    assert (image.fate, image.to, mounts.fate, mounts.to) == (Fate.APPROXIMATED, "framework.version", Fate.DROPPED, "")
    squashed = convert("#SBATCH --container-image=/d/x.sqsh", "python x")
    assert part(squashed, "framework")["version"] == "base"
    assert (squashed.judged[0].fate, "--image" in squashed.judged[0].reason) == (Fate.DROPPED, True)


@pytest.mark.parametrize(
    ("shebang", "command"),
    [
        ("#!/bin/bash -l", "bash -l job.sh"),
        ("#!/usr/bin/env python3", "/usr/bin/env python3 job.sh"),
        ("#!/bin/csh", "/bin/csh job.sh"),
        ("#! /bin/sh", "sh job.sh"),
    ],
)
def test_convert_keeps_interpreter_and_quotes_arguments_of_wrapped_script(shebang: str, command: str) -> None:
    assert command_of(convert("#SBATCH -t 1", "x | y", shebang=shebang)) == command
    assert command_of(convert("python $1", arguments=("a b", "$x"))) == "bash job.sh 'a b' '$x'"


def test_convert_applies_variable_defaults_and_reports_submitting_shell_variables() -> None:
    found = convert(
        "#SBATCH --export=ALL,GIVEN=5",
        "IMAGE=${IMAGE:-a/b:1}",
        'export EPOCHS="${EPOCHS:-3}" GIVEN=${GIVEN:-1}',
        "export PYTHONPATH=${PYTHONPATH:-}:src",
        ': "${LR:=0.1}"',
        'srun --container-image="${IMAGE}" python x --lr $LR --seed ${SEED-1}',
    )
    assert (found.wrapped, part(found, "framework")["version"]) == ("", "docker://a/b:1")
    assert part(found, "batch")["env"] == {"GIVEN": "5", "SLURM_NTASKS": "1"}
    told = [one for one in found.judged if "submitting shell" in one.reason]
    names = {one.line: one.reason.partition(" of ")[0].split()[-1] for one in told}
    assert names == {3: "IMAGE", 4: "EPOCHS", 6: "LR", 7: "SEED"}
    assert all(one.fate is Fate.APPROXIMATED for one in told)
    own = convert("IMAGE=a/b:1", "IMAGE=${IMAGE:-c/d:1}", "srun --container-image=$IMAGE python x")
    assert part(own, "framework")["version"] == "docker://a/b:1"
    assert [one.fate for one in own.judged] == [Fate.MAPPED] * 3


def test_convert_reports_host_dependencies_of_wrapped_script() -> None:
    found = convert("cd /lustre/work", 'eval "$(conda shell.bash hook)"', "A=${A:-1}", "python x | cat")
    assert [one.fate is Fate.APPROXIMATED for one in found.judged] == [True, True, True, False]


@pytest.mark.parametrize("text", ["0", "0-00:00:00", "UNLIMITED", "infinite"])
def test_convert_keeps_unlimited_time_limit_and_uses_script_name_for_empty_job_name(text: str) -> None:
    found = convert(f"#SBATCH --time={text}", "#SBATCH --job-name=   # enter it here", "python x")
    assert part(found, "batch")["time"] == "UNLIMITED"
    assert found.manifest["name"] == "job.sh"
    assert [one.fate for one in found.judged[:2]] == [Fate.MAPPED, Fate.APPROXIMATED]


def test_convert_makes_one_learner_per_node_with_resources_of_node() -> None:
    found = convert("#SBATCH -N 2 --ntasks-per-node=4 -c 6 --gres=gpu:a100:4 --mem-per-cpu=2G", "srun python x | cat")
    expected = {"learners": 2, "cpus": 24, "gpus": 4, "gpu_type": "a100", "memory": "48GiB"}
    assert {key: found.manifest[key] for key in expected} == expected
    assert part(found, "batch")["roles"] == TAKES_STEPS


def test_convert_keeps_other_nodes_idle_for_mpirun_command() -> None:
    roles = part(convert("#SBATCH -N 3 --ntasks-per-node=4", "mpirun -np 12 ./x"), "batch")["roles"]
    idle = {"learners": 2, "service": True, "command": "sleep infinity"}
    assert roles == {"batch": {"learners": 1}, "node": idle}


@pytest.mark.parametrize(
    ("options", "learners", "cpus", "gpus", "near"),
    [
        ("--gpus=8 --gpus-per-node=4 --cpus-per-gpu=3", 2, 12, 4, ""),
        ("-N2 --gpus=8 --gpus-per-task=1 -c 6", 2, 24, 4, ""),
        ("--gpus=8 --gpus-per-node=4 --gpus-per-task=2 -c 6", 2, 12, 4, ""),
        ("--gpus=h100:8", 1, 1, 8, "--gpus=h100:8"),
        ("-N4 -n2 --gres=gpu:1", 2, 1, 1, "-N4"),
    ],
)
def test_convert_derives_learners_cpus_and_gpus_from_gpu_and_task_counts(
    options: str, learners: int, cpus: int, gpus: int, near: str
) -> None:
    found = convert(f"#SBATCH {options}", "python x")
    assert [found.manifest[name] for name in ("learners", "cpus", "gpus")] == [learners, cpus, gpus]
    assert [one.text for one in found.judged if one.fate is Fate.APPROXIMATED] == ([near] if near else [])


def test_convert_reports_each_script_line_once_with_its_number() -> None:
    found = convert("#SBATCH -t 1", "module load x", "cd $SLURM_SUBMIT_DIR", "python x")
    fates = (Fate.MAPPED, Fate.APPROXIMATED, Fate.MAPPED, Fate.MAPPED)
    assert [(one.line, one.fate) for one in found.judged] == list(enumerate(fates, 2))
    assert [one.origin for one in found.judged] == [Origin.SCRIPT, *[Origin.BODY] * 3]


def test_convert_turns_exported_name_into_env_reference_without_value_unless_platform_sets_it() -> None:
    found = convert("#SBATCH --export=ALL,TOKEN,A=1", "python x", environ={"TOKEN": "xyzzy"})
    assert part(found, "batch")["secrets"] == {"TOKEN": "${env:TOKEN}"}
    assert part(found, "batch")["env"] == {"A": "1"}
    assert "xyzzy" not in str(found)
    lost = convert("#SBATCH --export=ALL,DATA_DIR=/data", "python x")
    assert (lost.judged[0].fate, "DATA_DIR cannot be given" in lost.judged[0].reason) == (Fate.APPROXIMATED, True)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("#SBATCH --nodes=x", "'x' is not a number"),
        ("#SBATCH --nodes=0", "a job needs a node"),
        ("#SBATCH --time=soon", "not a time limit"),
        ("#SBATCH --array=a-b", "--array=a-b"),
        ("#SBATCH --mem=much", "not a memory size"),
        ("#SBATCH --signal=@", "is not a signal"),
        ("python x\r", "DOS"),
    ],
)
def test_convert_rejects_invalid_option_value_and_dos_line_ending_with_line_number(line: str, why: str) -> None:
    with pytest.raises(CannotConvert, match=why) as caught:
        convert("# comment", line, "python x")
    assert caught.value.line == 3


@pytest.mark.parametrize(
    ("options", "default", "told"),
    [
        ("", "DATA_DIR:-/data", True),
        ("", "SLURM_CPUS_PER_TASK:-4", True),
        ("-c 4", "SLURM_CPUS_PER_TASK:-4", False),
        ("", "SLURM_JOB_ID:-0", False),
        ("", "SLURM_ARRAY_TASK_ID:-0", False),
    ],
)
def test_convert_reports_default_of_variable_that_platform_always_sets(options: str, default: str, told: bool) -> None:
    found = convert(f"#SBATCH -t 1 {options}", f"python x ${{{default}}}").judged[-1]
    assert ("the default does not count" in found.reason) == told
    assert found.fate is (Fate.APPROXIMATED if told else Fate.MAPPED)


def test_convert_drops_nested_sbatch_and_suggests_dependency() -> None:
    found = convert("cp $0 old.sbatch", "next=$(sbatch --parsable next.sh) && echo sbatch", "squeue --me | cat")
    assert [one.fate for one in found.judged] == [Fate.MAPPED, Fate.DROPPED, Fate.APPROXIMATED]
    assert "batch.dependency" in found.judged[1].reason


def test_convert_distinguishes_variable_length_from_argument_count() -> None:
    assert convert("NAME=abc", "LENGTH=${#NAME}", "python x $LENGTH").wrapped == ""
    assert convert("python x ${#}").wrapped == convert("python x $#").wrapped == "it reads the script's arguments"


@pytest.mark.parametrize(
    ("options", "line", "image", "written"),
    [
        ("-N2", "srun python x | cat", "docker://a/b:1", "bash job.sh"),
        ("-N1", "srun python x | cat", "docker://a/b:1", "bash job.sh"),
        ("-N1", "python x | cat", "docker://a/b:1", "apptainer exec docker://a/b:1 bash -c 'bash job.sh'"),
        ("-N1", "python x", "custom", "python x"),
        ("-N2", "torchrun x", "custom", "torchrun x"),
    ],
)
def test_convert_export_uses_container_only_for_script_without_own_steps(
    options: str, line: str, image: str, written: str
) -> None:
    found = convert(f"#SBATCH {options}", line, image=image)
    assert create().write(spec_of(write_manifest(found.manifest))).splitlines()[-1] == written
