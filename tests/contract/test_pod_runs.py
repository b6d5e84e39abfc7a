"""One pod from beginning to end: FfDL's contract in the container, and all that is written said on standard output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.launch.pod_protocol import PREFIX
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from tests.contract.controller_rig import content, files_below, job_id
from tests.contract.pod_rig import PodRig, TinyMirror, pods

CONTRACT = """
set -e
[ "$PWD" = /job/model-code ]; [ "$MODEL_DIR" = /job/model-code ]; [ -x check.sh ]
[ "$JOB_STATE_DIR" = /job ]; [ "$LOG_DIR" = /job/logs ]; [ "$LEARNER_ID" = 1 ]; [ "$TRAINING_ID" = {job} ]
[ "$NICE" = 'a "b" $(c)' ]; [ "$IMAGE_SAYS" = kept ]; ! env | grep -q ^HOSTNAME=; [ "$PYTHONPATH" = "$PWD" ]
[ -w /tmp ]; [ -d "$DATA_DIR" ]; [ ! -t 0 ]
echo result > "$RESULT_DIR/out"; echo checkpoint > "$CHECKPOINT_DIR/ckpt"; echo own > "$LOG_DIR/own.txt"
grep learner-x-0 /etc/hosts; trap
echo to the log; echo to errors >&2
"""


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[PodRig]:
    with pods(tmp_path) as made:
        yield made[0]


def assert_said(pod: PodRig) -> TinyMirror:
    """Whoever read it all has the files byte for byte."""
    mirror = TinyMirror().apply(pod.frames())
    attempt = Path(pod.attempt.path)
    index = pod.index
    grown = [f"events/node-{index}.jsonl", *(["events/head.jsonl"] if index == 0 else [])]
    for name in grown:
        assert mirror.files[name] == (attempt / name).read_bytes()
    log = mirror.files.get(f"logs/learner-{index + 1}", b"")
    assert log == Path(pod.attempt.training_log(index + 1)).read_bytes()
    if index == 0:
        assert mirror.cells["final.json"] == (attempt / "final.json").read_bytes()
        assert mirror.cells["claim/owner.json"] == (attempt / "claim/owner.json").read_bytes()
    assert not mirror.gaps
    return mirror


def test_pod_learner_gets_contract_environment_and_all_files_are_mirrored(pod: PodRig) -> None:
    pod.write("bash -e check.sh", model={"check.sh": CONTRACT.format(job=job_id())}, user_env={"NICE": 'a "b" $(c)'})
    assert pod.run() == (0, 0), (pod.log(), pod.errors)
    final = pod.final()
    assert (final.outcome, final.exit_code, final.stored) == (Outcome.COMPLETED, 0, True)
    assert final.native_id == f"{job_id()}-1"
    assert "to the log\nto errors\n" in pod.log()
    assert "trap --" not in pod.log(), "the learner was started with signals ignored"
    assert (Path(pod.attempt.results) / "out").read_text() == "result\n"
    assert (Path(pod.job.checkpoints) / "ckpt").read_text() == "checkpoint\n"
    assert (Path(pod.attempt.learner_logs(1)) / "own.txt").read_text() == "own\n"
    assert_said(pod)
    assert all(line.startswith(PREFIX) for line in pod.lines)
    word = json.loads(pod.message.read_text())
    assert (word["outcome"], word["stored"], word["native_id"]) == ("completed", True, f"{job_id()}-1")
    assert "log_tail" not in word
    assert not pod.processes(), "something was left behind"
    assert pod.container_said == ""


@pytest.mark.parametrize("code", [3, 137])
def test_pod_exit_status_is_that_of_failed_learner(pod: PodRig, code: int) -> None:
    pod.write(f"echo before; exit {code}")
    assert pod.run() == (code, code), pod.errors
    final = pod.final()
    assert (final.outcome, final.exit_code, final.error_code, final.stored) == (Outcome.FAILED, code, "C201", True)
    assert_said(pod)


def test_pod_ends_with_s301_when_model_cannot_be_unpacked(pod: PodRig) -> None:
    pod.write("true")
    (pod.model / "model.zip.000").write_bytes(b"no archive")
    code, status = pod.run()
    assert code == status == 74
    assert pod.final().error_code == "S301"
    assert json.loads(pod.message.read_text())["error_code"] == "S301"
    assert not any(e.kind is EventKind.LEARNER_STARTED for e in pod.events())


def test_pod_controller_exits_78_with_reason_when_launch_file_is_invalid(pod: PodRig) -> None:
    pod.write("true")
    launch = json.loads((pod.plan / "launch.json").read_text())
    (pod.plan / "launch.json").write_text(json.dumps({**launch, "learners": "two"}))
    pod.start()
    pod.wait(pod.message.exists, "the refusal")
    assert pod.sidecar is not None
    assert pod.end_sidecar() == 78
    assert "launch file is damaged" in json.loads(pod.message.read_text())["error"]


def test_pod_reports_image_without_bash(pod: PodRig, tmp_path: Path) -> None:
    pod.write("true")
    pod.hidden = ("/usr/bin/bash", "/bin/bash")
    code, status = pod.run()
    assert code == status == 127
    assert "this image has no bash" in pod.log()
    final = pod.final()
    assert final.error_code == "S103", final
    assert "this image has no bash" in final.message


def test_pod_restarts_failed_learner_in_its_container(pod: PodRig) -> None:
    """`restart: learner` of the manifest."""
    command = 'echo "start $FFDL_LEARNER_RESTARTS"; [ "$FFDL_LEARNER_RESTARTS" = 1 ] || exit 9'
    pod.write(command, restart="learner", restarts_max=2)
    assert pod.run() == (0, 0), (pod.log(), pod.errors)
    assert pod.log() == "start 0\nstart 1\n"
    assert pod.final().outcome is Outcome.COMPLETED


def holders(pod: PodRig) -> list[Path]:
    """Files of the pod's own directory with the secret in them."""
    files = [path for path in files_below(pod.pod) if path.is_file()]
    return [path for path in files if b"s3cret" in content(path)]


def test_pod_passes_secret_to_learner_and_leaves_it_in_no_file(pod: PodRig) -> None:
    pod.write('echo "$TOKEN" | rev; while [ ! -e /job/now ]; do sleep 0.05; done', secrets={"TOKEN": "token"})
    pod.start()
    pod.start_learner()
    pod.wait_for_log("terc3s")
    pod.wait(lambda: not holders(pod), "no file has it")
    assert not (pod.seat / "go").exists()
    (Path(pod.attempt.state) / "now").touch()
    assert pod.end() == (0, 0)
    assert not any("s3cret" in line for line in pod.lines)
