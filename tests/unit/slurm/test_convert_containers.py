"""Containers that commands ask for in scripts that run whole: the manifest's image, or told as lost."""

from __future__ import annotations

from functools import partial

import pytest

from ffdl_batch.domain.conversion import Conversion, Fate
from tests.unit.slurm import test_convert_bodies
from tests.unit.slurm.test_convert_bodies import part

_NGC = "nvcr.io#nvidia/pytorch:24.01-py3"
_PULLED = "docker://nvcr.io/nvidia/pytorch:24.01-py3"

convert = partial(test_convert_bodies.convert, image="custom")


def image_of(conversion: Conversion) -> object:
    return part(conversion, "framework")["version"]


def options(conversion: Conversion) -> list[tuple[int, Fate, str]]:
    """Those that are told by themselves; a line of the script that is one runs as it is."""
    return [
        (one.line, one.fate, one.text)
        for one in conversion.judged
        if one.text.startswith("-") and one.to != "framework.command"
    ]


def test_convert_uses_step_image_for_manifest_and_drops_container_mounts() -> None:
    step = f"srun --container-image={_NGC} --container-mounts=/data:/data python3 x $0 --container-name=y | tee log"
    found = convert(step)
    assert (found.wrapped, image_of(found)) == ("it reads its own name: $0 (line 2)", _PULLED)
    assert options(found) == [
        (2, Fate.APPROXIMATED, f"--container-image={_NGC}"), (2, Fate.DROPPED, "--container-mounts=/data:/data")
    ]  # fmt: skip
    image, mounts = (one.reason for one in found.judged[-2:])
    assert "the whole script runs in it" in image and "data_stores" in mounts


@pytest.mark.parametrize(
    "lines",
    [
        ["IMG=a/b:1", 'srun -n 1 --container-image="${IMG}" python x | tee y'],
        ["export IMG=a/b:1", "srun --ntasks 1 -l --container-image $IMG \\", "  python x > y"],
        ["N=$(srun -N1 hostname)", "srun $MORE --container-image=a/b:1 x", "srun --container-image=a/b:1 y"],
        ["ARGS=(", "  --container-image=a/b:1", ")", 'srun "${ARGS[@]}" python x'],
        ["IMG=a/b:1", 'ARGS="--container-image=$IMG"', "srun $ARGS python x | cat"],
        ["for i in 1 2; do", "  srun --container-image=a/b:1 python $i", "done"],
        ["srun --container-image=a/b:1 bash <<EOF", "python x", "EOF"],
        ["IMG=${IMG:-a/b:1}", 'srun --container-image="$IMG" x | y'],
        [': "${IMG:=a/b:1}"', "srun --container-image=$IMG x | y"],
        ['readonly IMG="${OTHER-"a/b:1"}"', "srun --container-image=$IMG x | y"],
        ["TAG=1", "srun --container-image=${IMG:-a/b:${TAG}} x | y"],
        ["srun --container-image=${1:-a/b:1} x | y"],
        ["#!/bin/zsh", "srun --container-image=a/b:1 x"],
    ],
)
def test_convert_finds_step_image_behind_variables_arrays_and_defaults(lines: list[str]) -> None:
    shebang, *body = lines if lines[0].startswith("#!") else ["#!/bin/bash", *lines]
    assert image_of(convert(*body, shebang=shebang)) == "docker://a/b:1"
    found = convert(*body, "trap x EXIT", shebang=shebang)
    assert found.wrapped
    assert image_of(found) == "docker://a/b:1"
    assert {one[1] for one in options(found)} == {Fate.APPROXIMATED}


@pytest.mark.parametrize(
    ("lines", "version", "reason"),
    [
        (["srun --container-image=a x | y", "srun --container-image=b x"], "custom", "names docker://a and docker://b"),
        (["#SBATCH --container-image=a", "srun --container-image=b x $0"], "docker://a", "#SBATCH names"),
        (["srun --container-image=$1 x"], "custom", "not known before the script runs; name an image by --image"),
        (["A=x", "b && A=y", "srun --container-image=$A x | y"], "custom", "not known before the script runs"),
        (["srun --container-image=/a.sqsh x | y"], "custom", "an enroot image"),
        (["A=x", "if b; then A=y; fi", "srun --container-image=${A:-z} x"], "custom", "not known before"),
        (["read -r A < f", "srun --container-image=${A:-z} x"], "custom", "not known before the script runs"),
        (["srun --container-image=${SLURM_X:-z} x | y"], "custom", "not known before the script runs"),
        (["#SBATCH --export=A", "srun --container-image=${A:-z} x | y"], "custom", "not known before"),
    ],
)
def test_convert_drops_ambiguous_unknown_or_enroot_step_image(lines: list[str], version: str, reason: str) -> None:
    found = convert(*lines)
    assert image_of(found) == version
    lost = [one for one in found.judged if one.fate is Fate.DROPPED]
    assert lost and all(reason in one.reason for one in lost)


def test_convert_image_option_replaces_all_step_images_and_containers_that_script_starts() -> None:
    found = convert("srun --container-image=a x | y", "srun --container-image=$B x", image="docker://c")
    assert image_of(found) == "docker://c"
    assert [one[1] for one in options(found)] == [Fate.APPROXIMATED] * 2
    started = convert("apptainer exec x.sif python $0", image="docker://c").judged[-1]
    assert started.fate is Fate.APPROXIMATED
    assert "runs in docker://c: take what starts a container out" in started.reason


def test_convert_reports_directive_image_overridden_by_step_image() -> None:
    found = convert("#SBATCH --container-image=a", "srun --container-image=b python x")
    assert (found.wrapped, image_of(found)) == ("", "docker://b")
    assert options(found) == [(2, Fate.DROPPED, "--container-image=a")]


@pytest.mark.parametrize("program", ["apptainer", "singularity"])
def test_convert_drops_binds_of_apptainer_in_wrapped_step(program: str) -> None:
    assert options(convert(f"srun {program} exec -B /a:/b x.sif python y")) == [(2, Fate.DROPPED, "-B /a:/b")]
    found = convert(f"srun {program} exec --nv -B /a:/b --bind=/c x.sif python -B $0 | tee log", image="base")
    assert options(found) == [(2, Fate.DROPPED, "-B /a:/b"), (2, Fate.DROPPED, "--bind=/c")]
    assert "likely does not start: name the image by --image" in found.judged[0].reason
    assert (found.judged[1].text, found.judged[1].fate) == (f"{program} exec x.sif", Fate.APPROXIMATED)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("docker run --rm -it -v $PWD:/w --gpus all --mount type=bind,src=/a,dst=/b img:1 python -v x",
         ["docker run img:1", "-v $PWD:/w", "--mount type=bind,src=/a,dst=/b"]),
        ("podman run --volume=/a:/b -v/c:/d img python", ["podman run img", "--volume=/a:/b", "-v/c:/d"]),
        ("enroot start --rw -m /a:/b --mount /c:/d pt x", ["enroot start pt", "-m /a:/b", "--mount /c:/d"]),
        ("srun singularity --silent run -B /a --nv x.sif", ["singularity run x.sif", "-B /a"]),
        ("apptainer pull x.sif docker://a/b", []),
        ("pip install docker apptainer", []),
        ("module load singularity/3", []),
        ("echo apptainer exec -B /a:/b x.sif", []),
    ],
)  # fmt: skip
def test_convert_drops_containers_and_mounts_that_script_starts(line: str, told: list[str]) -> None:
    found = convert(f"{line} | cat $0")
    assert [one.text for one in found.judged if one.fate is Fate.DROPPED] == told


@pytest.mark.parametrize("name", ["APPTAINER_BIND", "SINGULARITY_BIND", "APPTAINER_BINDPATH", "SINGULARITY_BINDPATH"])
@pytest.mark.parametrize("last", ["apptainer exec /x.sif python y", "python x | cat"])
def test_convert_reports_apptainer_bind_variable(name: str, last: str) -> None:
    found = convert(f'export {name}="/scratch,/data:/mnt"', last)
    lost = [(one.line, one.text) for one in found.judged if one.fate is Fate.DROPPED]
    assert lost == [(2, f'{name}="/scratch,/data:/mnt"')]


@pytest.mark.parametrize(
    ("lines", "image"),
    [
        (["SIF=/a/b.sif", "srun singularity run $SIF python $0"], " /a/b.sif"),
        (["apptainer exec '/a b.sif' python $0"], " '/a b.sif'"),
        (["singularity exec $1 python $0"], ""),
        (["docker run a/b python $0"], ""),
    ],
)
def test_convert_names_image_of_container_in_script_that_runs_whole(lines: list[str], image: str) -> None:
    reasons = [one.reason for one in convert(*lines).judged if one.fate is Fate.DROPPED]
    assert reasons == [f"learners start no container of their own: name the image by --image{image}"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("APPTAINERENV_DEBUG", "learners do not have it as DEBUG: write that into batch.env"),
        ("SINGULARITYENV_PREPEND_PATH", "learners do not have it in PATH: set PATH with export in the script"),
        ("APPTAINERENV_APPEND_PATH", "learners do not have it in PATH: set PATH with export in the script"),
    ],
)
def test_convert_drops_apptainerenv_variable_and_names_its_replacement(name: str, why: str) -> None:
    found = convert(f"export {name}=1", "apptainer exec /x.sif python y")
    (reason,) = [one.reason for one in found.judged if one.fate is Fate.DROPPED]
    assert reason == why


@pytest.mark.parametrize(
    "option", ["--cpu-bind=none", "--cpu-bind none", "--distribution=block", "-m block", "-mblock:cyclic"]
)
def test_convert_approximates_cpu_binding_without_wrapping_script(option: str) -> None:
    found = convert(f"srun {option} python x")
    assert found.wrapped == ""
    assert (found.judged[-1].fate, "binds nothing" in found.judged[-1].reason) == (Fate.APPROXIMATED, True)


def test_convert_reports_programs_that_run_in_image_of_another_command() -> None:
    found = convert("module load a", "python prepare.py", "apptainer exec /x.sif python y")
    assert (found.wrapped, image_of(found)) == ("", "/x.sif")
    assert "python and the like run in this image, too" in found.judged[-1].reason
    alone = convert("module load a", "apptainer exec /x.sif python y")
    assert "run in this image" not in alone.judged[-1].reason
