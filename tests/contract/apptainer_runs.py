"""Controllers with learners in real Apptainer containers.

Run where Apptainer is, by naming this file (it is not collected otherwise):
``FFDL_TEST_IMAGE=/path/to/image pytest tests/contract/apptainer_runs.py``. The image (a SIF file or a directory) needs
bash and python3. Nothing is skipped: without either the tests fail.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ffdl_batch.domain.launch.launch_file import EnvDelivery, LearnerCommand
from ffdl_batch.domain.outcome.controller_events import Outcome
from ffdl_batch.runtimes.apptainer import Container, NetworkMode, apptainer_argv
from ffdl_batch.runtimes.learner_contract import PROTECTED, Learners, Places, container_layout, learner_environment
from tests.contract.controller_rig import SAVES_ON, Rig, await_save, job_id, rig

IMAGE = os.environ.get("FFDL_TEST_IMAGE", "")
DUMP = "import json, os; json.dump(dict(os.environ), open(os.environ['RESULT_DIR'] + '/env.json', 'w'))\n"


@pytest.fixture(name="run")
def made(tmp_path: Path) -> Iterator[Rig]:
    assert IMAGE, "FFDL_TEST_IMAGE must name an image with bash and python3"
    with rig(tmp_path) as one:
        yield one


def write(
    run: Rig,
    command: str,
    *,
    image: str = IMAGE,
    copied: bool = False,
    model: Mapping[str, str] | None = None,
    user_env: Mapping[str, str] | None = None,
    network: NetworkMode = NetworkMode.LOOPBACK,
) -> None:
    data, bucket = run.base / "da,ta", run.base / "bucket"
    data.mkdir()
    (data / "x").write_text("42")
    bucket.mkdir()
    hosts = ("", "") if copied else (str(data), str(bucket))
    layout = container_layout(Places(run.job, run.attempt, job_id(), "in", "out", *hosts, copied=copied))
    argv = apptainer_argv(Container(image, layout.binds, network=network))
    env = learner_environment(Learners(job_id(), command), layout)
    learner = LearnerCommand(argv, env, EnvDelivery.FILE, protected=PROTECTED)
    run.write(command, model=model, user_env=user_env, learner=learner, make_dirs=layout.make_dirs)


@pytest.mark.parametrize("copied", [False, True], ids=["mounted", "copied"])
def test_learner_container_has_literal_ffdl_paths(run: Rig, copied: bool) -> None:
    write(run, "python3 main.py; cat $JOB_STATE_DIR/latest-log; ls $DATA_DIR", model={"main.py": DUMP}, copied=copied)
    assert run.run() == 0, run.errors + run.log()
    env = json.loads((Path(run.attempt.results) / "env.json").read_text())
    mounted = {
        "DATA_DIR": "/mnt/data/in",
        "RESULT_DIR": f"/mnt/results/out/{job_id()}",
        "RESULT_BUCKET_DIR": "/mnt/results/out",
        "CHECKPOINT_DIR": "/mnt/results/out/_wml_checkpoints",
    }
    copies = {
        "DATA_DIR": "/job/in",
        "RESULT_DIR": "/job/out",
        "RESULT_BUCKET_DIR": "",
        "CHECKPOINT_DIR": "/job/checkpoints",
    }
    expected = {"MODEL_DIR": "/job/model-code", "LOG_DIR": "/job/logs", "JOB_STATE_DIR": "/job", "LEARNER_ID": "1"}
    expected |= copies if copied else mounted
    assert {name: env.get(name) for name in expected} == expected
    assert ("x\n" in run.log()) is not copied
    assert run.final().stored


NASTY = {
    "QUOTES": 'it\'s "x" `id` $(id) $HOME ${PATH} \\ \\n',
    "LINES": "a\nb\r\nc\n\n",
    "SLASH": "a\\\nb\\",
    "BLANKS": "  x \t ",
    "TEXT": "ümlaut 漢字",
    "EMPTY": "",
    "PATH": "/mine:/usr/bin:/bin",
    "LD_LIBRARY_PATH": "/l",
    "PREPEND_PATH": "x",
    "BRACE": "{x}",
}


def test_values_arrive_exactly(run: Rig) -> None:
    write(run, "python3 main.py", model={"main.py": DUMP}, user_env=NASTY)
    assert run.run(APPTAINERENV_LEAK="1", SINGULARITY_BIND="/etc:/leak") == 0, run.errors + run.log()
    env = json.loads((Path(run.attempt.results) / "env.json").read_text())
    assert {name: env.get(name) for name in NASTY} == NASTY
    assert "LEAK" not in env


def test_the_exit_code_comes_through(run: Rig) -> None:
    write(run, "exit 9")
    assert run.run() == 9, run.log()
    assert run.final().error_code == "C201"


def test_a_missing_image_is_named(run: Rig) -> None:
    write(run, "true", image="/nonexistent/image.sif")
    assert run.run() == 255
    assert run.final().error_code == "S103"
    assert "image.sif" in run.final().message


def test_a_checkpoint_request_passes_the_runtime(run: Rig) -> None:
    write(run, "python3 main.py | cat; true", model={"main.py": SAVES_ON.format("SIGUSR2")})
    await_save(run, signal.SIGURG, 0)
    assert run.final().outcome is Outcome.HALTED


def test_a_program_that_catches_term_in_a_container_has_time_to_save(run: Rig) -> None:
    write(run, "python3 main.py; true", model={"main.py": SAVES_ON.format("SIGTERM")})
    await_save(run, signal.SIGTERM, 143)
