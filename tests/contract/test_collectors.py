"""`python -m ffdl_batch.collectors` as a process: killed at any moment, it loses and doubles nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffdl_batch.domain.metrics.records import (
    CollectorSpec,
    ExtractionGroup,
    Measure,
    MetricRecord,
    decode_record,
    encode_spec,
)
from tests import preloaded
from tests.unit.collectors.writers import copied, truth, write, write_x

LOSS = ExtractionGroup(
    "train",
    "step %{INT:step}: loss=%{FLOAT:loss}",
    scalars={"loss": Measure("FLOAT", "$loss")},
    etimes={"iteration": Measure("INT", "$step")},
)
ENDLESS = ExtractionGroup("endless", "(x+x+)+y", scalars={"n": Measure("", "1")})
MAIN = "import sys\nfrom ffdl_batch.collectors.__main__ import main\nsys.exit(main())\n"
SMALL_BATCHES = f"""
import time
from ffdl_batch.collectors import followed_file as lines; from ffdl_batch.collectors import tensorboard
from ffdl_batch.collectors.record_file import Ledger
lines.CHUNK_BYTES, tensorboard.MOST_RECORDS = 700, 10
commit, left = Ledger.commit, iter(range(100))
Ledger.commit = lambda *args: time.sleep(600) if next(left, None) is None else commit(*args)
{MAIN}"""  # who kills it may be late: after so many batches it does nothing more
SHORT_LIMIT = f"from ffdl_batch.collectors import regex_extractor as limit\nlimit.LIMIT_S = 0.03\n{MAIN}"
NO_LIMIT = f"from ffdl_batch.collectors import regex_extractor as limit\nlimit.LIMIT_S = 1000\n{MAIN}"
NO_PROTOBUF = f"import sys\nsys.modules['google.protobuf'] = None\n{MAIN}"


class Collecting:
    """Collectors on one learner's directory, one after the other."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.logs = base / "logs"
        self.logs.mkdir()
        self.out = base / "metrics" / "learner-1.jsonl"
        self.stop = base / "stop"
        self._file = base / "collector.json"
        self._started: list[subprocess.Popen[str]] = []

    def spec(self, kind: str, *groups: ExtractionGroup, lookahead: int = 0) -> None:
        paths = (str(self.logs), str(self.out), str(self.stop))
        self._file.write_text(encode_spec(CollectorSpec(kind, "training-1", 1, *paths, groups, lookahead)))

    def start(self, code: str = "", *, before: Sequence[str] = ()) -> subprocess.Popen[str]:
        how = ["-c", code] if code else ["-m", "ffdl_batch.collectors"]
        argv = [*before, sys.executable, *how, str(self._file)]
        process = preloaded.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._started.append(process)
        return process

    def ended(self, process: subprocess.Popen[str], status: int = 0) -> list[dict[str, Any]]:
        """What it said, when it has ended so."""
        said, _ = process.communicate(timeout=180)
        assert process.returncode == status, said
        return [json.loads(line) for line in said.splitlines()]

    def killed_in_work(self, rng: random.Random) -> None:
        """A collector that works in small batches, killed after it has written something more."""
        before = len(self.records())
        process = self.start(SMALL_BATCHES)
        until(lambda: len(self.records()) > before)
        time.sleep(rng.random() * 0.1)
        process.kill()
        process.wait()

    def records(self) -> list[MetricRecord]:
        """Those of whole lines; their numbers go from 1 without gaps."""
        lines = self.out.read_text().split("\n")[:-1] if self.out.exists() else []
        records = [decode_record(line) for line in lines]
        assert [record.rindex for record in records] == list(range(1, len(records) + 1))
        return records

    def kill_all(self) -> None:
        for process in self._started:
            with process:
                process.kill()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def collecting(tmp_path: Path) -> Iterator[Collecting]:
    found = Collecting(tmp_path)
    yield found
    found.kill_all()


def test_regex_collector_records_every_match_once_after_kills(collecting: Collecting) -> None:
    collecting.spec("regex_extractor", LOSS, lookahead=2)
    text = "".join(f"step {n}: loss={n / 4}\n" if n % 3 else f"noise\r{n}\r\n" for n in range(20_000))
    (collecting.logs / "training-log.txt").write_text(text + "step 20001: loss=1")
    rng = random.Random(7)
    for _ in range(4):
        collecting.killed_in_work(rng)
    left = len(collecting.records())
    collecting.stop.touch()
    said = collecting.ended(collecting.start())
    steps = [*(n for n in range(20_000) if n % 3), 20_001]
    assert 0 < left < len(steps)
    assert [int(record.etimes["iteration"].value) for record in collecting.records()] == steps
    assert said == [{"event": "done", "records": len(steps), "notes": {}}]


def test_tensorboard_collector_matches_tensorboard_loader_after_kills(collecting: Collecting) -> None:
    collecting.spec("tensorboard")
    write(collecting.logs / "train", [(step, {"a": step / 3, "b": step}) for step in range(2000)])
    write(collecting.logs / "val", [(step, {"c": step}) for step in range(1000)], new_style=True)
    rng = random.Random(8)
    for _ in range(3):
        collecting.killed_in_work(rng)
    left = len(collecting.records())
    grown = write_x(collecting.base / "x", [(step, tag, step / 7) for step in range(500) for tag in ("d", "e")])
    process = collecting.start()
    copied(grown, collecting.logs / "train" / grown.name, pieces=50)
    collecting.stop.touch()
    collecting.ended(process)
    found = [
        (record.group, int(record.etimes["iteration"].value), tag, np.float32(measure.value))
        for record in collecting.records()
        for tag, measure in record.values.items()
    ]
    true = [
        (path.parent.name, step, tag, np.float32(value))
        for path in collecting.logs.glob("*/*")
        for _, step, tag, value in truth(path)
    ]
    assert 0 < left < len(collecting.records())
    assert sorted(found) == sorted(true)
    assert len(true) == 6_000


def test_collector_copies_learner_records_while_learner_runs(collecting: Collecting) -> None:
    collecting.spec("optivist")
    process = collecting.start()
    with (collecting.logs / "evaluation-metrics.txt").open("w") as file:
        for number in range(1, 4):
            file.write(f'{{"grouplabel":"g","values":{{"a":{number}}}}}\nrubbish\n')
            file.flush()
            until(lambda number=number: len(collecting.records()) == number)  # type: ignore[misc]
    collecting.stop.touch()
    notes, done = collecting.ended(process)
    assert (notes["event"], notes["kind"]) == ("note", "wrong_lines")
    assert done == {"event": "done", "records": 3, "notes": {"wrong_lines": 3}}


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in an endless expression"])
def test_collector_ends_on_sigterm_when_idle_or_busy(collecting: Collecting, busy: bool) -> None:
    collecting.spec("regex_extractor", LOSS, ENDLESS)
    log = collecting.logs / "training-log.txt"
    log.write_text("step 1: loss=1\n")
    process = collecting.start(NO_LIMIT)
    until(lambda: len(collecting.records()) == 1)
    if busy:
        with log.open("a") as file:
            file.write("x" * 60 + "\n")
        before = cpu_ticks(process.pid)
        until(lambda: cpu_ticks(process.pid) > before + 20)
    process.send_signal(signal.SIGTERM)
    collecting.ended(process, -signal.SIGTERM)
    assert len(collecting.records()) == 1


def test_collector_ends_on_sigterm_when_parent_ignores_it(collecting: Collecting) -> None:
    collecting.spec("file")
    (collecting.logs / "evaluation-metrics.txt").write_text('{"values":{"a":1}}\n')
    process = collecting.start(before=("sh", "-c", 'trap "" TERM; exec "$@"', "sh"))
    until(lambda: len(collecting.records()) == 1)
    process.send_signal(signal.SIGTERM)
    collecting.ended(process, -signal.SIGTERM)


def cpu_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def test_collector_disables_slow_regex_and_continues_with_others(collecting: Collecting) -> None:
    collecting.spec("regex_extractor", ENDLESS, LOSS)
    (collecting.logs / "training-log.txt").write_text(("x" * 60 + "\nstep 1: loss=1\n") * 10)
    collecting.stop.touch()
    *notes, done = collecting.ended(collecting.start(SHORT_LIMIT))
    assert [note["kind"] for note in notes] == ["slow:endless", "off:endless"]
    assert done["records"] == 10


def test_second_collector_exits_75_while_first_is_running(collecting: Collecting) -> None:
    collecting.spec("file")
    process = collecting.start()
    (collecting.logs / "evaluation-metrics.txt").write_text('{"values":{"a":1}}\n')
    until(lambda: len(collecting.records()) == 1)
    (said,) = collecting.ended(collecting.start(), 75)
    assert "another collector is at work" in said["message"]
    collecting.stop.touch()
    collecting.ended(process)


def test_collector_completes_when_its_output_is_closed(collecting: Collecting) -> None:
    collecting.spec("file")
    (collecting.logs / "evaluation-metrics.txt").write_text('rubbish\n{"values":{"a":1}}\n')
    process = collecting.start()
    assert process.stdout is not None
    process.stdout.close()
    collecting.stop.touch()
    assert process.wait(timeout=180) == 0
    assert len(collecting.records()) == 1


def test_tensorboard_collector_names_missing_extra_without_protobuf(collecting: Collecting) -> None:
    collecting.spec("tensorboard")
    (said,) = collecting.ended(collecting.start(NO_PROTOBUF), 69)
    assert said["event"] == "failed" and "install ffdl-batch[tensorboard]" in said["message"]


def test_collector_writes_nothing_for_logger_type(collecting: Collecting) -> None:
    collecting.spec("logger")
    assert collecting.ended(collecting.start()) == []
    assert not collecting.out.exists()


def test_collector_rejects_invalid_regex_or_unknown_type(collecting: Collecting) -> None:
    collecting.spec("regex_extractor", ExtractionGroup("g", "(", scalars={"n": Measure("", "1")}))
    (said,) = collecting.ended(collecting.start(), 78)
    assert "groups.g.regex: is not a regular expression" in said["message"]
    collecting.spec("an/image:1")
    (said,) = collecting.ended(collecting.start(), 78)
    assert "there is no collector 'an/image:1'" in said["message"]


def test_collector_exits_73_when_output_cannot_be_written(collecting: Collecting) -> None:
    collecting.spec("file")
    os.mkfifo(collecting.base / "fifo")
    collecting.out.parent.symlink_to(collecting.base / "fifo")
    (said,) = collecting.ended(collecting.start(), 73)
    assert str(collecting.out) in said["message"]
