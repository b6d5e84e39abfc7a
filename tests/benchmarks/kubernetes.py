"""Many jobs on Kubernetes: created, watched and completed, beside a client that only creates the same objects.

Needs neither a cluster nor root: the API server is the tests' own, a process that speaks HTTPS and counts what it is
asked, and its pods are imagined: they end as soon as they run, with a controller's last word, and have no processes. So
what is measured is the daemon's part. The server runs beside it on the same processors.
"""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from ffdl_batch.client import Client
from ffdl_batch.client.api import JobFilter
from ffdl_batch.client.errors import SubmissionWarning
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.outcome.controller_events import FinalRecord, Outcome
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.lifecycle.submission import whole
from ffdl_kubernetes.objects.names import is_shared
from ffdl_kubernetes.settings import KubernetesSettings, read_settings
from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs
from tests.benchmarks.place import Place
from tests.benchmarks.usage import cpu_seconds, resident_mib
from tests.fakes.kubernetes.rig import FakeCluster, cluster, node

PATIENCE_S, LOOK_S, CREATED_LOOK_S = 1800.0, 0.5, 0.02
CREATED = "create jobs"
LIVE = ("PENDING", "DEPLOYING", "QUEUED", "DOWNLOADING", "PROCESSING", "STORING")
_NAME, LOOP = "{} jobs, Kubernetes", "loop of creates"
_CONFIG = """\
idle_exit_s = 3600
[backend]
default = "kubernetes"
[frameworks.custom]
versions = {{ bench = "docker://registry.example.com/learner:1" }}
[backend.kubernetes]
kubeconfig = "{kubeconfig}"
controller_image = "registry.example.com/controller:1"
network_policies = "enforced"
run_as_user = 1000
"""
_MANIFEST = """\
name: bench
cpus: 0.1
memory: 64MiB
gpus: 0
framework: {name: custom, version: bench, command: "true"}
"""


class KubernetesPlace(Place):
    """A place whose scheduler is a cluster."""

    def __init__(self, base: Path, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        super().__init__(base)

    def _config(self) -> str:
        return _CONFIG.format(kubeconfig=self._kubeconfig)


def measure_kubernetes(knobs: Knobs) -> list[Figure]:
    """As many jobs as asked for, by a daemon; and the same objects by a loop."""
    count = knobs.cluster_jobs
    with _ground() as (k8s, place):
        manifest = place.base / "bench.yml"
        manifest.write_text(_MANIFEST)
        daemon = place.launch("ffdl_batch.daemon.main")
        try:
            figures = _measure_daemon(k8s, place, manifest, daemon.pid, count)
            with place.client() as client:
                documents = client.plan(manifest, place.add_model()).objects
            archive = next((place.state / "jobs").glob("training-*/model.zip"))
        finally:
            daemon.terminate()
            daemon.wait()
        loop = _measure_loop(k8s, documents, archive, count)
    created = {one.who: one.samples[0] for one in (*figures, *loop) if one.measure == "all created"}
    ratio = created["ffdl"] / created[LOOP]
    return [*figures, *loop, Figure(_NAME.format(count), "all created", f"ffdl / {LOOP}", "", [ratio], "1.5 at most")]


@contextmanager
def _ground() -> Iterator[tuple[FakeCluster, KubernetesPlace]]:
    last = FinalRecord("%s", Outcome.COMPLETED, time.time(), stored=True, exit_code=0)
    kubelet = {"imagined_s": 0.0, "imagined_word": json.dumps(to_plain(last)), "probe_s": 0.1}
    wide = [node(f"n{number}", cpu="100000", memory="100000Gi", pods="100000") for number in range(4)]
    with tempfile.TemporaryDirectory(prefix="ffdl-bench-") as directory:
        base = Path(directory)
        with cluster(base / "k8s", nodes=wide, kubelet=kubelet) as k8s:
            place = KubernetesPlace(base / "place", k8s.kubeconfig)
            try:
                yield k8s, place
            finally:
                place.close()


def _measure_daemon(k8s: FakeCluster, place: Place, manifest: Path, pid: int, count: int) -> list[Figure]:
    with place.client() as client:
        # One alone first: what the cluster is, and the first list and watch, are no part of a job's cost.
        _complete(client, k8s, manifest, place.add_model(), 1)
        _await_release(k8s, 1)
        k8s.counts(reset=True)
        before = cpu_seconds(pid)[0]
        run = _complete(client, k8s, manifest, place.add_model(), count)
        resident = resident_mib(pid)
        _await_release(k8s, count)
        asked, used_s = k8s.counts(), cpu_seconds(pid)[0] - before
    watching = sum(number for name, number in asked.items() if name.partition(" ")[0] in ("list", "watch"))
    what, detail = _NAME.format(count), {"requests": asked}
    return [
        Figure(what, "accepted", "ffdl", "s", [run.accepted_s]),
        Figure(what, "all created", "ffdl", "s", [run.created_s]),
        Figure(what, "all completed", "ffdl", "s", [run.completed_s]),
        Figure(what, "API calls per job", "ffdl", "", [sum(asked.values()) / count], "4 at most", detail),
        Figure(what, "lists and watches of all", "ffdl", "", [float(watching)], "no growth"),
        Figure(what, "daemon's processor time per job", "ffdl", "ms", [1000 * used_s / count]),
        Figure(what, "daemon's resident memory", "ffdl", "MiB", [resident]),
    ]


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds from the submission until all are accepted, until the cluster has all, and until all have completed."""

    accepted_s: float
    created_s: float
    completed_s: float


def _complete(client: Client, k8s: FakeCluster, manifest: Path, model: Path, count: int) -> Run:
    """So many jobs, from their submission to their end. Raises RuntimeError when one does not complete."""
    before, began = k8s.counts().get(CREATED, 0), time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SubmissionWarning)  # results are lost with the pods
        results = client.submit_many([manifest] * count, model)
    accepted_s = time.monotonic() - began
    refused = next((result.problem for result in results if result.problem is not None), None)
    if refused is not None:
        raise RuntimeError(f"a submission was refused: {refused.message}")
    _await(lambda: k8s.counts().get(CREATED, 0) - before >= count, f"{count} jobs to be created", CREATED_LOOK_S)
    created_s = time.monotonic() - began
    _await(lambda: not client.list(JobFilter(states=LIVE, limit=1)), f"the ends of {count} jobs", LOOK_S)
    completed_s = time.monotonic() - began
    wrong = client.list(JobFilter(states=("FAILED", "HALTED", "CANCELLED"), limit=1))
    if wrong:
        raise RuntimeError(f"a job ended otherwise: {wrong[0].state} {wrong[0].error_code}: {wrong[0].message}")
    return Run(accepted_s, created_s, completed_s)


def _await(check: Callable[[], bool], what: str, pause_s: float) -> None:
    end = time.monotonic() + PATIENCE_S
    while not check():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {PATIENCE_S:g} s in vain for {what}")
        time.sleep(pause_s)


def _await_release(k8s: FakeCluster, count: int) -> None:
    """Until the daemon has let so many pods go: it does so a moment after it has told their jobs' ends."""
    _await(lambda: k8s.counts().get("patch pods", 0) >= count, f"{count} pods to be let go", CREATED_LOOK_S)


def _measure_loop(k8s: FakeCluster, documents: Sequence[str], archive: Path, count: int) -> list[Figure]:
    """The same requests that create something, one after the other on one connection. Nobody lets the pods go."""
    settings = read_settings({"kubeconfig": str(k8s.kubeconfig)})
    token = str(yaml.safe_load(documents[0])["metadata"]["name"])
    each = [_sent(documents, token, f"bare-{number}", settings, archive) for number in range(count)]
    client = ClusterClient(settings)
    try:
        client.version()
        k8s.counts(reset=True)
        began = time.monotonic()
        for one in each:
            client.create(one)
        seconds = time.monotonic() - began
    finally:
        client.close()
    calls, what = sum(k8s.counts().values()), _NAME.format(count)
    return [
        Figure(what, "all created", LOOP, "s", [seconds]),
        Figure(what, "API calls per job", LOOP, "", [calls / count]),
    ]


def _sent(
    documents: Sequence[str], token: str, name: str, settings: KubernetesSettings, archive: Path
) -> dict[str, Any]:
    """Return the Job of that name with all that its pod needs, as the daemon sends it."""
    job, *others = (yaml.safe_load(document.replace(token, name)) for document in documents)
    found = whole(job, [one for one in others if not is_shared(one)], settings, archive)
    if found is None:
        raise RuntimeError("the daemon does not send such a job in one request")
    return dict(found)
