"""The contract suite of the scheduler port, run inside a cluster by one of its users, over one of the gateways."""

from __future__ import annotations

import re
import subprocess

from tests.cluster.people import Person

SUITE = "/opt/ffdl/src/tests/contract/test_scheduler_contract.py"
GATEWAYS = ("slurm-cli", "slurm-pyslurm")
AT_LEAST = 40
"""How many tests the suite has at the least."""


def start_contract(person: Person, gateway: str, python: str) -> subprocess.Popen[str]:
    """Start it. `python` is the interpreter that runs the controllers on the nodes; the suite has the venv's."""
    person.run("mkdir", "-p", "contract-root", "contract-tmp")
    env = {
        "FFDL_CONTRACT_BACKENDS": gateway,
        "FFDL_CONTRACT_ROOT": f"{person.home}/contract-root",
        "FFDL_CONTRACT_IMAGE": "/shared/images/custom.sif",
        "FFDL_CONTRACT_PYTHON": python,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = ["/opt/ffdl/venv/bin/python", "-m", "pytest", "-p", "no:cacheprovider", "-rs", "-q",
            "-o", "verbosity_assertions=2",
            "--rootdir=/opt/ffdl/src", f"--basetemp={person.home}/contract-tmp/{gateway}", SUITE]  # fmt: skip
    return person.popen(*argv, env=env)


def count_passed(done: subprocess.CompletedProcess[str]) -> int:
    """How many tests passed; fails where one did not, was skipped, or warned."""
    assert done.returncode == 0, done.stdout[-20000:]
    counted = re.search(r"^(\d+) passed in ", done.stdout, re.MULTILINE)
    assert counted is not None, f"something was skipped or warned about: {done.stdout[-2000:]}"
    return int(counted[1])
