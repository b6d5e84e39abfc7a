"""Learner images: those that the project builds run; those that it does not build are refused by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cluster.images import CHECKOUT, provide_image
from tests.cluster.people import Person
from tests.cluster.rig import Cluster

pytestmark = pytest.mark.full

TORCH = (
    "import torch; torch.manual_seed(1); x = torch.randn(64, 3); y = x @ torch.tensor([[1.], [2.], [3.]]); "
    "w = torch.zeros(3, 1, requires_grad=True); o = torch.optim.SGD([w], lr=0.1); "
    "[(o.zero_grad(), ((x @ w - y) ** 2).mean().backward(), o.step()) for _ in range(200)]; "
    "print('learned', [round(v, 2) for v in w.detach().flatten().tolist()])"
)
NUMPY = "import numpy; print('solved', numpy.linalg.solve([[2., 0.], [0., 4.]], [2., 8.]).tolist())"


def framework(alice: Person, name: str, version: str, command: str = "true") -> str:
    """A manifest for that image."""
    text = f"name: image\ncpus: 1\nmemory: 1GiB\nframework:\n  name: {name}\n  version: {version}\n  command: |\n"
    return alice.write(f"~/manifests/{name}.yml", f"{text}    {command}\n")


@pytest.fixture(scope="module")
def model(alice: Person) -> str:
    """An empty one."""
    return alice.model("empty", {"README": "nothing here\n"})


def test_built_pytorch_and_numpy_images_run_learner_commands(cluster: Cluster, alice: Person, model: str) -> None:
    provide_image(cluster, "pytorch")
    ids = [
        alice.submit(framework(alice, "pytorch", "debian", f'python3 -c "{TORCH}"'), model),
        alice.submit(framework(alice, "custom", "python-numpy", f'python3 -c "{NUMPY}"'), model),
    ]
    torch, numpy = alice.finish_all(ids)
    assert (torch["state"], numpy["state"]) == ("COMPLETED", "COMPLETED"), (torch, numpy)
    assert alice.logs(ids[0]).splitlines()[-1] == "learned [1.0, 2.0, 3.0]"
    assert alice.logs(ids[1]) == "solved [1.0, 2.0]\n"


def test_submit_names_missing_framework_image_and_directory(alice: Person, model: str) -> None:
    done = alice.run("ffdl-submit", framework(alice, "jax", "debian"), model, check=False)
    assert done.returncode == 78
    assert "jax.sif" in done.stderr and "/shared/images" in done.stderr


def test_submit_lists_known_frameworks_for_unknown_framework(alice: Person, model: str) -> None:
    done = alice.run("ffdl-submit", framework(alice, "theano", "1.0"), model, check=False)
    assert done.returncode == 78
    assert "theano" in done.stderr and all(name in done.stderr for name in ("pytorch", "tensorflow", "custom"))


@pytest.mark.parametrize("name", ["tensorflow", "jax", "caffe"])
def test_image_build_rejects_definition_that_is_not_built(name: str) -> None:
    argv = [sys.executable, str(CHECKOUT / "containers" / "build.py"), "--out", "/nonexistent", name]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"{name} is not built here: " in done.stderr


def test_job_fails_with_s105_when_image_registry_is_unreachable(alice: Person, model: str) -> None:
    """The nodes have no way out, as at many sites."""
    job = alice.finish(alice.submit(framework(alice, "tensorflow", "1.5.0-py3"), model))
    assert (job["state"], job["error_code"]) == ("FAILED", "S105"), job
    assert "registry cannot be reached" in job["message"] and "tensorflow/tensorflow:1.5.0-py3" in job["message"]
