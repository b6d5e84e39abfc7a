"""Python functions as jobs on Slurm, in real containers, from a login node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cloudpickle
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


def test_function_returns_value_and_raises_exception_of_learner(owner: Person) -> None:
    """The client runs in the learners' image, because a function needs the same Python on both sides."""
    source = Path(cloudpickle.__file__).parent
    for path in source.glob("*.py"):
        owner.write(f"~/functions/lib/cloudpickle/{path.name}", path.read_text("utf-8"))
    program = owner.write("~/functions/submit.py", SUBMIT)
    paths = f"/opt/ffdl/src:{owner.home}/functions/lib"
    inside = ("apptainer", "exec", "--bind", "/opt/ffdl,/run,/home,/shared", "--env", f"PYTHONPATH={paths}")
    done = owner.run(*inside, "/shared/images/custom.sif", "python3", program, "python3", node="login2", timeout_s=1100)
    lines = ["27 True True", "learner 1", "raised number 7 True", "COMPLETED FAILED 1"]
    assert done.stdout.splitlines() == lines, done.stderr
