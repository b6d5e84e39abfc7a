"""The judge of the proof of data can fail: each fault that it must find is put in, one at a time."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from typing import Any

import pytest

from tests.proof.data import comparing, many
from tests.proof.data.values import EACH, FULL, MAIN, MANY, SHORT, data_sets, digests, losses
from tests.proof.data.verdict import CONTROLS, Ended, Found, Many, Moved

GOOD = Found(
    jobs={"main": Ended(("COMPLETED", "000")), "expiring": Ended(("FAILED", "C103"), ("FAILED", "C103"))},
    came=Moved(3, 30), went=Moved(2, 20), faults={"500 in": 4, "truncated": 1}, searched=100,
    controls=dict.fromkeys(CONTROLS, True), downloads={"shared": [1.0, 1.0]}, records=40,
    mounts={"s3 mounted": True, "s3 brought": True}, many=Many(100, 2.5, 10, 0.5),
)  # fmt: skip
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a job failed": ({"jobs": {"main": Ended(("FAILED", "S302"))}}, "main ended as FAILED S302, not COMPLETED 000"),
    "no jobs": ({"jobs": {}}, "no job"),
    "data": ({"came": Moved(3, 30, ["a: another digest"])}, "a: another digest"),
    "results": ({"went": Moved(2, 20, ["b has other bytes"])}, "b has other bytes"),
    "no data": ({"came": Moved()}, "no data came"),
    "no results": ({"went": Moved()}, "no results went"),
    "a fault was not met": ({"faults": {"500 in": 0}}, "the fault was not met: 500 in"),
    "no faults": ({"faults": {}}, "no faults"),
    "a secret": ({"secrets": ["n1:/tmp/x"]}, "a secret is in n1:/tmp/x"),
    "nothing searched": ({"searched": 0}, "nothing was searched for secrets"),
    "a control failed":
        ({"controls": dict.fromkeys(CONTROLS, True) | {CONTROLS[2]: False}},
         f"no secret where one must be: {CONTROLS[2]}"),
    "a control was not made":
        ({"controls": dict.fromkeys(CONTROLS[1:], True)}, f"no secret where one must be: {CONTROLS[0]}"),
    "downloaded by each job":
        ({"downloads": {"shared": [2.0, 5.0]}}, "data set shared was downloaded 2 to 5 times per cache"),
    "one object was not downloaded":
        ({"downloads": {"shared": [1.0, 0.5]}}, "data set shared was downloaded 0.5 to 1 times per cache"),
    "no object": ({"downloads": {"shared": []}}, "data set shared was downloaded 0 times per cache"),
    "no cache": ({"downloads": {}}, "no data set was cached"),
    "a record": ({"strange": ["losses: 19 records of 20"]}, "losses: 19 records of 20"),
    "no mount": ({"mounts": {"s3 mounted": False}}, "a store was not mounted: s3 mounted"),
    "a mount where none was wanted": ({"mounts": {"s3 brought": False}}, "a store was not brought: s3 brought"),
    "no mounts": ({"mounts": {}}, "no store was mounted"),
    "no small files": ({"many": Many()}, "no small files"),
    "no records": ({"records": 0}, "no metrics were compared"),
}  # fmt: skip


def test_data_proof_accepts_faultless_run() -> None:
    assert GOOD.troubles() == []
    assert GOOD.holds
    assert "quick_s3, which checks no keys; all else is of moto's): 100 in 2.5 s, 10 out 0.5 s\n" in GOOD.report()
    assert GOOD.report().splitlines()[-1] == (
        "bytes in 30 bytes out 20 metric records compared 40 mismatches 0 secrets found 0"
    )


@pytest.mark.parametrize("name", BROKEN)
def test_data_proof_detects_each_planted_fault(name: str) -> None:
    changes, said = BROKEN[name]
    broken = replace(GOOD, **changes)
    assert broken.troubles() == [said]
    assert not broken.holds


def test_data_proof_counts_mismatches_of_all_kinds() -> None:
    broken = replace(GOOD, came=Moved(1, 1, ["x"]), went=Moved(1, 1, ["y", "z"]), strange=["r"], secrets=["s"])
    assert broken.report().endswith("mismatches 4 secrets found 1")


def test_data_proof_rejects_empty_run() -> None:
    assert not Found().holds


def test_data_proof_requires_one_complete_learner_report() -> None:
    files = {"a": b"12", "b": b""}
    good = 'ffdl: loaded\nreport {"files": 2, "bytes": 2, "wrong": []}\n'
    assert comparing.told("j", good, files) == Moved(2, 2, [])
    assert comparing.told("j", "", files).wrong == ["j: 0 reports of its data"]
    assert comparing.told("j", good * 2, files).wrong == ["j: 2 reports of its data"]
    fewer = good.replace('"files": 2', '"files": 1')
    assert comparing.told("j", fewer, files).wrong == ["j: 1 files and 2 bytes, not 2 and 2"]
    wrong = good.replace("[]", '["a: missing"]')
    assert comparing.told("j", wrong, files).wrong == ["j: data: a: missing"]


def test_data_proof_requires_exact_results_in_store() -> None:
    wanted = {"a": b"1", "b": b"2"}
    assert comparing.compare("r", wanted, wanted) == Moved(2, 2, [])
    assert comparing.compare("r", wanted, {"a": b"1"}).wrong == ["r: b is not in the store"]
    assert comparing.compare("r", wanted, {**wanted, "c": b""}).wrong == ["r: c does not belong into the store"]
    assert comparing.compare("r", wanted, {**wanted, "b": b"3"}).wrong == ["r: b has other bytes"]


def test_data_proof_copies_split_files_among_learners() -> None:
    made = comparing.copies({"a": b"\x00", "b": b"\x5a", "c": b""}, 2)
    assert made == {"copy-1/a": b"\x5a", "copy-1/c": b"", "copy-2/b": b"\x00"}


def test_data_proof_detects_changed_or_missing_model() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("learner.py", b"x")
    assert comparing.compare_model("m", {"learner.py": b"x"}, packed.getvalue()).wrong == []
    assert comparing.compare_model("m", {"learner.py": b"y"}, packed.getvalue()).wrong
    assert comparing.compare_model("m", {"learner.py": b"x"}, None).wrong == ["m: no model.zip in the store"]


def record(step: int, value: float, learner: int = 1) -> dict[str, Any]:
    """As `ffdl metrics --json` prints it."""
    plain = {
        "grouplabel": "train",
        "etimes": {"iteration": {"type": "INT", "value": str(step)}},
        "values": {"loss": {"type": "FLOAT", "value": str(value)}},
    }
    return {"metrics": {"learner": learner, "record": plain}}


def test_data_proof_detects_missing_duplicate_or_changed_metric_record() -> None:
    planted = [0.5, 0.25]
    good = [record(1, 0.5), record(2, 0.25)]
    for lines, right in (
        (good, True),
        (good[:1], False),
        ([*good, good[1]], False),
        (good[::-1], False),
        ([good[0], record(2, 0.26)], False),
        ([good[0], record(3, 0.25)], False),
        ([good[0], record(2, 0.25, learner=2)], False),
        ([], False),
    ):
        assert (comparing.strange_records("m", lines, "train", "loss", "iteration", planted) == []) is right, lines


@pytest.mark.parametrize("scale", [SHORT, FULL], ids=["short", "full"])
def test_data_proof_sets_contain_empty_sparse_and_small_files(scale: Any) -> None:
    sets = data_sets(scale, 1)
    main = sets[MAIN]
    assert main["empty"] == b""
    assert len(main["sparse"]) == scale.sparse_bytes > 16 << 20, "it moves in parts"
    assert main["sparse"].count(0) > 0.99 * scale.sparse_bytes
    assert sum(name.startswith("many/") for name in main) == scale.small_files
    assert digests(main)["empty"] == (0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    assert data_sets(scale, 1) == sets != data_sets(scale, 2)
    assert len(losses(scale, 1)) == scale.records


def test_data_proof_expects_every_tenth_small_file_as_result() -> None:
    files = data_sets(SHORT, 1)[MANY]
    code, log = b"print()", b"report\n"
    stored = {f"j/{name}": data for name, data in comparing.copies(files, 1, EACH).items()}
    assert len(stored) == len(files) // EACH
    stored["j/learner-1/training-log.txt"] = log
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in comparing.model_of(code, files).items():
            archive.writestr(name, data)
    model = {"j/_submitted_code/model.zip": buffer.getvalue()}
    assert not many.results("j", files, log, stored | model, code).wrong
    assert many.results("j", files, log, dict(stored), code).wrong == ["many: no model.zip in the store"]
    first = min(name for name in stored if "copy-1" in name)
    (wrong,) = many.results("j", files, log, stored | model | {first: b"else"}, code).wrong
    assert wrong == f"results of many: {first} has other bytes"


def test_data_proof_times_small_files_by_job_states() -> None:
    at = {"DOWNLOADING": 10.0, "PROCESSING": 12.5, "STORING": 20.0, "COMPLETED": 20.5}
    assert many.figures(101, at) == Many(101, 2.5, 11, 0.5)
