"""The controller under Debian 11's own Python 3.9: in a real root file system, from the file that nodes get."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.zipapp import build_zipapp
from ffdl_batch.domain.codec import from_plain
from ffdl_batch.domain.job.spec import BatchOptions, NetworkLevel
from ffdl_batch.domain.outcome.controller_events import EventKind, FinalRecord, Outcome, decode_events
from tests.contract.controller_rig import Rig
from tests.contract.pod_rig import PodRig, TinyMirror
from tests.contract.scheduler_harness import FAKES, FakeSlurmHarness
from tests.python39.conftest import PYTHON, OldNode

LIFE = [EventKind.CLAIMED, EventKind.STARTED, EventKind.FINAL]


@pytest.fixture
def zipapp(tmp_path: Path) -> str:
    target = tmp_path / "controller.pyz"
    build_zipapp(target)
    return str(target)


@pytest.mark.parametrize(
    ("command", "code", "outcome"), [("true", 0, Outcome.COMPLETED), ("exit 3", 3, Outcome.FAILED)]
)
def test_head_and_node_controllers_execute_attempt_on_python39(
    node: OldNode, zipapp: str, tmp_path: Path, command: str, code: int, outcome: Outcome
) -> None:
    run = Rig(tmp_path)
    run.write(f'echo result > "$RESULT_DIR/out"; echo "learner $LEARNER_ID"; {command}')
    ended = node.run(PYTHON, "-I", "-S", zipapp, "head", "--launch", run.attempt.launch, FFDL_NATIVE_ID="7")
    final = run.final()
    assert (final.outcome, final.exit_code, final.stored) == (outcome, code, True), node.printed
    assert (final.native_id, final.error_code) == ("7", "C201" if code else "000")
    assert (ended == 0) == (code == 0)
    assert [event.kind for event in run.events("head")] == LIFE
    kinds = [event.kind for event in run.events("node-0")]
    assert kinds.count(EventKind.LEARNER_STARTED) == kinds.count(EventKind.LEARNER_ENDED) == 1
    assert "learner 1" in run.log()
    assert (run.store / "out").read_text() == "result\n"


def test_pod_controller_executes_attempt_on_python39(node: OldNode, zipapp: str, tmp_path: Path) -> None:
    """Sidecar and shim, without a container around the learner."""
    pod = PodRig(tmp_path)
    pod.write('echo result > "$RESULT_DIR/out"; echo "learner $LEARNER_ID"; exit 3', bare=True)
    given = f"--model {pod.model} --private {pod.private} --annotations {pod.annotations} --message {pod.message}"
    script = f"""
{PYTHON} -I -S {zipapp} pod --launch {pod.plan}/launch.json {given} >{tmp_path}/said 2>{tmp_path}/errors &
controller=$!
until [ -e {pod.seat}/open ] || ! kill -0 $controller; do sleep 0.1; done
code=0; setsid --wait /bin/sh {pod.seat}/shim.sh {pod.seat} || code=$?
kill $controller; wait $controller
exit $code
"""
    code = node.run("/bin/sh", "-c", script)
    assert code == 3, (node.printed, pod.errors)
    final = pod.final()
    assert (final.outcome, final.exit_code, final.stored) == (Outcome.FAILED, 3, True)
    assert "learner 1" in pod.log()
    assert TinyMirror().apply(pod.frames()).cells["final.json"] == Path(pod.attempt.final).read_bytes()


def test_zipapp_imports_every_module_on_python39(node: OldNode, zipapp: str) -> None:
    """Also those that a plain run never reaches."""
    code = (
        "import importlib, pkgutil, sys; sys.path.insert(0, sys.argv[1]); import ffdl_batch\n"
        "names = [m.name for m in pkgutil.walk_packages(ffdl_batch.__path__, 'ffdl_batch.')]\n"
        "assert len(names) > 20, names\n"
        "for name in names: importlib.import_module(name)"
    )
    assert node.run(PYTHON, "-I", "-S", "-W", "error", "-c", code, zipapp) == 0, node.printed


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[FakeSlurmHarness]:
    """The Slurm adapter for nodes with this interpreter; the stub srun and apptainer run under it too."""
    for part in ("bin", "slurm"):
        shutil.copytree(FAKES.with_name(part), tmp_path / "tests" / "fakes" / part)
    harness = FakeSlurmHarness(tmp_path, {"python": PYTHON})
    try:
        yield harness
    finally:
        harness.close()


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("exit 3", 3)])
def test_slurm_script_and_zipapp_execute_attempt_on_python39(
    node: OldNode, slurm: FakeSlurmHarness, tmp_path: Path, command: str, code: int
) -> None:
    on_host = BatchOptions(network=NetworkLevel.HOST)  # in this root file system nobody makes a namespace
    plan = slurm.prepare(f'echo "on $LEARNER_ID"; {command}', batch=on_host)
    assert f"exec {PYTHON} -I -S " in plan.script and ".pyz head" in plan.script
    environ = (
        f"PATH={tmp_path}/tests/fakes/bin:/usr/bin:/bin",
        f"SLURM_CONF={slurm.state}/slurm.conf",
        "SLURM_JOB_ID=7",
        "SLURM_JOB_NODELIST=n1",
    )
    node.run("/usr/bin/env", *environ, "/bin/sh", plan.attempt_dir.script)
    attempt = AttemptDir(plan.attempt_dir.path)
    final = from_plain(FinalRecord, json.loads(Path(attempt.final).read_text()))
    wanted = Outcome.FAILED if code else Outcome.COMPLETED
    assert (final.outcome, final.exit_code, final.stored) == (wanted, code, True), node.printed
    kinds = [event.kind for event in decode_events(Path(attempt.event_file("node-0")).read_text())]
    assert kinds.count(EventKind.LEARNER_STARTED) == 1
    assert "on 1" in slurm.log(plan)
