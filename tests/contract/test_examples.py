"""The examples of `docs/checkpointing.md`: interrupted and resumed, they end with the result of an uninterrupted run.

Once as plain processes, once through the controllers. The PyTorch examples need their image: tests/cluster.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.controller_events import Outcome
from tests import preloaded
from tests.contract.controller_rig import ROOT, Rig, job_id, rig

EXAMPLES = ROOT / "docs" / "examples"
LIMIT_S = 180.0


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """`command` takes the seconds of a step. Within `ask_after` steps of a run it makes a checkpoint of its own. With
    `pause_s` after each, the steps that are left after three such runs take 25 s: so long may it take until it is
    asked."""

    name: str
    command: str
    word: str
    steps: int
    result: str
    ask_after: int
    pause_s: float

    @property
    def model(self) -> Path:
        """Its model directory."""
        return EXAMPLES / self.name / "model"

    def steps_in(self, log: str) -> list[int]:
        """The steps that a log tells of."""
        return [int(number) for number in re.findall(rf"^{self.word} (\d+)$", log, re.MULTILINE)]


ALL = (
    Example("loop", "python3 train.py --steps 1200 --pause {pause}", "step", 1200, "result.json", 55, 0.03),
    Example("shell", "./train.sh 100 {pause}", "round", 100, "result.txt", 3, 0.3),
    Example("restart-file", "./run.sh 600 {pause}", "step", 600, "result.txt", 25, 0.05),
)


@pytest.fixture(scope="module", params=ALL, ids=lambda example: example.name)
def example(request: pytest.FixtureRequest) -> Example:
    """Each example in turn."""
    assert isinstance(request.param, Example)
    return request.param


class Plain:
    """A training without any platform: the directories of the contract, and processes that are ended in any case."""

    def __init__(self, base: Path, example: Example) -> None:
        self.base, self.example = base, example
        self.places = {name: base / name for name in ("CHECKPOINT_DIR", "RESULT_DIR", "JOB_STATE_DIR")}
        for place in self.places.values():
            place.mkdir(parents=True)
        shutil.copytree(example.model, base / "model")
        self.process: subprocess.Popen[bytes] | None = None
        self.runs = 0
        self.before: dict[Path, int] = {}

    def start(self, pause_s: float = 0.0) -> subprocess.Popen[bytes]:
        """Start the command, in a process group of its own."""
        self.runs += 1
        self.before = self.saved()
        env = {**os.environ, **{name: str(place) for name, place in self.places.items()}, "RESUME": str(self.runs - 1)}
        argv = ["bash", "-c", f"exec {self.example.command.format(pause=pause_s)}"]
        with self.log_path.open("wb") as log:
            self.process = preloaded.Popen(
                argv, cwd=self.base / "model", env=env, stdout=log, stderr=log, start_new_session=True
            )
        return self.process

    @property
    def log_path(self) -> Path:
        """Where the last run writes."""
        return self.base / f"log-{self.runs}"

    @property
    def steps(self) -> list[int]:
        """The steps of the last run so far."""
        return self.example.steps_in(self.log_path.read_text())

    def saved(self) -> dict[Path, int]:
        """When each checkpoint was written that is whole."""
        found = self.places["CHECKPOINT_DIR"].iterdir()
        return {path: path.stat().st_mtime_ns for path in found if path.suffix != ".unfinished"}

    def wait_for_checkpoint(self) -> dict[Path, int]:
        """Until the last run has made its steps and a new checkpoint, which another process may save; what is saved."""
        before, deadline = self.before, time.monotonic() + LIMIT_S
        while len(self.steps) < self.example.ask_after or self.saved() == before:
            assert time.monotonic() < deadline, self.log_path.read_text()
            time.sleep(0.02)
        return self.saved()

    def interrupt(self, way: str) -> int:
        """Ask for the end, or force it; the exit status."""
        assert self.process is not None
        halt = self.places["JOB_STATE_DIR"] / "halt"
        if way == "signal":
            self.process.send_signal(signal.SIGUSR2)
        elif way == "halt file":
            halt.touch()
        else:
            os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait(LIMIT_S)
        halt.unlink(missing_ok=True)
        return status

    def finish(self) -> str:
        """Run to the end; the result."""
        assert self.start().wait(LIMIT_S) == 0, self.log_path.read_text()
        return (self.places["RESULT_DIR"] / self.example.result).read_text()

    def clear(self) -> None:
        """End what is left of the last run."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(LIMIT_S)


@contextlib.contextmanager
def plain(base: Path, example: Example) -> Iterator[Plain]:
    made = Plain(base, example)
    try:
        yield made
    finally:
        made.clear()


@pytest.fixture(scope="module")
def whole_result(tmp_path_factory: pytest.TempPathFactory, example: Example) -> str:
    """The result of an uninterrupted run."""
    with plain(tmp_path_factory.mktemp("whole"), example) as whole:
        result = whole.finish()
        assert whole.steps == list(range(1, example.steps + 1))
    return result


def test_example_resumes_as_plain_process_after_signal_halt_file_and_kill(
    tmp_path: Path, example: Example, whole_result: str
) -> None:
    seen: set[int] = set()
    with plain(tmp_path, example) as training:
        for way in ("signal", "halt file", "kill"):
            training.start(example.pause_s)
            kept = training.wait_for_checkpoint()
            status = training.interrupt(way)
            if way != "kill":
                assert status == 0, training.log_path.read_text()
                assert training.saved() != kept, "the request was answered by a new checkpoint"
            assert example.steps > training.steps[-1], "it was interrupted before its end"
            check_resumed(training, seen)
            seen |= {*training.steps}
        result = training.finish()
        check_resumed(training, set())
        seen |= {*training.steps}
    assert seen == set(range(1, example.steps + 1))
    assert result == whole_result


def check_resumed(training: Plain, seen: set[int]) -> None:
    """Its last run, but for the first one, began where the one before ended."""
    if training.runs == 1:
        return
    assert "going on" in training.log_path.read_text().splitlines()[0]
    assert training.steps[0] > 1
    if training.example.name != "restart-file":
        assert not seen & {*training.steps}, "no step ran twice"


@pytest.mark.parametrize(
    "example",
    [ALL[0], *(pytest.param(one, marks=pytest.mark.full) for one in ALL[1:])],
    indirect=True,
    ids=[one.name for one in ALL],
)
def test_example_resumes_in_next_attempt_after_halt_by_controllers(
    tmp_path: Path, example: Example, whole_result: str
) -> None:
    model = {path.name: path.read_text() for path in example.model.iterdir() if path.is_file()}
    command = example.command.format(pause=example.pause_s)
    with rig(tmp_path / "platform") as run:
        run.have_controllers_do()
        run.write(command, model=model, checkpoints=run.job.checkpoints)
        head = run.start()
        run.wait_for_log(f"{example.word} {example.ask_after}\n")
        _request_halt(run)
        assert head.wait(LIMIT_S) == 0, run.errors
        final, first = run.final(), example.steps_in(run.log())
        assert (final.outcome, final.interruption) == (Outcome.HALTED, Interruption.HALT.value), run.log()
        assert final.checkpoint.confirmed and final.checkpoint.answered

        begin_second(run, example.command.format(pause=0), model)
        assert run.run(native_id="8") == 0, run.errors
        assert run.final().outcome is Outcome.COMPLETED
        assert "going on" in run.log() and "RESUME=1" in run.log()
        assert {*first, *example.steps_in(run.log())} == set(range(1, example.steps + 1))
        assert (Path(run.attempt.results) / example.result).read_text() == whole_result
        run.wait(lambda: run.processes() == [], "the end of all that was started")


def _request_halt(run: Rig) -> None:
    """What the daemon does for `ffdl halt`: the cell first, then the signal."""
    cell = Path(run.attempt.control)
    unfinished = cell.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({"attempt": 1, "requested_action": "halt", "drill": ""}))
    unfinished.replace(cell)
    os.kill(run.node_pid(), signal.SIGURG)


def begin_second(run: Rig, command: str, model: dict[str, str]) -> None:
    """The next attempt of the same job."""
    run.attempt = run.job.attempt(2)
    Path(run.attempt.path).mkdir(mode=0o700)
    second: dict[str, object] = {"attempt": 2, "attempt_dir": run.attempt.path, "token": f"{job_id()}-2"}
    run.write(command, model=model, checkpoints=run.job.checkpoints, **second)  # type: ignore[arg-type]
