"""The second scene: two tenants without accounts, whose daemons send their jobs to a fake Kubernetes."""

from __future__ import annotations

import json
import random
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.fakes.kubernetes.checkout import images
from tests.fakes.kubernetes.rig import FakeCluster, node
from tests.proof.site.verdict import most_at_once
from tests.site.rig import ADA, BOB, EXPIRED, OUTSIDER, Host, Hub, until
from tests.site.shell import Shell
from tests.site.tenants import TENANTS, cluster_token, far_shell, operate, tenant_cluster, tenant_site

MEMBERS = {"ann": ("vision", ADA), "ben": ("vision", BOB), "cem": ("speech", EXPIRED)}
"""Tenant of each member, and a uid for the client machine, which does not matter."""
EACH, LIMIT, FAILED = 3, 2, 7
"""Jobs of each member, live jobs that the tenant vision may have, and the exit status of each member's last job."""
MANIFEST = """\
name: {name}
cpus: 0.1
memory: 128MiB
framework:
  name: custom
  version: registry.example.com/learner:1
  command: echo "$JOB_VALUE"; sleep 2; exit {status}
batch:
  env: {{JOB_VALUE: {value}}}
"""
GUEST = {
    "metadata": {"name": "guest"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "ffdl-batch-daemon"},
    "subjects": [{"kind": "ServiceAccount", "namespace": "speech", "name": "ffdl-batch-daemon"}],
}
"""Grants the daemon of speech the role of vision's daemon in the namespace vision; the proof must detect it."""
SEED = 26


@dataclass(frozen=True, slots=True)
class Sent:
    """One submission."""

    member: str
    job: str
    value: str
    status: int

    @property
    def tenant(self) -> str:
        return MEMBERS[self.member][0]


@dataclass(frozen=True, slots=True)
class FoundTenants:
    """The observed results."""

    sent: Sequence[Sent]
    shown: Mapping[str, tuple[str, str, str]]
    """By id: state, owner and log."""
    listed: Mapping[str, Sequence[str]]
    """By member: the ids that `ffdl list` shows."""
    jobs: Mapping[str, Mapping[str, tuple[float, float]]]
    """By tenant: when each Job of the cluster was created and ended."""
    trespasses: Sequence[str]
    incidents: Sequence[str]
    audited: Sequence[Mapping[str, Any]]
    access: Mapping[tuple[str, str], int]
    """The cluster's status for a daemon's token, by tenant and namespace."""
    leaks: Sequence[str]

    def troubles(self) -> Iterator[str]:
        """Yield one line per difference."""
        yield from (f"reached another tenant's job: {one}" for one in self.trespasses)
        yield from (f"token of the cluster found: {one}" for one in self.leaks)
        for one in self.sent:
            wanted = ("FAILED" if one.status else "COMPLETED", f"{one.member}@example.org", f"{one.value}\n")
            if self.shown[one.job] != wanted:
                yield f"{one.job} of {one.member} is {self.shown[one.job]}, not {wanted}"
        for tenant, uid in TENANTS.items():
            own = sorted(one.job for one in self.sent if one.tenant == tenant)
            for member in (name for name, (of, _) in MEMBERS.items() if of == tenant):
                if list(self.listed[member]) != own:
                    yield f"{member} lists {self.listed[member]}, and {tenant} sent {own}"
            if sorted(self.jobs[tenant]) != [f"{job}-1" for job in own]:
                yield f"namespace {tenant} has the Jobs {sorted(self.jobs[tenant])}, and {tenant} sent {own}"
            accepted = sum(
                line["what"] == "POST /api/v1/jobs" and line["caller"] == uid == line["user"] and line["status"] == 200
                for line in self.audited
            )
            if accepted != len(own):
                yield f"the audit has {accepted} submissions of {tenant}, which made {len(own)}"
            for namespace in TENANTS:
                status = 200 if namespace == tenant else 403
                if self.access[tenant, namespace] != status:
                    yield f"the token of {tenant} gets {self.access[tenant, namespace]} in {namespace}, not {status}"
        if (most := most_at_once(self.jobs["vision"].values())) > LIMIT:
            yield f"vision had {most} live jobs at once on Kubernetes (limit {LIMIT})"
        failed = sorted(one.job for one in self.sent if one.status)
        if sorted(self.incidents) != failed:
            yield f"the hub reports incidents of {sorted(self.incidents)}, but the failed jobs are {failed}"

    def report(self) -> str:
        """Return the line of this part."""
        counts = f"{len(list(self.troubles()))} differences, {len(self.trespasses)} trespasses, {len(self.leaks)} leaks"
        return f"{len(self.sent)} jobs of {len(TENANTS)} tenants on Kubernetes: {counts}"


def run_tenants(broken: str) -> FoundTenants:
    """Let three members of two tenants submit, and return the results. `broken`: see the command."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ffdl-proof-")))
        host = Host(place)
        stack.callback(host.close)
        machines = [node("n1", cpu="8"), node("n2", cpu="8")]
        kubernetes = stack.enter_context(tenant_cluster(place, nodes=machines, kubelet=images()))
        hub = stack.enter_context(tenant_site(host, kubernetes))
        if broken != "quota":
            operate(host, "quota", "set", "vision", "jobs", str(LIMIT))
        if broken == "namespace":
            kubernetes.ask("POST", "apis/rbac.authorization.k8s.io/v1/namespaces/vision/rolebindings", GUEST)
        shells = {name: far_shell(host, hub, tenant, uid, name) for name, (tenant, uid) in MEMBERS.items()}
        return _look(host, hub, kubernetes, shells, _send(shells))


def _send(shells: Mapping[str, Shell]) -> list[Sent]:
    chance, sent = random.Random(SEED), []
    for number in range(EACH):
        for name, shell in shells.items():
            value, status = f"{name}-{chance.randrange(10**9)}", FAILED if number == EACH - 1 else 0
            (shell.home / "model").mkdir(exist_ok=True)
            (shell.home / "model/README").touch()
            (shell.home / "job.yml").write_text(MANIFEST.format(name=f"{name}-{number}", value=value, status=status))
            done = shell.ffdl("submit", "--parsable", f"{shell.home}/job.yml", f"{shell.home}/model")
            assert done.returncode == 0, done
            sent.append(Sent(name, done.stdout.strip(), value, status))
    return sent


def _look(
    host: Host, hub: Hub, kubernetes: FakeCluster, shells: Mapping[str, Shell], sent: Sequence[Sent]
) -> FoundTenants:
    shown = {}
    for one in sent:
        shell = shells[one.member]
        shell.ffdl("wait", "--timeout", "240", one.job)
        job = json.loads(shell.ffdl("show", "--json", one.job).stdout)["job"]
        shown[one.job] = (job["state"], job["user"], shell.ffdl("logs", one.job).stdout)
    operator = Shell(host, OUTSIDER)
    incidents: list[str] = []

    def is_reported() -> bool:
        rows = json.loads(operator.ffdl("report", "faults", "--site", "--json").stdout or "{}")
        incidents[:] = [row["job"] for row in rows.get("faults", {}).get("rows", ())]
        return len(incidents) >= sum(one.status != 0 for one in sent)

    until(is_reported, "incidents of all failed jobs at the hub")
    tokens = {tenant: cluster_token(kubernetes, tenant) for tenant in TENANTS}
    return FoundTenants(
        sent=sent,
        shown=shown,
        listed={name: sorted(_listed(shell)) for name, shell in shells.items()},
        jobs={tenant: _jobs(kubernetes, tenant) for tenant in TENANTS},
        trespasses=list(_trespass(shells, sent)),
        incidents=incidents,
        audited=hub.audit(),
        access={(tenant, space): _ask(kubernetes, tokens[tenant], space) for tenant in TENANTS for space in TENANTS},
        leaks=[
            str(path.relative_to(host.place))
            for place in (host.place / "state", host.place / "hub")
            for path in place.rglob("*")
            if path.is_file() and any(token.encode() in path.read_bytes() for token in tokens.values())
        ],
    )


def _listed(shell: Shell) -> list[str]:
    lines = shell.ffdl("list", "--limit=999", "--json").stdout.splitlines()
    return [str(job["id"]) for line in lines for job in json.loads(line)["jobs"]]


def _jobs(kubernetes: FakeCluster, namespace: str) -> dict[str, tuple[float, float]]:
    found = kubernetes.ask("GET", f"apis/batch/v1/namespaces/{namespace}/jobs")["items"]
    return {one["metadata"]["name"]: (_seconds(one["metadata"]["creationTimestamp"]), _end(one)) for one in found}


def _end(job: Mapping[str, Any]) -> float:
    """When a Job was complete or had failed; infinity if it is not."""
    ends = [one for one in job["status"].get("conditions", ()) if one["type"] in ("Complete", "Failed")]
    return _seconds(ends[0]["lastTransitionTime"]) if ends else float("inf")


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _trespass(shells: Mapping[str, Shell], sent: Sequence[Sent]) -> Iterator[str]:
    """Yield what members of one tenant could read or change of the other tenant."""
    for one in sent:
        for name, shell in shells.items():
            if MEMBERS[name][0] == one.tenant:
                continue
            for command in ("show", "logs", "cancel"):
                done = shell.ffdl(command, one.job)
                if done.returncode == 0 or one.value in done.stdout:
                    yield f"{name}: {command} {one.job}: exit status {done.returncode}"


def _ask(kubernetes: FakeCluster, token: str, namespace: str) -> int:
    """The cluster's status for a list of the Jobs of a namespace."""
    request = urllib.request.Request(
        f"{kubernetes.url}/apis/batch/v1/namespaces/{namespace}/jobs", headers={"Authorization": f"Bearer {token}"}
    )
    trusted = ssl.create_default_context(cafile=str(kubernetes.authority))
    try:
        with urllib.request.urlopen(request, timeout=60, context=trusted) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
