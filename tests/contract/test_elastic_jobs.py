"""An elastic job whose size changes between attempts: real daemon, local backend, real learners, the command line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.contract.daemon_rig import PLAIN, Site, site_in, until

TRAIN = """
import os, pathlib, signal, time
asked = []
signal.signal(signal.SIGUSR2, lambda *_: asked.append(1))
names = ("WORLD_SIZE", "BATCH_SIZE", "GLOBAL_BATCH_SIZE", "LEARNING_RATE_SCALE", "RESUME")
print("size", *(os.environ[name] for name in names), flush=True)
if os.environ["LEARNER_ID"] == "1":
    print("ffdl-throughput: samples=" + os.environ["GLOBAL_BATCH_SIZE"] + " seconds=0.5", flush=True)
    print("ffdl-scale: +1", flush=True)
while not asked and os.environ["RESUME"] == "0":
    time.sleep(0.02)
if asked:
    pathlib.Path(os.environ["CHECKPOINT_DIR"], "model").write_text("saved")
"""
MANIFEST = """
name: elastic
cpus: 0.1
memory: 100MB
learners: 2
framework: {name: custom, version: python-numpy, command: python3 train.py}
batch:
  checkpoint: {saved_by: first}
  elastic: {max_learners: 3, batch: {min: 4, max: 64, per_gpu_max: 16, start: 8}}
"""


def start(site: Site, base: Path) -> str:
    """Return the id of a job whose learners all run."""
    (base / "model").mkdir()
    (base / "model" / "train.py").write_text(TRAIN)
    (base / "m.yml").write_text(MANIFEST)
    job_id = site.run("submit", "--parsable", str(base / "m.yml"), str(base / "model")).strip()
    until(lambda: site.run("logs", job_id).count("size") == 2, f"both learners to run; {site.log}")
    return job_id


def test_elastic_job_continues_with_other_size_and_its_metrics_cover_both(tmp_path: Path) -> None:
    with site_in(tmp_path, more_environment={"FFDL_BACKEND": "local"}) as site:
        site.launch(program=PLAIN)
        until(site.is_served, f"the daemon to answer; its log:\n{site.log}")
        job_id = start(site, tmp_path)
        site.run("halt", "--wait", job_id)
        refused = site.try_to("resume", "--learners", "4", job_id)
        assert refused.returncode != 0 and "learners: 4 is not in the range of batch.elastic, 1 to 3" in refused.stderr
        site.run("resume", "--learners", "3", "--batch", "14", "--wait", job_id)
        job = json.loads(site.run("show", "--json", job_id))["job"]
        assert [(one["learners"], one["global_batch"]) for one in job["attempts"]] == [(2, 8), (3, 12)]
        sizes = [line.partition("size ")[2] for line in site.run("logs", "--attempt", "all", job_id).splitlines()]
        assert sorted(filter(None, sizes)) == ["2 4 8 1.0 0"] * 2 + ["3 4 12 1.5 1"] * 3
        records = [json.loads(line)["metrics"]["record"] for line in site.run("metrics", "--json", job_id).splitlines()]
        values = [(one["grouplabel"], name, one["values"][name]["value"]) for one in records for name in one["values"]]
        assert values == [
            ("ffdl", "throughput", "16.0"), ("ffdl", "scale", "1"),
            ("ffdl", "throughput", "24.0"), ("ffdl", "scale", "1"),
        ]  # fmt: skip
