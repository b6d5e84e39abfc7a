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
        ("-N1", "srun apptainer exec --nv /a/b.sif python x", "python x", "/a/b.sif"),
        ("-N2", "srun singularity exec /a/b.sif python x", "python x", "/a/b.sif"),
        ("", "srun -n 2 singularity exec /a/b.sif python x", "srun -n 2 python x", "/a/b.sif"),
        ("", "timeout 60 srun singularity exec /a/b.sif python x", "timeout 60 python x", "/a/b.sif"),
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
        ("-N2", ["timeout 60 srun python x"], "timeout starts srun (line 3)"),
        ("-N2", ["env A=1 srun python x"], "env starts srun (line 3)"),
        ("-N2", ["RUN='srun python'", "$RUN x"], "a text starts srun (line 3)"),
        ("-N2", ["RUN=(srun python)", '"${RUN[@]}" x'], "an array starts srun (line 3)"),
        ("-N2", ["bash -c 'srun python x'"], "a text starts srun (line 3)"),
        ("-N2", ["bash <<EOF", "srun python x", "EOF"], "a here-document starts srun (line 3)"),
        ("-N2", ["$RUN python x"], "$RUN is a program that is not known before it runs (line 3)"),
        ("-N2", ["bash steps.sh"], "steps.sh may start steps on the other nodes (line 3)"),
        ("-N2", ["if a; then srun python x; fi"], "srun is in a condition, a loop, a function or a list (line 3)"),
        ("-N2", ["srun python x | tee y"], "srun is in a condition, a loop, a function or a list (line 3)"),
        ("-N2", ["srun python x > y"], "the output of all tasks goes into one file (line 3)"),
        ("-N2", ["srun a", "srun b"], "it has several steps of srun"),
        ("-N2", ["python prepare.py", "srun python x"], "python runs before or after the step, and only once (line 3)"),
        ("-N2", ["cp a b", "srun python x"], "cp runs before or after the step, and only once (line 3)"),
        ("-N2", ["echo a > b", "srun python x"], "echo runs before or after the step, and only once (line 3)"),
        ("-N2", ["sleep 9 &", "srun python x"], "it runs something in the background (line 3)"),
        ("-N2", ["source steps.sh", "srun python x"], "steps.sh may start steps (line 3)"),
        ("-N2", ["PORT=$((10000 + RANDOM % 1000))", "srun python x"], "$RANDOM is expanded once"),
        ("-N2", ["srun python x $((SLURM_PROCID + 1))"], "$SLURM_PROCID is expanded once"),
        ("-N2", ["export SEED=$SRANDOM", "srun python x"], "$SRANDOM is expanded once"),
        ("-N2", ["let 'PORT = RANDOM'", "srun python x"], "let runs before or after the step"),
        ("-N2", ["""srun python x --name "of '$SLURM_PROCID'\""""], "$SLURM_PROCID is expanded once"),
        ("-N2", ["srun python x $SLURM_PROCID"], "$SLURM_PROCID is expanded once"),
        ("-N2", ["srun python x $(date)"], "a command is substituted once"),
        ("-N2", ["export PORT=$RANDOM", "srun python x"], "$RANDOM is expanded once"),
        ("-N2", ["srun $OPTIONS python x"], "$OPTIONS behind srun is not known before it runs"),
        ("-N2", ["srun -n1 python x"], "srun starts 1 tasks, and the job has 2 tasks"),
        ("-N2", ["srun -N1 python x"], "srun's --nodes=1 asks"),
        ("--gres=gpu:4", ["srun --gres=gpu:1 python x"], "srun's --gres=gpu:1 asks"),
        ("", ["mpirun -np 4 apptainer exec a.sif x"], "mpirun starts apptainer (line 3)"),
        ("", ["srun bash -c 'docker run a x'"], "a text starts a container of its own (line 3)"),
        ("", ["podman-hpc run a x"], "podman-hpc starts a container of its own (line 3)"),
        ("", ["shifter --image=a x"], "shifter starts a container of its own (line 3)"),
        ("", ["apptainer exec --home /a a.sif x"], "apptainer's --home changes"),
        ("", ["apptainer exec $IMAGE x"], "the image $IMAGE is not known"),
        ("", ["apptainer exec a.sif x", "apptainer exec b.sif x"], "it starts containers of a.sif and of b.sif"),
        ("", ["srun --container-image=/a.sqsh x"], "an enroot image"),
        ("", ["srun --container-image=../a.sqsh x"], "an enroot image"),
        ("", ["srun time singularity exec /a/b.sif x"], "time starts singularity (line 3)"),
        ("-N2", ["srun nsys profile apptainer exec /a/b.sif x"], "nsys starts apptainer (line 3)"),
        ("", ["srun bash -c 'singularity exec /a/b.sif x'"], "a text starts singularity (line 3)"),
        ("", ["srun --container-image=a srun x"], "it starts srun within another launcher"),
        ("", ["ssh node2 python x"], "ssh starts commands on other hosts (line 3)"),
        ("", ["pdsh -w node[1-2] python x"], "pdsh starts commands on other hosts (line 3)"),
        ("", ["sbatch next.sh"], "sbatch asks Slurm, which learners cannot reach (line 3)"),
        ("", ["snakemake --cluster 'sbatch -n 1'"], "sbatch asks Slurm, which learners cannot reach (line 3)"),
        ("", ['cd "$(dirname "$0")"', "python x"], "it reads its own name: $0 (line 3)"),
        ("", ["trap 'kill 0' EXIT", "python x"], "it traps signals or its end (line 3)"),
        ("", ["exec python x", "python y"], "exec ends the script before its last command (line 3)"),
        ("", ["if a; then"], "is not understood as bash"),
        ("", ["echo \x1b[1m", "python x"], "it has control characters, which no manifest holds (line 3)"),
        ("", ["python x", f"echo {'x' * 66000}"], "it has more than 64 KiB, too much for a command"),
        ("", [], "it has no command"),
    ],
)  # fmt: skip
def test_convert_wraps_script_with_reason_if_body_is_not_convertible(options: str, lines: list[str], why: str) -> None:
    found = convert(f"#SBATCH {options}", *lines)
    assert why in found.wrapped
    assert command_of(found) == "bash job.sh"


@pytest.mark.parametrize(
    ("lines", "command"),
    [
        (["python a.py && python b.py"], "python a.py && python b.py"),
        (["python a.py | tee x  # shown"], "python a.py | tee x"),
        (["A=(--lr 1", "  --seed 2)", 'python a.py "${A[@]}"'], 'A=(--lr 1\n  --seed 2)\npython a.py "${A[@]}"'),
        (["set -euo pipefail", "python x"], "set -euo pipefail; python x"),
        (["echo start; date", "python a.py > x 2>&1"], "echo start; date\npython a.py > x 2>&1"),
        (["if [ -d a ]; then", "\tsource a", "fi", "srun python x"], "if [ -d a ]; then\n    source a\nfi\npython x"),
        (["cat > a <<EOF", "# kept", "EOF", "python x"], "cat > a <<EOF\n# kept\nEOF\npython x"),
        (["for i in 1 2; do srun python $i; done"], "for i in 1 2; do python $i; done"),
        (["f() { python $1; }", "f a"], "f() { python $1; }\nf a"),
        (["python a.py", "python b.py"], "python a.py; python b.py"),
        (["python -c '", "print(1)'"], "python -c '\nprint(1)'"),
        (["python a \\", "  --lr 1 \\", "", "python b"], "python a   --lr 1; python b"),
        (["echo \"a\\", "b\""], 'echo "ab"'),
        (["srun -l python x"], "srun -l python x"),
        (["srun --mpi=pmix python x"], "srun --mpi=pmix python x"),
        (["timeout 60 srun python x"], "timeout 60 python x"),
        (["apptainer run -B /a:/b a.sif x"], "/.singularity.d/runscript x"),
        (["apptainer exec --env A=1 a.sif python x"], "env A=1 python x"),
        (["time singularity exec a.sif python x | cat"], "time python x | cat"),
        (["x=$((1 / $A))", "python y $x"], "x=$((1 / $A))\npython y $x"),
        (["x=1", "python y $x"], "x=1; python y $x"),
    ],
)  # fmt: skip
def test_convert_keeps_shell_constructs_of_script_for_one_node(lines: list[str], command: str) -> None:
    found = convert("#SBATCH -N1", *lines)
    assert (found.wrapped, command_of(found)) == ("", command)


@pytest.mark.parametrize(
    ("lines", "command"),
    [
        (["nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))", "srun python x ${nodes[0]}"],
         "nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST)); python x ${nodes[0]}"),
        (["echo at $(date) on $(hostname) $SLURM_PROCID", "srun python x", "echo done"],
         "echo at $(date) on $(hostname) $SLURM_PROCID; python x; echo done"),
        (["if [ -d a ]; then source a/bin/activate; fi", "srun python x"],
         "if [ -d a ]; then source a/bin/activate; fi\npython x"),
        (["ip=$(srun -N1 -n1 -w $head hostname --ip-address)", "srun python x $ip"],
         "ip=$(srun -N1 -n1 -w $head hostname --ip-address); python x $ip"),
        (["export MASTER_ADDR=$(scontrol show hostnames | head -n 1)", "srun python x"], "python x"),
    ],
)  # fmt: skip
def test_convert_runs_commands_of_each_node_that_do_the_same_everywhere(lines: list[str], command: str) -> None:
    found = convert("#SBATCH -N2", *lines)
    assert (found.wrapped, command_of(found)) == ("", command)
    assert "roles" not in part(found, "batch")


def test_convert_keeps_srun_that_starts_several_tasks_on_each_node() -> None:
    found = convert("#SBATCH -N2 --ntasks-per-node=4 --gres=gpu:4", "module load a", "srun python x")
    assert (found.wrapped, command_of(found)) == ("", "module load a; srun python x")
    assert (found.manifest["learners"], found.manifest["gpus"]) == (2, 4)
    env = part(found, "batch")["env"]
    assert isinstance(env, dict) and (env["SLURM_NTASKS"], env["SLURM_NNODES"]) == ("8", "2")
    written = create().write(spec_of(write_manifest(found.manifest))).splitlines()
    assert written[-1] == "module load a; srun python x" and written[-2].startswith("export MASTER_ADDR=")


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


_NO_IMAGES = {
    "/d/x.sqsh": "enroot image",
    "./x.sqsh": "enroot image",
    "x.sqsh": "enroot image",
    "images/x.sqsh": "enroot image",
    "x.squashfs": "enroot image",
    "x.sqfs": "enroot image",
    "/d/torch": "enroot image",
    "file:///d/x": "enroot image",
    "dockerd://a": "no registry has an image of dockerd",
    "podman://a/b:1": "no registry has an image of podman",
    "me@nvcr.io/a": "as a user of the registry",
}


@pytest.mark.parametrize(("image", "why"), _NO_IMAGES.items())
@pytest.mark.parametrize(
    "lines",
    [
        ["#SBATCH --container-image={}", "python x"],
        ["srun --container-image={} python x"],
        ["srun --container-image {} python x"],
        ["IMAGE={}", 'srun --container-image="$IMAGE" python x'],
    ],
    ids=["directive", "srun", "value-of-its-own", "variable"],
)
def test_convert_drops_images_that_apptainer_cannot_run_and_says_why(image: str, why: str, lines: list[str]) -> None:
    found = convert(*(line.replace("{}", image) for line in lines), image="custom")
    assert part(found, "framework")["version"] == "custom"
    [dropped] = [one for one in found.judged if one.fate is Fate.DROPPED]
    assert why in dropped.reason and "--image" in dropped.reason


@pytest.mark.parametrize("image", ["$HOME/x.sqsh", "${SCRATCH}/x.sif", "~/x.sqsh", "~/x.sif", "nvcr.io/$TEAM/a:1"])
def test_convert_drops_directive_with_image_of_variable(image: str) -> None:
    found = convert(f"#SBATCH --container-image={image}", "python x")
    assert part(found, "framework")["version"] == "base"
    assert (found.judged[0].fate, "expand neither" in found.judged[0].reason) == (Fate.DROPPED, True)


@pytest.mark.parametrize(
    ("shebang", "command"),
    [
        ("#!/usr/bin/env python3", "/usr/bin/env python3 job.sh"),
        ("#!/bin/csh", "/bin/csh job.sh"),
        ("#! /bin/sh", "sh job.sh"),
        ("#!/bin/bash -l", "bash -l job.sh"),
    ],
)
def test_convert_keeps_interpreter_and_quotes_arguments_of_wrapped_script(shebang: str, command: str) -> None:
    assert command_of(convert("#SBATCH -t 1", "python $0", shebang=shebang)) == command
    assert command_of(convert("python $0 $1", arguments=("a b", "$x"))) == "bash job.sh 'a b' '$x'"


def test_convert_gives_arguments_and_options_of_shell_to_understood_script() -> None:
    assert command_of(convert("python $1", arguments=("a b", "$x"))) == "set -- 'a b' '$x'; python $1"
    assert command_of(convert("python x", shebang="#!/bin/bash -eu")) == "set -eu; python x"
    login = convert("python x", shebang="#!/bin/bash -l")
    assert command_of(login) == "python x"
    assert (login.judged[0].line, "login files" in login.judged[0].reason) == (1, True)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("horovodrun -np 8 -H a:4,b:4 python x", "its workers are started by ssh"),
        ("ssh node2 python x", "no sshd"),
        ("pdsh -w a,b python x", "no sshd"),
        ("shifter --image=a x", "no container"),
        ("podman-hpc run a x", "no container"),
        ("python ~/x.py", "no directory of the host (~/x.py)"),
        ("python $HOME/x.py", "no directory of the host ($HOME/x.py)"),
        ("python x --data /scratch/a/b --out=/project/c", "(/scratch/a/b, /project/c)"),
        ("python x $1", "$1 is empty, as the script is given no such argument"),
        ('python x "$@"', "$@ is empty, as the script is given no such argument"),
    ],
)
@pytest.mark.parametrize("before", ["true", "python $0"])
def test_convert_reports_what_learners_lack_at_its_line(line: str, reason: str, before: str) -> None:
    found = [one for one in convert("#SBATCH -t 1", before, line).judged if one.line == 4]
    assert any(reason in one.reason and one.fate is not Fate.MAPPED for one in found), found


@pytest.mark.parametrize(
    ("line", "paths"),
    [
        ('mkdir "$TMPDIR"/x', ""),
        ('cp "${A}"/b "$(pwd)"/c', ""),
        ("cp '$A'/b x", ""),
        ('cp "$A"/b "/scratch/c"', "(/scratch/c)"),
        ('python x --out="/scratch/c"', "(/scratch/c)"),
        ('python x -B"/scratch/c"', "(/scratch/c)"),
    ],
)
def test_convert_reports_no_host_path_where_quoted_word_continues(line: str, paths: str) -> None:
    reason = convert("#SBATCH -t 1", "TMPDIR=a A=b", line).judged[-1].reason
    assert ("no directory of the host" in reason) == bool(paths)
    assert paths in reason


@pytest.mark.parametrize("text", ["$(echo ", '"$(echo ', "$(\necho "])
def test_convert_reads_deeply_nested_substitutions(text: str) -> None:
    deep = f"echo {text * 1000}x{(')' + chr(34) * text.startswith(chr(34))) * 1000}"
    assert convert(deep).wrapped == ""


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
    assert convert("LENGTH=${#NAME}", "python x $LENGTH").judged[0].fate is Fate.MAPPED
    assert "$# is empty" in convert("python x $#").judged[0].reason


@pytest.mark.parametrize(
    ("options", "line", "image", "written"),
    [
        ("-N2", "srun python x | cat", "docker://a/b:1", "bash job.sh"),
        ("-N1", "srun -n4 python x", "docker://a/b:1", "srun -n4 python x"),
        ("-N1", "python x | cat", "docker://a/b:1", "apptainer exec docker://a/b:1 bash -c 'python x | cat'"),
        ("-N1", "python x", "custom", "python x"),
        ("-N2", "torchrun x", "custom", "torchrun x"),
    ],
)
def test_convert_export_uses_container_only_for_script_without_own_steps(
    options: str, line: str, image: str, written: str
) -> None:
    found = convert(f"#SBATCH {options}", line, image=image)
    assert create().write(spec_of(write_manifest(found.manifest))).splitlines()[-1] == written
