"""Copy the records of a job from its results to the servers:  python3 sync.py JOB_ID [MLFLOW_URI]

Weights & Biases has a command of its own for this, `wandb sync`, which needs your key (`wandb login`).
"""

import os
import subprocess
import sys
from pathlib import Path

from ffdl_batch import Client


def copy_runs(source, target):
    """Copy all runs of one MLflow store to another one."""
    from mlflow import MlflowClient

    old, new = MlflowClient(source), MlflowClient(target)
    for experiment in old.search_experiments():
        found = new.get_experiment_by_name(experiment.name)
        number = found.experiment_id if found else new.create_experiment(experiment.name)
        for run in old.search_runs([experiment.experiment_id]):
            copied = new.create_run(number, run.info.start_time, dict(run.data.tags), run.info.run_name).info.run_id
            metrics = [one for name in run.data.metrics for one in old.get_metric_history(run.info.run_id, name)]
            for name, value in run.data.params.items():
                new.log_param(copied, name, value)
            new.log_batch(copied, metrics)
            new.set_terminated(copied, run.info.status, run.info.end_time)
            print(f"run {run.info.run_name}: {len(metrics)} values of metrics")


def main():
    """Download the results, and copy their records to the servers."""
    job_id, target = sys.argv[1], (sys.argv[2:] or [""])[0]
    with Client() as client:
        results = client.download(job_id, Path("results") / job_id)
    if target and (results / "mlruns").is_dir():
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        copy_runs(f"file://{results}/mlruns", target)
    for run in sorted(results.glob("wandb/offline-run-*")):
        print(f"run {run.name}")
        if "WANDB_API_KEY" in os.environ or (Path.home() / ".netrc").is_file():
            subprocess.run(["wandb", "sync", str(run)], check=True)


if __name__ == "__main__":
    main()
