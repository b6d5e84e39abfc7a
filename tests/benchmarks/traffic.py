"""Two learners on two nodes: the job's own network beside the network between the nodes, in one job, in turns; and the
same with the other mechanism."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tests.benchmarks.bench import PLAIN_NAME, Bench
from tests.benchmarks.figures import Figure
from tests.benchmarks.leftovers import MARK
from tests.cluster.rig import Cluster
from tests.cluster.wireguard_site import wireguard
from tests.proof.desk import SOURCE

STREAM_S, ROUND_TRIPS = 2.0, 1000
WAYS = ("bare", "overlay")
_PROBE = f"{SOURCE}/tests/benchmarks/nodeside/probe.py"
_IMAGE = "/shared/images/custom.sif"
_MEASURES = {
    "stream_mb_s": ("TCP stream", "MB/s"),
    "tcp_us": ("TCP round trip, 64 bytes", "us"),
    "udp_us": ("UDP round trip, 64 bytes", "us"),
    "udp_lost": ("UDP answers that never came", ""),
}
# Each round has ports of its own: nothing waits for those of the round before.
_JOB = """\
#!/bin/sh
#SBATCH --nodes=2 --ntasks-per-node=1 --mem=400 --time=30 --output=/dev/null
second=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 2p)
export SECOND=$(getent ahostsv4 "$second" | sed -n '1s/ .*//p')
round=0
while [ "$round" -lt "$1" ]; do
    for way in bare overlay; do
        srun --error="$2/traffic/error" sh -eu "$2/traffic-task.sh" "$way" $((5000 + round)) \\
            >"$2/traffic/$3-$way-$round" || exit 1
    done
    round=$((round + 1))
done
"""
_TASK = f"""\
joined= address=$SECOND
if [ "$1" = overlay ]; then
    network=/run/ffdl/job-$SLURM_JOB_ID/network
    prefix=$(sed -n s/^prefix=//p "$network")
    joined="--netns-path $(sed -n s/^netns=//p "$network")" address=${{prefix%.*.}}.1.1
fi
if [ "$SLURM_NODEID" = 1 ]; then set -- serve "$address" "$2"
else set -- measure "$address" "$2" {STREAM_S} {ROUND_TRIPS}; fi
exec apptainer -q exec --containall --no-home --pwd / --bind {_PROBE}:/probe.py $joined {_IMAGE} python3 /probe.py "$@"
"""


def measure_traffic(bench: Bench) -> list[Figure]:
    """Throughput, and round trips, between the same two nodes."""
    files = {"traffic.sh": _JOB, "traffic-task.sh": _TASK, "traffic/README": "what the probes printed\n"}
    bench.desk.write({f"{bench.desk.base}/{name}": text for name, text in files.items()})
    vxlan = _run(bench, "vxlan")
    with wireguard(bench.cluster):
        sealed = _run(bench, "wireguard")
    samples = {
        "overlay": vxlan["overlay"],
        f"overlay, {_wireguard_of(bench.cluster)}": sealed["overlay"],
        "bare network": {key: [*vxlan["bare"][key], *sealed["bare"][key]] for key in _MEASURES},
    }
    return [
        Figure("traffic", what, who, unit, found[key])
        for key, (what, unit) in _MEASURES.items()
        for who, found in samples.items()
    ]


def _run(bench: Bench, name: str) -> Mapping[str, Mapping[str, list[float]]]:
    """One job; its samples by way."""
    base, rounds = bench.desk.base, bench.knobs.rounds
    argv = ["sbatch", "--wait", f"--job-name={PLAIN_NAME}", f"--comment={MARK}", "traffic.sh", str(rounds), base, name]
    if bench.desk.run(*argv, check=False, timeout_s=60.0 + 60.0 * rounds).returncode != 0:
        raise RuntimeError(f"the probes failed: {_said(bench, 'error')}")
    return {way: gather([_said(bench, f"{name}-{way}-{number}") for number in range(rounds)]) for way in WAYS}


def _wireguard_of(cluster: Cluster) -> str:
    """By what the nodes have it."""
    argv = ["unshare", "--net", "ip", "link", "add", "try", "type", "wireguard"]
    has_it = cluster.run("n1", argv, check=False).returncode == 0
    return "WireGuard of the kernel" if has_it else "wireguard-go"


def gather(printed: Sequence[str]) -> Mapping[str, list[float]]:
    """All samples of the probes, by what they are of."""
    rounds = [json.loads(text) for text in printed]
    return {key: [float(sample) for one in rounds for sample in one[key]] for key in _MEASURES}


def _said(bench: Bench, name: str) -> str:
    return bench.desk.host_path(f"{bench.desk.base}/traffic/{name}").read_text(encoding="utf-8")
