"""A launcher for Hydra: each run of a sweep is a job. Copy the directory `hydra_plugins` next to your application.

It sends the directory of the application with each job, and copies the output of each job into Hydra's directory of the
run. The image needs hydra-core and this version of Python. Options:

    hydra.launcher.image=my.sif +hydra.launcher.options.gpus=1 +hydra.launcher.options.time=2h
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.singleton import Singleton
from hydra.core.utils import configure_log, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from omegaconf import OmegaConf, open_dict


@dataclass
class FfdlLauncherConf:
    """Settings of the launcher."""

    _target_: str = "hydra_plugins.hydra_ffdl.launcher.FfdlLauncher"
    image: str = "python-numpy"
    """Image of the learners."""
    model: str = "."
    """Directory that is sent with each job."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of ffdl-submit, with underscores."""


ConfigStore.instance().store(group="hydra/launcher", name="ffdl", node=FfdlLauncherConf, provider="ffdl")


def run(context, task, config, state):
    """Run in the learner. Its output goes to the results of the job."""
    Singleton.set_state(state)
    setup_globals()
    with open_dict(config):
        config.hydra.sweep.dir = os.environ["RESULT_DIR"]
        config.hydra.sweep.subdir = "."
    return run_job(
        hydra_context=context,
        task_function=task,
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )


class FfdlLauncher(Launcher):
    """Submits all runs, then waits for each."""

    def __init__(self, image, model, options):
        """Store the settings."""
        self.image, self.model, self.options = image, model, OmegaConf.to_container(OmegaConf.create(options))

    def setup(self, *, hydra_context, task_function, config):
        """Store the application and its configuration."""
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(self, job_overrides, initial_job_idx):
        """Submit all runs, and return their results in order."""
        from ffdl_batch import Client

        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        with Client() as client:
            runs = []
            for number, overrides in enumerate(job_overrides, initial_job_idx):
                config = self.context.config_loader.load_sweep_config(self.config, list(overrides))
                with open_dict(config):
                    config.hydra.job.id = config.hydra.job.num = number
                call = (run, self.context, self.task, config, Singleton.get_state())
                job = client.submit_function(
                    *call, image=self.image, model=self.model, **{"job_name": f"hydra-{number}", **self.options}
                )
                print(f"{job.id} {' '.join(overrides)}", flush=True)
                runs.append((job, Path(str(config.hydra.sweep.dir), str(config.hydra.sweep.subdir))))
            return [self.finish(job, directory) for job, directory in runs]

    def finish(self, job, directory):
        """Wait for a job, and copy its output. Hydra raises the exceptions of the application."""
        found = job.result()
        job.download(directory, only=["*.yaml", "*.log", "*/*"], force=True)
        return found
