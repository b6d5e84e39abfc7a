"""The daemon at rest: what it costs while many jobs are alive and nothing happens."""

from __future__ import annotations

import time

from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs
from tests.benchmarks.usage import cpu_seconds, resident_mib
from tests.cluster.rig import Cluster
from tests.proof.desk import Desk

SETTLE_S = 10.0
_COUNTING = """\
#!/bin/sh
echo "$(date +%s.%N)" >>"{base}/squeue-calls"
exec /usr/bin/squeue "$@"
"""


def measure_standing(cluster: Cluster, desk: Desk, knobs: Knobs) -> list[Figure]:
    """Processor time and memory of a daemon with held jobs in Slurm, its children included, and its squeue calls."""
    base = desk.base
    desk.write({f"{base}/bin/squeue": _COUNTING.format(base=base)})
    desk.run("chmod", "+x", f"{base}/bin/squeue")
    bench = Bench(cluster, desk, knobs)
    bench.prepare()
    bench.node("drain", *bench.manifests(knobs.live_jobs), "model")
    time.sleep(SETTLE_S)
    pid = desk.host_pid()
    if pid is None:
        raise RuntimeError(f"the daemon at {base} ended while {knobs.live_jobs} jobs were alive")
    before, calls_before, resident = cpu_seconds(pid), calls(desk), []
    began = time.monotonic()
    while time.monotonic() - began < knobs.seconds:
        time.sleep(min(1.0, knobs.seconds))
        resident.append(resident_mib(pid))
    elapsed = time.monotonic() - began
    after = cpu_seconds(pid)
    own, children = (100 * (after[kind] - before[kind]) / elapsed for kind in (0, 1))
    what = f"{knobs.live_jobs} live jobs"
    return [
        Figure(what, "daemon itself, of one core", "ffdl", "%", [own], "< 1"),
        Figure(what, "its squeue and sacct, of one core", "ffdl", "%", [children]),
        Figure(what, "resident memory", "ffdl", "MiB", resident, "< 300"),
        Figure(what, "squeue calls", "ffdl", "1/min", [60 * (calls(desk) - calls_before) / elapsed], "one an interval"),
    ]


def calls(desk: Desk) -> int:
    """How often the daemon asked squeue so far."""
    path = desk.host_path(f"{desk.base}/squeue-calls")
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
