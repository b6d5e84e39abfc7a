"""Table 1 of FfDL's workshop paper: 10 to 40 jobs at once on 40 GPUs, through us and by plain srun, in turns.

The training is real, and small; GPUs are device files that no driver serves. All nodes share the processors of this
machine, so completion times grow with the number of jobs by any tool: what counts is the growth beyond that of srun.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.benchmarks.bench import Bench
from tests.benchmarks.concurrency_table import Level
from tests.benchmarks.running import DIGITS, EXAMPLE, ONE_THREAD, bare_argv, copy_example, manifest_of
from tests.cluster.rig import Cluster
from tests.cluster.rig.boot import FAKE_MAJOR
from tests.cluster.rig.topology import COMPUTE_NODES, CPUS, GPUS, MEMORY_MIB

TRAINING = replace(DIGITS, manifest="digits/one.yml", command=f"{ONE_THREAD} {DIGITS.command}")
NODE_GPUS = 14
"""Three nodes have at least 40 of them."""


def measure_concurrency(bench: Bench) -> list[Level]:
    """Return the completion times of jobs that are submitted at once, for each number of jobs and each way."""
    copy_example(bench)
    manifest = manifest_of(TRAINING, (EXAMPLE / "manifest.yml").read_text(encoding="utf-8"))
    bench.desk.write({f"{bench.desk.base}/{TRAINING.manifest}": manifest})
    ways = {"ffdl": TRAINING.submission(), "srun": bare_argv(TRAINING)}
    levels = []
    with more_gpus(bench.cluster):
        for argv in ways.values():
            bench.node("together", "1", *argv)  # brings image and programs into memory; it is not counted
        for jobs in bench.knobs.concurrent:
            for who, argv in ways.items():
                levels.append(Level(jobs, who, bench.node("together", str(jobs), *argv, timeout_s=1800)))
    return levels


@contextmanager
def more_gpus(cluster: Cluster) -> Iterator[None]:
    """Nodes with more fake GPUs, and with CPUs and memory for as many jobs; afterwards they are as before."""
    extra = range(GPUS, NODE_GPUS)
    changes = {
        f"nvidia[0-{GPUS - 1}]": f"nvidia[0-{NODE_GPUS - 1}]",
        f"CPUs={CPUS} RealMemory={MEMORY_MIB}": f"CPUs={2 * NODE_GPUS} RealMemory={2 * MEMORY_MIB}",
        **{
            f"Gres=gpu:{kind}:{GPUS}": f"Gres=gpu:{kind}:{NODE_GPUS}"
            for kind in {one.gpu_type for one in COMPUTE_NODES}
        },
    }
    try:
        for node in COMPUTE_NODES:
            files = [(f"/dev/nvidia{number}", number) for number in extra]
            lines = [f"[ -e {path} ] || mknod -m 666 {path} c {FAKE_MAJOR} {number}" for path, number in files]
            cluster.run(node.name, ["sh", "-euc", "\n".join(lines)])
        for name in ("slurm.conf", "gres.conf"):
            path = cluster.path("ctl", f"/etc/slurm/{name}")
            text = path.read_text(encoding="utf-8")
            for old, new in changes.items():
                text = text.replace(old, new)
            path.write_text(text, encoding="utf-8")
        cluster.restart_slurm()
        cluster.wait_idle()
        yield
    finally:
        cluster.write_slurm()
        cluster.restart_slurm()
        for node in COMPUTE_NODES:
            cluster.run(node.name, ["rm", "-f", *(f"/dev/nvidia{number}" for number in extra)])
