"""What a step is told of its GPUs, and what its device cgroup lets it open, in every release of Slurm."""

from __future__ import annotations

import json

from tests.cluster.people import Person


def test_jobs_sharing_a_node_get_different_gpu_files(alice: Person) -> None:
    """SLURM_STEP_GPUS has numbers of the node, CUDA_VISIBLE_DEVICES those of what is left: neither job is refused."""
    ids = [alice.start(name, "sleep 5", "--nodelist=n3", gpus=1, gpu_type="a100") for name in ("left", "right")]
    files = []
    for job in alice.finish_all(ids):
        assert job["state"] == "COMPLETED", job
        lines = map(json.loads, alice.read(f"{job['job_dir']}/attempt-1/events/node-0.jsonl").splitlines())
        (told,) = (line for line in lines if line["kind"] == "devices")
        assert (told["x_vendor"], told["x_gpus"], told["x_message"]) == ("nvidia", "0", "")
        files.append(told["x_files"])
    assert files[0] != files[1] and all(path.startswith("/dev/nvidia") and "," not in path for path in files)
