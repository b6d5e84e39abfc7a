"""The proof of conversion in short, and that it fails where a conversion is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.conversion import Conversion, Source
from ffdl_slurm.convert.converter import create
from tests.proof.convert.__main__ import main
from tests.proof.convert.breaks import BREAKS
from tests.proof.convert.lost import silently_lost
from tests.proof.convert.running import Ran
from tests.proof.convert.verdict import compare, resources_differ

SHORT = ("assignments", "exports", "heredoc", "mpirun-nodes", "pyxis", "quoting", "srun-two-nodes", "tasks-on-a-node")


FIRST, *OTHERS = BREAKS


def _only(*names: str) -> list[str]:
    return [word for name in names for word in ("--only", name)]


def test_convert_proof_accepts_correct_conversions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_only(*SHORT)) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines()[0] == "8 scripts, 8 understood, 0 run whole"
    assert said.out.splitlines()[2] == "0 wrong, 0 silently lost"


@pytest.mark.parametrize("broken", [FIRST, *(pytest.param(one, marks=pytest.mark.full) for one in OTHERS)])
def test_convert_proof_detects_each_broken_conversion(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*_only("pyxis"), "--break", broken]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[2].startswith("1 wrong, ")
    assert said.err.startswith("pyxis: ")


WHOLE = Conversion({}, (), wrapped="line 4 runs something in the background")


def _ran(*calls: tuple[str, str], place: str = "/a") -> Ran:
    """Steps of `python t.py WORD` on a node, as their stubs recorded them."""
    records: tuple[dict[str, object], ...] = tuple(
        {"name": "python", "argv": ["t.py", word], "env": {"STUB_RECORDS": f"{place}/records", "SLURM_NODEID": node}}
        for word, node in calls
    )
    return Ran(records, 0, "")


STEPS = [(word, node) for word in "123" for node in "01"]


def test_convert_proof_ignores_order_of_background_steps() -> None:
    first = _ran(*STEPS)
    for again in (STEPS[::-1], STEPS[3:] + STEPS[:3]):
        assert compare(first, _ran(*again, place="/b"), WHOLE, beside=True) == []
        assert compare(first, _ran(*again, place="/b"), WHOLE) != []


@pytest.mark.parametrize(
    ("again", "said"),
    [
        (STEPS[:-1], "6 programs became 5"),
        ([*STEPS[:-1], ("2", "1")], "argv: python t.py 3 became python t.py 2"),
        ([*STEPS[:-1], ("4", "1")], "argv: python t.py 3 became python t.py 4"),
        ([*STEPS[:-1], ("3", "0")], "environment of python: SLURM_NODEID='1' became '0'"),
    ],
)
def test_convert_proof_detects_missing_or_changed_background_call(again: list[tuple[str, str]], said: str) -> None:
    first, third = _ran(*STEPS), _ran(*STEPS[::-1], place="/c")
    (told,) = compare(first, _ran(*again[::-1], place="/b"), WHOLE, third, beside=True)
    assert told.startswith(said)


def test_convert_proof_ignores_random_argument_but_detects_changed_exit_status() -> None:
    first, third = _ran(("seed=17", "0"), ("x", "0")), _ran(("x", "0"), ("seed=93", "0"), place="/c")
    again = _ran(("x", "0"), ("seed=5", "0"), place="/b")
    assert compare(first, again, WHOLE, third, beside=True) == []
    assert compare(first, _ran(("x", "0"), ("sneed=5", "0"), place="/b"), WHOLE, third, beside=True) != []
    assert compare(first, replace(again, status=1), WHOLE, third, beside=True) != []


@pytest.mark.full
def test_convert_proof_accepts_background_steps_on_two_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_only("background-nodes", "background-steps")) == 0
    assert main([*_only("background-nodes"), "--break", "environment"]) == 1
    assert "\n1 wrong, " in capsys.readouterr().out


def test_convert_proof_reports_missing_corpus_or_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--corpus", "/nope"]) == 2
    assert main(["--corpus", str(tmp_path)]) == 2
    assert main(["--only", "nope"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].endswith(": /nope is not a directory: give one with batch scripts")
    assert said[1].endswith(f": {tmp_path} has no file that begins with #! and has #SBATCH")
    assert said[2].endswith(": the corpus has no script nope")


LOSING = """\
#!/bin/bash
#SBATCH --partition=gpu --mail-user=a@b
ssh node2 python x
python ~/x.py --data /scratch/a $1
echo /scratch/b
"""


def test_convert_proof_detects_losses_that_no_line_names() -> None:
    before = {"partition": "gpu", "mail-user": "a@b"}
    lost = silently_lost(LOSING, Conversion({}, ()), before, {"partition": "gpu"}, arguments=False)
    assert [line.partition(" is in no line")[0] for line in lost] == [
        "line 2: #SBATCH --partition=gpu --mail-user=a@b", "--mail-user=a@b became None", "line 3: another host",
        "line 4: a home directory", "line 4: a directory of the host", "line 4: an argument",
    ]  # fmt: skip


def test_convert_proof_reports_no_loss_of_converted_script() -> None:
    source = Source(LOSING, "job.sh", image="custom")
    assert silently_lost(LOSING, create().convert(source), {}, {}, arguments=False) == []


def test_convert_proof_detects_other_tasks_and_gpus() -> None:
    environ = {"SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "4", "SLURM_NTASKS": "8"}
    batch = {"env": {"SLURM_NTASKS": "8"}}
    assert resources_differ({"learners": 2, "gpus": 4, "batch": batch}, environ) == []
    assert resources_differ({"learners": 1, "gpus": 2, "batch": {}}, environ) == [
        "nodes: 2 became 1", "GPUs of a node: 4 became 2", "tasks: 8 became None",
    ]  # fmt: skip
