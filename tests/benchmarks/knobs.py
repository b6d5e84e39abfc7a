"""How much is measured, and with what. Read from the command line once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Knobs:
    """The options of the command line. `load` are numbers of live jobs, `in_arrays` the percentage of them that come as
    elements of arrays, `settle_s` how long they are left alone before anything is measured. `gangs` are numbers of
    learners, `concurrent` numbers of jobs that are submitted at once, `networks` is one of jobs that come and go,
    `log_jobs` one of jobs that are followed. `staged_mib` is the size of the large file of `staging`, `staged_files`
    the number of small ones, `store_server` what stores both, `sharing` the number of jobs with one data set in
    `cache`, `cluster_jobs` that of `kubernetes`, `site_users` the number of users whose daemons `site` starts at
    once."""

    repeat: int = 20
    batch: int = 200
    drain: int = 1000
    trainings: int = 5
    sights: int = 3
    live_jobs: int = 1000
    seconds: float = 60.0
    load: tuple[int, ...] = (1000, 10_000)
    in_arrays: int = 50
    databases: tuple[str, ...] = ("sqlite",)
    settle_s: float = 120.0
    deaths: int = 5
    rounds: int = 5
    gangs: tuple[int, ...] = (2, 4, 8)
    concurrent: tuple[int, ...] = (10, 20, 30, 40)
    networks: int = 200
    log_jobs: int = 100
    staged_mib: int = 64
    staged_files: int = 500
    store_server: str = "quick"
    sharing: int = 10
    cluster_jobs: int = 500
    site_users: int = 200
    real: bool = False

    def trouble(self) -> str:
        """Why nothing can be measured with these, "" where it can."""
        counts = (self.repeat, self.batch, self.drain, self.trainings, self.sights, self.live_jobs, self.deaths)
        more = (self.rounds, self.networks, self.log_jobs, self.staged_mib, self.staged_files, self.sharing)
        lists = (*self.load, *self.gangs, *self.concurrent)
        if min(*counts, *more, *lists, self.cluster_jobs, self.site_users, self.seconds) < 1 or self.settle_s < 0:
            return "every number must be at least 1, and no time below 0"
        if not 0 <= self.in_arrays <= 100:
            return "the share of jobs in arrays is a percentage"
        return ""
