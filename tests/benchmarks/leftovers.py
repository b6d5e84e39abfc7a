"""Many small jobs come and go: what is left of them on the nodes, with a network of their own and without."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from tests.benchmarks.bench import PLAIN_NAME, Bench
from tests.benchmarks.leftovers_table import Coming, Count, more, named, news, together
from tests.cluster.rig import Cluster
from tests.cluster.rig.topology import COMPUTE_NODES
from tests.proof.desk import SOURCE, VENV_PYTHON, Desk

MARK = "ffdl-batch:job/2"
PATIENCE_S = 900.0
SETTLE_S = 120.0
_IMAGE = "/shared/images/custom.sif"
# Of ten jobs one leaves a container at work, one fails, one is cancelled, and the others end well; all of them with a
# container that has joined the network, where there is one.
_SCRIPT = f"""\
#!/bin/sh
#SBATCH --mem=50 --time=5 --output={{base}}/leftovers/{{who}}/%A_%a
cat /run/ffdl/job-$SLURM_JOB_ID/network
net=$(sed -n s/^netns=//p /run/ffdl/job-$SLURM_JOB_ID/network)
inside() {{{{ apptainer -q exec --containall --no-home --pwd / ${{{{net:+--netns-path $net}}}} {_IMAGE} "$@"; }}}}
case $((SLURM_ARRAY_TASK_ID % 10)) in
    0) inside sleep 300 & sleep 1 ;;
    1) exit 1 ;;
    2) scancel "${{{{SLURM_ARRAY_JOB_ID}}}}_$SLURM_ARRAY_TASK_ID"; sleep 60 ;;
    *) inside true ;;
esac
"""


def measure_leftovers(bench: Bench) -> list[Coming]:
    """The same jobs twice: without the mark, and with it."""
    cluster, desk, jobs = bench.cluster, bench.desk, bench.knobs.networks
    return [come_and_go(cluster, desk, jobs, who, mark) for who, mark in (("sbatch", ""), ("sbatch, overlay", MARK))]


def come_and_go(cluster: Cluster, desk: Desk, jobs: int, who: str, mark: str) -> Coming:
    """Half of the jobs on one node, half on two, as many at once as the nodes hold."""
    place = "overlay" if mark else "plain"
    script, out = f"{desk.base}/leftovers-{place}.sh", f"{desk.base}/leftovers/{place}"
    desk.write({script: _SCRIPT.format(base=desk.base, who=place), f"{out}/README": "what each job was told\n"})
    before = look(cluster)
    most: Mapping[str, int] = {kind: len(names) for kind, names in before.items()}
    began = time.monotonic()
    for nodes, count in ((1, jobs - jobs // 2), (2, jobs // 2)):
        if count:
            options = [f"--array=0-{count - 1}", f"--nodes={nodes}", f"--job-name={PLAIN_NAME}", f"--comment={mark}"]
            desk.run("sbatch", *options, script)
    while desk.run("squeue", "--me", "--noheader", f"--name={PLAIN_NAME}").stdout:
        if time.monotonic() - began > PATIENCE_S:
            raise RuntimeError(f"{jobs} small jobs have not ended within {PATIENCE_S:g} s")
        most = more(most, look(cluster))
    cluster.wait_idle()
    seconds = time.monotonic() - began
    told = [path.read_text(encoding="utf-8") for path in desk.host_path(out).glob("*_*")]
    networks = sum("netns=" in text for text in told)
    return Coming(who, jobs, networks, seconds, before, most, _look_when_settled(cluster, before))


def look(cluster: Cluster) -> Count:
    """What the compute nodes have now."""
    program = [VENV_PYTHON, "-I", "-S", f"{SOURCE}/tests/benchmarks/nodeside/leftovers.py"]
    return together([named(spec.name, json.loads(cluster.run(spec.name, program).stdout)) for spec in COMPUTE_NODES])


def _look_when_settled(cluster: Cluster, before: Count) -> Count:
    """The count as soon as nothing is left, else that of when the patience is over."""
    deadline = time.monotonic() + SETTLE_S
    while any(news(before, after := look(cluster)).values()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return after
