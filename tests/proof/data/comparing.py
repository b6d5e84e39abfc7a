"""What jobs left beside what they must have left. Values only."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from tests.proof.data.values import digests, transformed
from tests.proof.data.verdict import Moved


def told(name: str, log: str, files: Mapping[str, bytes]) -> Moved:
    """What a learner says in its log of the files that came, all of which it must have seen."""
    reports = [json.loads(line.partition(" ")[2]) for line in log.splitlines() if line.startswith("report ")]
    if len(reports) != 1:
        return Moved(wrong=[f"{name}: {len(reports)} reports of its data"])
    (report,) = reports
    wrong = [f"{name}: data: {text}" for text in report["wrong"]]
    size = sum(map(len, files.values()))
    if not wrong and (report["files"], report["bytes"]) != (len(files), size):
        wrong.append(f"{name}: {report['files']} files and {report['bytes']} bytes, not {len(files)} and {size}")
    return Moved(report["files"], report["bytes"], wrong)


def copies(files: Mapping[str, bytes], learners: int, shares: int = 0) -> dict[str, bytes]:
    """The results of learners that share out a data set, by their names below the results directory; of more `shares`
    than learners some are nobody's."""
    return {
        f"copy-{learner}/{name}": transformed(files[name])
        for learner in range(1, learners + 1)
        for name in sorted(files)[learner - 1 :: shares or learners]
    }


def compare(name: str, wanted: Mapping[str, bytes], stored: Mapping[str, bytes]) -> Moved:
    """Objects of the results store by key: exactly these, byte for byte."""
    wrong = [f"{name}: {key} is not in the store" for key in sorted(wanted.keys() - stored.keys())]
    wrong += [f"{name}: {key} does not belong into the store" for key in sorted(stored.keys() - wanted.keys())]
    both = sorted(wanted.keys() & stored.keys())
    wrong += [f"{name}: {key} has other bytes" for key in both if stored[key] != wanted[key]]
    return Moved(len(both), sum(len(stored[key]) for key in both), wrong)


def model_of(code: bytes, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a model that checks this data set."""
    return {"learner.py": code, "digests.json": json.dumps(digests(files)).encode()}


def compare_model(name: str, wanted: Mapping[str, bytes], archive: bytes | None) -> Moved:
    """The submitted model: the same files."""
    if archive is None:
        return Moved(wrong=[f"{name}: no model.zip in the store"])
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        found = {one.filename: opened.read(one) for one in opened.infolist() if not one.is_dir()}
    same = found == dict(wanted)
    return Moved(1, len(archive), [] if same else [f"{name}: model.zip has other files: {sorted(found)}"])


def strange_records(
    name: str, lines: Sequence[Mapping[str, Any]], group: str, value: str, axis: str, planted: Sequence[float]
) -> list[str]:
    """What is not as planted: each value once, in order, at its step."""
    seen = []
    for line in lines:
        record = line["metrics"]["record"]
        etime, measured = record["etimes"].get(axis), record["values"].get(value)
        point = (int(etime["value"]), float(measured["value"])) if etime and measured else (0, 0.0)
        seen.append((line["metrics"]["learner"], record["grouplabel"], *point))
    wanted = [(1, group, step, number) for step, number in enumerate(planted, 1)]
    wrong = [f"{name}: {got} is not {must}" for got, must in zip(seen, wanted, strict=False) if got != must]
    if len(seen) != len(wanted):
        wrong.append(f"{name}: {len(seen)} records of {len(wanted)}")
    return wrong
