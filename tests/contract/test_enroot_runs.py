"""Controllers with learners in containers of a program that follows enroot's documentation.

With the variable FFDL_TEST_SQSH, an image with bash and python3 by its absolute path, they are containers of the enroot
on the PATH.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ffdl_batch.domain.launch.launch_file import EnvDelivery, LearnerCommand
from ffdl_batch.domain.outcome.controller_events import Outcome
from ffdl_batch.runtimes.apptainer import Container, NetworkMode
from ffdl_batch.runtimes.enroot import enroot_argv
from ffdl_batch.runtimes.learner_contract import PROTECTED, Learners, Places, container_layout, learner_environment
from tests.contract.controller_rig import ROOT, SAVES_ON, Rig, await_save, job_id, rig
from tests.fakes.enroot import install

IMAGE = os.environ.get("FFDL_TEST_SQSH", "")
DUMP = "import json, os; json.dump(dict(os.environ), open(os.environ['RESULT_DIR'] + '/env.json', 'w'))\n"
NASTY = {
    "QUOTES": 'it\'s "x" `id` $(id) $HOME ${PATH} \\ \\n',
    "LINES": "a\nb\r\nc\n\n",
    "TEXT": "ümlaut 漢字",
    "EMPTY": "",
    "PATH": "/mine:/usr/bin:/bin",
    "BRACE": "{x}",
}


@pytest.fixture(name="run")
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    if not IMAGE:
        install(tmp_path / "bin", sys.executable, ROOT)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    with rig(tmp_path) as one:
        yield one


def write(
    run: Rig, command: str, *, image: str = IMAGE or "docker://x/y:1", learners: int = 1,
    model: Mapping[str, str] | None = None, user_env: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    data, bucket = run.base / "data", run.base / "bucket"
    data.mkdir()
    (data / "x").write_text("42")
    bucket.mkdir()
    layout = container_layout(Places(run.job, run.attempt, job_id(), "in", "out", str(data), str(bucket)))
    argv = enroot_argv(Container(image, layout.binds, NetworkMode.HOST))
    env = learner_environment(Learners(job_id(), command, learners), layout)
    learner = LearnerCommand(argv, env, EnvDelivery.FILE, protected=PROTECTED)
    run.write(
        command,
        model=model,
        user_env=user_env,
        learner=learner,
        make_dirs=layout.make_dirs,
        learners=learners,
        learners_per_node=learners,
    )


def calls(run: Rig) -> list[str]:
    """The subcommands of enroot that were called, with their first words."""
    return next(run.base.rglob("enroot-calls")).read_text().splitlines()


def test_learner_in_enroot_container_has_ffdl_paths_and_exact_variables(run: Rig) -> None:
    write(run, "python3 main.py; cat $DATA_DIR/x; touch $DATA_DIR/y /y; touch /tmp/z && ls /tmp", user_env=NASTY,
          model={"main.py": DUMP})  # fmt: skip
    assert run.run() == 0, run.errors + run.log()
    env = json.loads((Path(run.attempt.results) / "env.json").read_text())
    expected = {
        "DATA_DIR": "/mnt/data/in", "RESULT_DIR": f"/mnt/results/out/{job_id()}",
        "CHECKPOINT_DIR": "/mnt/results/out/_wml_checkpoints", "MODEL_DIR": "/job/model-code", "LEARNER_ID": "1",
        "NVIDIA_VISIBLE_DEVICES": "void", **NASTY,
    }  # fmt: skip
    assert {name: env.get(name) for name in expected} == expected
    assert not [name for name in env if name.startswith(("ENROOT", "SLURM", "FFDL_RIG"))]
    assert run.log().startswith("42") and run.log().endswith("\nz\n")
    assert run.log().count("Read-only file system") == 2
    assert run.final().stored


def test_learners_of_a_node_share_one_unpacked_image(run: Rig) -> None:
    write(run, "echo $LEARNER_ID", learners=2)
    assert run.run() == 0, run.errors + run.log() + run.log(2) + run.final().message
    assert (run.log(1), run.log(2)) == ("1\n", "2\n")
    assert not list(run.base.rglob(".made")), "the unpacked image is removed with the attempt's scratch directory"
    if not IMAGE:
        assert [line.split()[0] for line in calls(run)] == ["import", "create", "start", "start"]


def test_exit_status_of_learner_in_enroot_container_is_the_jobs(run: Rig) -> None:
    write(run, "exit 9")
    assert run.run() == 9, run.errors + run.log()
    assert run.final().error_code == "C201"


def test_checkpoint_signal_reaches_learner_in_enroot_container(run: Rig) -> None:
    write(run, "python3 main.py | cat; true", model={"main.py": SAVES_ON.format("SIGUSR2")})
    await_save(run, signal.SIGURG, 0)
    assert run.final().outcome is Outcome.HALTED


def test_term_leaves_learner_in_enroot_container_time_to_save(run: Rig) -> None:
    write(run, "python3 main.py; true", model={"main.py": SAVES_ON.format("SIGTERM")})
    await_save(run, signal.SIGTERM, 143)


@pytest.mark.parametrize(("image", "words"), [("docker://x/missing:1", "404 Not Found"), ("/none.sqsh", "/none.sqsh")])
def test_image_that_enroot_cannot_open_fails_the_job_with_its_message(run: Rig, image: str, words: str) -> None:
    write(run, "true", image=image)
    assert run.run() == 255
    assert run.final().error_code in ("S103", "S105")
    assert words in run.final().message
