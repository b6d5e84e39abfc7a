"""`make bench`: every figure beside the plain tool's, in the same run.

`footprint`, `load`, `logs`, `metrics`, `staging`, `cache`, `shared-cache`, `same-data`, `kubernetes`, `recovery`,
`fairness`, `gangs`, `packing`, `elastic`, `elastic-model`, `elastic-optimiser` and `web` need nothing but this machine;
`site` needs root; the others, and `recovery --real`, run on the real cluster. `papers` is a name for all benchmarks
that repeat tables of the FfDL papers. Prints tables and writes build/bench.json. Judges nothing: aims are
printed beside the figures.
"""

from __future__ import annotations

import argparse
import json
import platform
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.beginning import measure_beginning
from tests.benchmarks.bench import Bench
from tests.benchmarks.caching import measure_cache
from tests.benchmarks.collecting import measure_collectors
from tests.benchmarks.concurrency import measure_concurrency
from tests.benchmarks.concurrency_table import Level, concurrency_table, growth_figures
from tests.benchmarks.elastic import measure_elastic
from tests.benchmarks.elastic_model import measure_elastic_model
from tests.benchmarks.elastic_optimiser import measure_elastic_optimiser
from tests.benchmarks.fairness import measure_fairness
from tests.benchmarks.figures import Figure, table
from tests.benchmarks.footprint import measure_footprint
from tests.benchmarks.knobs import Knobs
from tests.benchmarks.kubernetes import measure_kubernetes
from tests.benchmarks.leftovers import measure_leftovers
from tests.benchmarks.leftovers_table import Coming, leftovers_table
from tests.benchmarks.load import measure_load
from tests.benchmarks.logs import measure_logs
from tests.benchmarks.overheads import measure_overheads
from tests.benchmarks.placement import measure_gangs, measure_packing
from tests.benchmarks.recovery import measure_recovery
from tests.benchmarks.recovery_table import Recovery, recovery_table
from tests.benchmarks.running import measure_phases, measure_training
from tests.benchmarks.shared_cache import measure_same_data, measure_shared_cache
from tests.benchmarks.site_mode import measure_site
from tests.benchmarks.staging import SERVERS, measure_staging
from tests.benchmarks.standing import measure_standing
from tests.benchmarks.submitting import (
    measure_acknowledgement,
    measure_drain,
    measure_many,
    measure_one,
    measure_start,
)
from tests.benchmarks.traffic import measure_traffic
from tests.benchmarks.web_page import measure_web
from tests.cluster.images import provide_image
from tests.cluster.rig import Cluster
from tests.proof.desk import Desk

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "bench.json"
USER = "alice"
STANDING, LEFTOVERS, RECOVERY, CONCURRENCY = "standing", "leftovers", "recovery", "concurrency"
WITHOUT_CLUSTER: dict[str, Callable[[Knobs], list[Figure]]] = {
    "load": measure_load,
    "logs": measure_logs,
    "metrics": measure_collectors,
    "staging": measure_staging,
    "cache": measure_cache,
    "shared-cache": measure_shared_cache,
    "same-data": measure_same_data,
    "kubernetes": measure_kubernetes,
    "footprint": measure_footprint,
    "site": measure_site,
    "fairness": measure_fairness,
    "gangs": measure_gangs,
    "packing": measure_packing,
    "elastic": measure_elastic,
    "elastic-model": measure_elastic_model,
    "elastic-optimiser": measure_elastic_optimiser,
    "web": measure_web,
}
AT_A_DESK: dict[str, Callable[[Bench], list[Figure]]] = {
    "start": measure_start,
    "submit": measure_one,
    "acknowledge": measure_acknowledgement,
    "many": measure_many,
    "drain": measure_drain,
    "phases": measure_phases,
    "training": measure_training,
    "overheads": measure_overheads,
    "begin": measure_beginning,
    "traffic": measure_traffic,
}
NAMES = (*AT_A_DESK, CONCURRENCY, STANDING, LEFTOVERS, RECOVERY, *WITHOUT_CLUSTER)
PAPERS, PARTS = "papers", ("fairness", "gangs", "packing", "same-data", RECOVERY, CONCURRENCY, "overheads")
"""One name for several benchmarks."""
DATABASES = {"sqlite": ("sqlite",), "postgres": ("postgres",), "both": ("sqlite", "postgres")}


@dataclass(slots=True)
class Results:
    """What was measured."""

    figures: list[Figure] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    comings: list[Coming] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)

    def add(self, new: Results) -> None:
        """Append the results of another benchmark."""
        self.figures += new.figures
        self.recoveries += new.recoveries
        self.comings += new.comings
        self.levels += new.levels

    def document(self, versions: Mapping[str, str]) -> str:
        """Return all figures with their samples as JSON."""
        every = [*self.figures, *(one.figure() for one in self.levels), *(one.figure() for one in self.recoveries)]
        return (
            json.dumps({"versions": dict(versions), "figures": [figure.plain() for figure in every]}, indent=1) + "\n"
        )

    def tables(self) -> str:
        """Return the tables of all results."""
        shown = [table(self.figures)] if self.figures else []
        shown += [concurrency_table(self.levels)] if self.levels else []
        shown += [leftovers_table(self.comings)] if self.comings else []
        shown += [recovery_table(self.recoveries)] if self.recoveries else []
        return "\n".join(shown)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for."""
    names, knobs, output = _read(arguments)
    results = Results()
    output.parent.mkdir(parents=True, exist_ok=True)
    with _ground(any(_needs_cluster(name, knobs) for name in names)) as (cluster, versions):
        print(", ".join(f"{tool} {version}" for tool, version in versions.items()))
        # A desk or a place for each: no benchmark pays for the jobs that another left.
        for name in names:
            began = time.monotonic()
            new = Results()
            _measure(cluster, name, knobs, new)
            results.add(new)
            output.write_text(results.document(versions), encoding="utf-8")
            print(new.tables(), flush=True)
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(f"all samples: {output}")
    return 0


def _needs_cluster(name: str, knobs: Knobs) -> bool:
    return knobs.real if name == RECOVERY else name not in WITHOUT_CLUSTER


@contextmanager
def _ground(with_cluster: bool) -> Iterator[tuple[Cluster | None, Mapping[str, str]]]:
    """The cluster where one is needed, and the versions of what is measured with."""
    own = {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version}
    if not with_cluster:
        yield None, own
        return
    with Cluster.session() as cluster:
        provide_image(cluster, "custom")
        yield cluster, {**cluster.versions(), **own}


def _measure(cluster: Cluster | None, name: str, knobs: Knobs, results: Results) -> None:
    if name in WITHOUT_CLUSTER:
        results.figures += WITHOUT_CLUSTER[name](knobs)
    elif name == RECOVERY:
        results.recoveries += measure_recovery(knobs, cluster if knobs.real else None)
    else:
        assert cluster is not None, "it was started for this benchmark"
        _measure_at_desk(cluster, name, knobs, results)


def _measure_at_desk(cluster: Cluster, name: str, knobs: Knobs, results: Results) -> None:
    # The daemon of `standing` inherits this PATH, in which squeue counts its calls.
    with Desk(cluster, USER, f"bench-{name}", "cli", path_first="bin" if name == STANDING else "") as desk:
        if name == STANDING:
            results.figures += measure_standing(cluster, desk, knobs)
            return
        bench = Bench(cluster, desk, knobs)
        try:
            if name == LEFTOVERS:
                comings = measure_leftovers(bench)
                results.comings += comings
                results.figures += [figure for coming in comings for figure in coming.figures()]
            elif name == CONCURRENCY:
                bench.prepare()
                results.levels += measure_concurrency(bench)
                results.figures += growth_figures(results.levels)
            else:
                bench.prepare()
                results.figures += AT_A_DESK[name](bench)
        finally:
            bench.cancel_plain()


def _read(arguments: Sequence[str] | None) -> tuple[list[str], Knobs, Path]:
    usual = Knobs()
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join((*NAMES, PAPERS))}")
    parser.add_argument("--repeat", type=int, default=usual.repeat, help="runs of one command")
    parser.add_argument("--batch", type=int, default=usual.batch, help="manifests in one command, requests of `load`")
    parser.add_argument("--drain", type=int, default=usual.drain, help="jobs that are drained into Slurm")
    parser.add_argument("--trainings", type=int, default=usual.trainings, help="runs of each training, each way")
    parser.add_argument("--sights", type=int, default=usual.sights, help="jobs whose phases are watched")
    parser.add_argument("--live-jobs", type=int, default=usual.live_jobs, help="jobs of `standing`")
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="how long a daemon is watched")
    parser.add_argument(
        "--load", type=_counts, default=usual.load, metavar="N,N", help="live jobs of `load`, one run for each number"
    )
    parser.add_argument(
        "--in-arrays", type=int, default=usual.in_arrays, metavar="PERCENT", help="of them that come in arrays"
    )
    parser.add_argument("--settle", type=float, default=usual.settle_s, help="seconds of rest before `load` measures")
    parser.add_argument("--database", choices=DATABASES, default="sqlite", help="of `load`")
    parser.add_argument("--deaths", type=int, default=usual.deaths, help="kills of each part in `recovery`")
    parser.add_argument("--real", action="store_true", help="`recovery` on the real cluster, too")
    parser.add_argument(
        "--rounds",
        type=int,
        default=usual.rounds,
        help="runs of each thing in `begin`, `traffic`, `metrics`, `staging`, `cache`, `footprint`, `site` and "
        "`elastic-optimiser`",
    )
    parser.add_argument("--gangs", type=_counts, default=usual.gangs, metavar="N,N", help="learners of `begin`")
    parser.add_argument("--site-users", type=int, default=usual.site_users, help="users of `site` who ask at once")
    parser.add_argument(
        "--concurrent", type=_counts, default=usual.concurrent, metavar="N,N", help="jobs of `concurrency` at once"
    )
    parser.add_argument("--networks", type=int, default=usual.networks, help="jobs of `leftovers`, each way")
    parser.add_argument("--log-jobs", type=int, default=usual.log_jobs, help="jobs that are followed in `logs`")
    parser.add_argument("--staged-mib", type=int, default=usual.staged_mib, help="the large file of `staging`")
    parser.add_argument("--staged-files", type=int, default=usual.staged_files, help="the small files of `staging`")
    parser.add_argument("--sharing", type=int, default=usual.sharing, help="jobs with the same data set in `cache`")
    parser.add_argument(
        "--store-server", choices=sorted(SERVERS), default=usual.store_server, help="what stores for `staging`"
    )
    parser.add_argument("--cluster-jobs", type=int, default=usual.cluster_jobs, help="jobs of `kubernetes`")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where all samples go")
    options = parser.parse_args(arguments)
    names = [one for name in options.names for one in (PARTS if name == PAPERS else (name,))]
    for name in names:
        if name not in NAMES:
            parser.error(f"there is no benchmark {name!r}; choose among {', '.join((*NAMES, PAPERS))}")
    knobs = Knobs(
        repeat=options.repeat,
        batch=options.batch,
        drain=options.drain,
        trainings=options.trainings,
        sights=options.sights,
        live_jobs=options.live_jobs,
        seconds=options.seconds,
        load=options.load,
        in_arrays=options.in_arrays,
        databases=DATABASES[options.database],
        settle_s=options.settle,
        deaths=options.deaths,
        real=options.real,
        rounds=options.rounds,
        gangs=options.gangs,
        networks=options.networks,
        concurrent=options.concurrent,
        log_jobs=options.log_jobs,
        staged_mib=options.staged_mib,
        staged_files=options.staged_files,
        store_server=options.store_server,
        sharing=options.sharing,
        cluster_jobs=options.cluster_jobs,
        site_users=options.site_users,
    )
    trouble = knobs.trouble()
    if trouble:
        parser.error(trouble)
    return list(dict.fromkeys(names)) or list(NAMES), knobs, options.output


def _counts(text: str) -> tuple[int, ...]:
    """``1000,10000``; argparse tells of a ValueError."""
    return tuple(int(word) for word in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
