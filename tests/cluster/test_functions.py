"""Python functions as jobs on Slurm, in real containers, from a login node."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cluster.people import Person

SUBMIT = r"""
import os, sys
from ffdl_batch import Client

class Unfit(Exception):
    pass

def describe(factor, *parts):
    import numpy
    print("learner", os.environ["LEARNER_ID"], flush=True)
    return {"sum": int(numpy.sum(parts)) * factor, "job": os.environ["TRAINING_ID"]}

def fail(number):
    raise Unfit(f"number {number}")

with Client(start=False) as client:
    asked = {"cpus_per_task": 1, "mem": "256", "time": "10", "gpus": "1", "python": sys.argv[1]}
    good = client.submit_function(describe, 3, 4, 5, **asked)
    bad = client.submit_function(fail, 7, **asked)
    value = good.result(timeout_s=500)
    print(value["sum"], value["job"] == good.id, good.view().native_id.isdecimal())
    print(*(line.line for line in good.logs()))
    try:
        bad.result(timeout_s=500)
    except Unfit as error:
        print("raised", error, "in fail" in str(error.__cause__))
    print(good.view().state, bad.view().state, bad.view().exit_code)
"""


@pytest.fixture
def owner(alice: Person) -> Iterator[Person]:
    """alice, whose daemon runs on the second login node, which has Apptainer."""
    alice.run("ffdl", "daemon", "stop", check=False)
    alice.run("ffdl", "list", node="login2")
    yield alice
    alice.run("ffdl", "daemon", "stop", node="login2", check=False)


def test_function_returns_value_and_raises_exception_of_learner(owner: Person, tmp_path: Path) -> None:
    """The client runs in the learners' image, because a function needs the same Python on both sides."""
    image = ("apptainer", "exec", "/shared/images/custom.sif")
    python = owner.run(*image, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])", node="login2")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "-q",
        "install",
        "--target",
        str(tmp_path / "lib"),
        "--no-deps",
        "--only-binary=:all:",
    ]
    names = [f"{name}=={version(name)}" for name in ("cloudpickle", "httptools")]
    subprocess.run([*pip, "--python-version", python.stdout.strip(), *names], check=True)
    program = owner.write("~/functions/submit.py", SUBMIT)
    shutil.copytree(tmp_path / "lib", owner.host_path(f"{owner.home}/functions/lib"), dirs_exist_ok=True)
    paths = f"/opt/ffdl/src:{owner.home}/functions/lib"
    inside = ("apptainer", "exec", "--bind", "/opt/ffdl,/run,/home,/shared", "--env", f"PYTHONPATH={paths}")
    done = owner.run(*inside, "/shared/images/custom.sif", "python3", program, "python3", node="login2", timeout_s=1100)
    lines = ["27 True True", "learner 1", "raised number 7 True", "COMPLETED FAILED 1"]
    assert done.stdout.splitlines() == lines, done.stderr
