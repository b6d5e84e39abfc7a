"""Values of sbatch's options in converted scripts: whole nodes, amounts, limits, and texts that sbatch refuses."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.conversion import CannotConvert, Conversion, Fate, Judged, Source
from ffdl_batch.domain.sbatch.option_table import TABLE, OptionRow, Takes
from ffdl_batch.manifest import ManifestSource, parse_manifest
from ffdl_batch.manifest.writer import write_manifest
from ffdl_slurm.convert.converter import SbatchConverter
from ffdl_slurm.convert.directives import read_directives


def convert(options: str, *body: str, name: str = "job.sh") -> Conversion:
    text = "\n".join(("#!/bin/bash", f"#SBATCH {options}", *(body or ("python train.py",)), ""))
    return SbatchConverter().convert(Source(text, name, image="custom"))


def judged(found: Conversion, text: str) -> list[Judged]:
    return [one for one in found.judged if one.text == text]


@pytest.mark.parametrize(
    ("body", "gpus"),
    [
        ("torchrun --nproc_per_node=8 train.py", 8),
        ("torchrun --nproc-per-node 4 train.py", 4),
        ("export GPUS_PER_NODE=${GPUS_PER_NODE:-6}\ntorchrun --nproc_per_node=$GPUS_PER_NODE train.py", 6),
        ("NUM_GPUS_PER_NODE=2\nsrun python train.py", 2),
        ("deepspeed --num_gpus=3 train.py", 3),
        ("srun --gres=gpu:a100:4 python train.py", 4),
        ("CUDA_VISIBLE_DEVICES=0,1 python a.py &\nCUDA_VISIBLE_DEVICES=2 python b.py", 3),
        ("NGPUS=5 python train.py", 5),
    ],
)
def test_convert_takes_gpus_of_exclusive_nodes_from_commands(body: str, gpus: int) -> None:
    found = convert("--exclusive", *body.split("\n"))
    (one,) = judged(found, "--exclusive")
    assert (found.manifest["gpus"], one.fate, one.to) == (gpus, Fate.APPROXIMATED, "batch.slurm.args, gpus")
    assert f"each node has {gpus} GPUs by the commands of the script" in one.reason


@pytest.mark.parametrize(
    "body", ["torchrun train.py", "NGPUS=2\nN_GPUS=4\nnvidia-smi", "#--nproc_per_node=8\nmodule load cuda"]
)
def test_convert_asks_for_gpus_of_exclusive_nodes_if_commands_do_not_count_them(body: str) -> None:
    found = convert("--exclusive", *body.split("\n"))
    kept, asked = judged(found, "--exclusive")
    assert (found.manifest["gpus"], kept.fate, asked.fate) == (0, Fate.APPROXIMATED, Fate.DROPPED)
    assert "gpus is 0; write gpus: into the manifest, or convert with --options --gpus-per-node=N" in asked.reason


def test_convert_mentions_gpus_of_exclusive_nodes_of_cpu_jobs() -> None:
    (one,) = judged(convert("--exclusive", "srun ./simulate"), "--exclusive")
    assert one.fate is Fate.APPROXIMATED and "and no GPUs: write gpus:" in one.reason


@pytest.mark.parametrize("options", ["--exclusive=user", "--exclusive=mcs", "--exclusive --gpus-per-node=2"])
def test_convert_reads_no_gpus_from_commands_if_an_option_decides(options: str) -> None:
    found = convert(options, "torchrun --nproc_per_node=8 train.py")
    assert found.manifest["gpus"] == (2 if "gpus" in options else 0)
    assert [one.fate for one in judged(found, options.split(" ", maxsplit=1)[0])] == [Fate.APPROXIMATED]


def spec_of(found: Conversion) -> object:
    parsed = parse_manifest(ManifestSource(write_manifest(found.manifest), "m.yml", "/"))
    assert parsed.spec is not None, parsed.findings
    return parsed.spec


def test_convert_keeps_generic_resources_with_units() -> None:
    found = convert("--gres=gpu:1,lscratch:200G")
    batch = found.manifest["batch"]
    assert isinstance(batch, dict)
    assert (found.manifest["gpus"], batch["gres"]) == (1, {"lscratch": "200G"})
    script = SbatchConverter().write(spec_of(found))  # type: ignore[arg-type]
    assert "#SBATCH --gres=gpu:1,lscratch:214748364800\n" in script


def test_convert_keeps_whole_memory_no_limit_and_expedited_requeue() -> None:
    found = convert("--mem=0 -t UNLIMITED --requeue=expedite --segment=4 --nice")
    batch = found.manifest["batch"]
    assert isinstance(batch, dict)
    assert (found.manifest["memory"], batch["time"], batch["requeue"]) == ("all", "UNLIMITED", "expedite")
    assert {one.fate for one in found.judged if one.text.startswith("-")} == {Fate.MAPPED}
    script = SbatchConverter().write(spec_of(found))  # type: ignore[arg-type]
    assert SbatchConverter().differences(Source(_text(found), "job.sh"), script) == ()
    assert {"#SBATCH --segment=4", "#SBATCH --nice"} <= {*script.splitlines()}


def _text(_found: Conversion) -> str:
    return "#!/bin/bash\n#SBATCH --mem=0 -t UNLIMITED --requeue=expedite --segment=4 --nice\npython train.py\n"


@pytest.mark.parametrize(
    ("line", "fates"),
    [
        ("#SBATCH -p late", [Fate.DROPPED]),
        ("cat <<EOF > other.sh\n#SBATCH -p late\nEOF", []),
        ("cat <<-'END'\n#SBATCH -p late\n\tEND\n#SBATCH -q later", [Fate.DROPPED]),
        ("#SBATCHES", []),
    ],
)
def test_convert_reports_directives_behind_the_first_command(line: str, fates: list[Fate]) -> None:
    found = [
        one for one in read_directives(f"#!/bin/bash\n#SBATCH -A x\n\ntrue\n{line}\n").judged if "behind" in one.reason
    ]
    assert [one.fate for one in found] == fates
    assert all("the first command, line 4; move it up" in one.reason for one in found)


def test_convert_refuses_shebang_without_interpreter() -> None:
    for text in ("#!\n", "#!", "#!   \ntrue\n"):
        with pytest.raises(CannotConvert, match="names no interpreter") as caught:
            SbatchConverter().convert(Source(text, "job.sh"))
        assert caught.value.line == 1


@pytest.mark.parametrize("options", ["--mem-per-gpu=x --mem=4G", "--mem=4G --mem-per-cpu=lots", "--mem-per-gpu=1.5G"])
def test_convert_refuses_bad_memory_beside_another(options: str) -> None:
    with pytest.raises(CannotConvert, match="is not a memory size as sbatch takes it") as caught:
        convert(options)
    assert caught.value.line == 2


_NASTY = (
    "x",
    "0",
    "-1",
    "99999999999",
    "1:2:3:4",
    "a:b:c",
    ",",
    "=",
    ":",
    "1,,2",
    "é",
    "1-",
    "(1)",
    "a=1,b",
    "1@",
    "%j",
)


@pytest.mark.parametrize("row", [row for row in TABLE if row.takes is not Takes.NONE], ids=lambda row: row.name)
def test_convert_answers_every_value_with_a_manifest_or_a_refusal(row: object) -> None:
    assert isinstance(row, OptionRow)
    name, of_learner = row.name, {*row.key.split(", ")} & {"memory", "gpus", "cpus", "learners"}
    for value in _NASTY:
        for beside in ("", " --mem=4G --gpus-per-node=2 --exclusive") if of_learner else ("",):
            try:
                found = convert(f"--{name}='{value}'{beside}")
            except CannotConvert as error:
                assert error.line == 2, (name, value)
                continue
            parsed = parse_manifest(ManifestSource(write_manifest(found.manifest), "m.yml", "/"))
            errors = [str(one) for one in parsed.findings if str(one.severity) == "error"]
            assert not errors, (name, value, beside, errors)


@pytest.mark.parametrize("image", ["/images/torch.sif", "torch.sif"])
def test_convert_takes_container_image_with_sif_suffix_for_a_sif_file(image: str) -> None:
    found = convert(f"--container-image={image}", "srun python train.py")
    framework = found.manifest["framework"]
    assert isinstance(framework, dict) and framework["version"] == image
    squash = convert("--container-image=/images/torch.sqsh", "srun python train.py").manifest["framework"]
    assert isinstance(squash, dict) and squash["version"] == "custom"


def test_convert_joins_mail_events_of_several_options_and_says_so() -> None:
    found = convert("--mail-type=END --mail-user=a\n#SBATCH --mail-type=FAIL,TIME_LIMIT")
    batch = found.manifest["batch"]
    assert isinstance(batch, dict) and batch["notify"]["events"] == ["END", "FAIL", "TIME_LIMIT"]
    first, second = (one for one in found.judged if "mail-type" in one.text)
    assert (first.fate, second.fate) == (Fate.MAPPED, Fate.MAPPED)
    assert "Slurm 25.05 and later take the last alone" in second.reason
    none = convert("--mail-type=END,NONE").manifest["batch"]
    assert isinstance(none, dict) and none["notify"]["events"] == ["NONE"]


def test_convert_refuses_exclusive_beside_oversubscribe() -> None:
    with pytest.raises(CannotConvert, match="refuses --exclusive beside --oversubscribe"):
        convert("--exclusive -s")
