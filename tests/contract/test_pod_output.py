"""What learners print, as whoever reads the pod's log gets it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.domain.launch.pod_protocol import LINE_BYTES, FrameKind
from ffdl_batch.domain.outcome.controller_events import Outcome
from ffdl_kubernetes.observing.attempt_mirror import Mirror
from tests.contract.controller_rig import job_id
from tests.contract.pod_rig import PodRig, TinyMirror, pods

LOG = "logs/learner-1"
GARBAGE = """
import os, sys
out = sys.stdout.buffer
out.write(bytes(range(256)) * 40 + "é€😀".encode() * 3000 + b"\\x80" * 9000 + b"\\n")
out.flush()
"""
COUNTING = """
import os, time
for n in range(4000):
    print(f"line {n:06d}", flush=n % 50 == 49)
    while n % 1000 == 999 and not os.path.exists(f"{os.environ['JOB_STATE_DIR']}/said-{n + 1}"):
        time.sleep(0.02)
"""
"""What is printed is said before more is: the pod has the last 16 KiB and more of it, which are 1,300 lines."""
LONG_LINE = "import sys; sys.stdout.write('x' * 10_000_000 + '\\n')"


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[PodRig]:
    with pods(tmp_path) as made:
        yield made[0]


def whole_log(pod: PodRig) -> bytes:
    """Over all files of it, oldest first."""
    directory = Path(pod.attempt.learner_logs(1))
    names = sorted(
        directory.glob("training-log.txt*"), key=lambda path: -int(path.suffix[1:] if path.suffix != ".txt" else 0)
    )
    return b"".join(path.read_bytes() for path in names)


def test_pod_log_frames_carry_binary_output_unchanged_into_mirror_of_daemon(pod: PodRig, tmp_path: Path) -> None:
    pod.write("python3 out.py", model={"out.py": GARBAGE})
    assert pod.run() == (0, 0), pod.log()
    said = TinyMirror().apply(pod.frames()).files[LOG]
    assert said == whole_log(pod)
    assert bytes(range(256)) * 40 in said
    assert max(map(len, pod.lines)) <= LINE_BYTES
    assert all(line.isascii() for line in pod.lines)
    copy = AttemptDir(str(tmp_path / "copy"))
    Path(copy.path).mkdir()
    mirror = Mirror(copy, str(tmp_path / "bell"), job_id(), 1, LogLimits())
    for at, frame in enumerate(pod.frames()):
        mirror.apply(frame, 1000.0 + at, 0)
    assert mirror.missing == {}
    for name in ("final.json", "events/head.jsonl", "events/node-0.jsonl", "logs/learner-1/training-log.txt"):
        assert Path(copy.path, name).read_bytes() == Path(pod.attempt.path, name).read_bytes()


def test_pod_log_frames_split_ten_megabyte_line_into_short_lines(pod: PodRig) -> None:
    pod.write("python3 out.py", model={"out.py": LONG_LINE})
    assert pod.run() == (0, 0), pod.log()[:1000]
    assert TinyMirror().apply(pod.frames()).files[LOG] == whole_log(pod)
    assert len(whole_log(pod)) >= 10_000_001
    assert max(map(len, pod.lines)) <= LINE_BYTES
    payload = sum(len(frame.data) for frame in pod.frames() if frame.kind is FrameKind.LOG)
    overhead = sum(len(line) for line in pod.lines if '"kind":"log"' in line) / payload
    assert overhead < 1.1, "plain text costs little more than itself"


def test_pod_log_frames_keep_output_of_rotated_log_files(pod: PodRig) -> None:
    """The mirror has what the pod's oldest files do not have any more."""
    limits = LogLimits(file_bytes=8192, files=3, bytes_per_s=1024**2)
    pod.write("python3 out.py", model={"out.py": COUNTING}, logs=limits)
    pod.start()
    pod.start_learner()
    for lines in range(1000, 4001, 1000):
        pod.wait(lambda: TinyMirror().apply(pod.frames()).files.get(LOG, b"").count(b"\n") == lines, "it is said")  # noqa: B023
        (Path(pod.attempt.state) / f"said-{lines}").touch()
    assert pod.end() == (0, 0), pod.log()
    said = TinyMirror().apply(pod.frames()).files[LOG]
    assert said == "".join(f"line {n:06d}\n" for n in range(4000)).encode()
    assert len(whole_log(pod)) < len(said)


def test_pod_controller_resends_files_from_requested_offset(pod: PodRig) -> None:
    pod.write("seq 1 2000; sleep 300 & echo ready; wait")
    pod.start()
    pod.start_learner()
    pod.wait_for_log("ready")
    pod.wait(lambda: TinyMirror().apply(pod.frames()).files.get(LOG, b"").endswith(b"ready\n"), "all is said")
    heard = len(pod.frames())
    before = TinyMirror()
    before.files[LOG] = whole_log(pod)[:100]
    before.files["events/node-0.jsonl"] = b""
    pod.annotate("resend", json.dumps({LOG: 100, "events/node-0.jsonl": 0, "final.json": 0, "no/such": 3}))
    pod.wait(
        lambda: (
            before.apply(pod.frames()[heard:]).files[LOG] == whole_log(pod)
            and before.files["events/node-0.jsonl"] == Path(pod.attempt.event_file("node-0")).read_bytes()
        ),
        "it is said again",
    )


def test_restarted_pod_controller_restarts_learner_and_continues_frames(pod: PodRig) -> None:
    """The learner is killed with its controller, which starts it again in the same container: it may resume."""
    command = 'echo "run with RESUME=$RESUME"; [ "$RESUME" = 1 ] && exit 0; echo waiting; exec sleep 300'
    pod.write(command)
    pod.start()
    pod.start_learner()
    pod.wait_for_log("waiting")
    pod.kill_sidecar()
    pod.start()
    assert pod.end() == (0, 0), (pod.log(), pod.errors)
    assert pod.log() == "run with RESUME=0\nwaiting\nrun with RESUME=1\n"
    final = pod.final()
    assert (final.outcome, final.restart) == (Outcome.COMPLETED, 1)
    runs = [frame.run for frame in pod.frames()]
    assert sorted(set(runs)) == [1, 2]
    numbers = [frame.n for frame in pod.frames() if frame.run == 2]
    assert numbers == list(range(1, len(numbers) + 1))
    mirror = TinyMirror().apply(pod.frames())
    assert mirror.files[LOG] == whole_log(pod)
    assert mirror.files["events/node-0.jsonl"] == Path(pod.attempt.event_file("node-0")).read_bytes()


def test_restarted_pod_controller_records_missed_learner_end_without_rerun(pod: PodRig) -> None:
    pod.write('echo once >> "$RESULT_DIR/count"; echo here; while [ ! -e /job/now ]; do sleep 0.05; done')
    pod.start()
    pod.start_learner()
    pod.wait_for_log("here")
    pod.kill_sidecar()
    (Path(pod.attempt.state) / "now").touch()
    pod.wait((Path(pod.attempt.state) / ".ended-1").exists, "the shell's own word")
    pod.start()
    assert pod.end() == (0, 0), pod.errors
    assert pod.final().outcome is Outcome.COMPLETED
    assert (Path(pod.attempt.results) / "count").read_text() == "once\n"


def test_killed_head_controller_restarts_while_learner_continues(pod: PodRig) -> None:
    pod.write("echo here; while [ ! -e /job/now ]; do sleep 0.05; done; echo through")
    pod.start()
    pod.start_learner()
    pod.wait_for_log("here")
    owner = json.loads(Path(pod.attempt.claim_owner).read_text())
    os.kill(owner["pid"], signal.SIGKILL)
    pod.wait(Path(pod.attempt.run_claim(2)).exists, "the second head")
    (Path(pod.attempt.state) / "now").touch()
    assert pod.end() == (0, 0), pod.errors
    assert pod.log() == "here\nthrough\n"
    assert pod.final().outcome is Outcome.COMPLETED


def test_restarted_pod_controller_resends_final_record_of_completed_attempt(pod: PodRig) -> None:
    pod.write("echo here")
    assert pod.run() == (0, 0)
    count = len(pod.events("head"))
    heard = len(pod.frames())
    pod.start()
    pod.wait(lambda: any(f.file == "final.json" for f in pod.frames()[heard:]), "the record is said again")
    assert pod.end_sidecar() == 0
    assert len(pod.events("head")) == count
