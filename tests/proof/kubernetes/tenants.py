"""Checks that two tenants of one hub are isolated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.settings import read_settings
from tests.proof.kubernetes.desk import Desk
from tests.proof.kubernetes.room import KINDS, Room, await_
from tests.proof.kubernetes.values import Failed, Impossible

PORT = 8123
LISTENS = (
    f'if [ "$RANK" = 0 ]; then exec python3 -m http.server {PORT}; fi; '
    f"until python3 -c 'import os, socket; socket.create_connection((os.environ[\"MASTER_ADDR\"], {PORT}), 5)'; "
    "do sleep 0.2; done; echo reached; exec sleep 3600"
)
"""Learner 1 listens, and learner 2 prints when it has connected to it."""
CONNECTS = "python3 -c 'import socket; socket.create_connection((\"{address}\", {port}), 5)' 2>&1; echo status $?"
LEVELS = ("job", "host")


@contextmanager
def another(desk: Desk) -> Iterator[Desk]:
    """A second tenant of the same hub, with a daemon of its own. Its namespace is deleted at the end."""
    room = Room(desk.options.patience_s, beside=desk.room)
    base = desk.base / "another"
    base.mkdir(exist_ok=True)
    try:
        room.make()
        if desk.options.broken == "tenants":
            _let_in(room, desk.room)
        with Desk(room, desk.options, base) as other:
            yield other
            room.empty()
    finally:
        room.clear()
        room.admin.close()


def objects(desk: Desk) -> str:
    """Each daemon sees the objects of its own tenant only, and the hub may request their tokens and nothing else."""
    with another(desk) as other:
        job_id = other.submit(other.manifest("true", more=", env: {KEPT: here}"))
        other.await_state(job_id, "COMPLETED")
        (pod,) = other.room.pods(f"{job_id}-1")
        asked = 0
        for who, place in ((desk, other), (other, desk)):
            for kind in KINDS:
                _demand_refusal(who.kubeconfig, place.room, f"list of {kind}", partial(_list, kind))
                asked += 1
        log = f"api/v1/namespaces/{other.room.namespace}/pods/{pod['metadata']['name']}/log"
        _demand_refusal(desk.kubeconfig, other.room, "log of a pod", lambda client: client.raw("GET", log))
        hub = desk.room.hub_kubeconfig(desk.base / "hub.kubeconfig")
        for kind in KINDS:
            _demand_refusal(hub, other.room, f"list of {kind} for the hub", partial(_list, kind))
        for account in ("default", "ffdl-batch-learner"):
            path = f"api/v1/namespaces/{other.room.namespace}/serviceaccounts/{account}/token"
            _demand_refusal(hub, other.room, f"token of {account}", lambda client, path=path: client.raw("POST", path, {
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {},
            }))  # fmt: skip
        if job_id in json.dumps(desk.site.ask("GET", "/api/v1/jobs")[1]):
            raise Failed(f"the first tenant's list has {job_id}")
    return f"{asked + 1} requests of daemons and {len(KINDS) + 2} of the hub were refused, each with 403"


def learners(desk: Desk) -> str:
    """Learners of two tenants do not reach each other."""
    if not json.loads(desk.await_canary())["enforced"]:
        raise Impossible("the cluster's network enforces no NetworkPolicies")
    with another(desk) as other:
        other.await_canary()
        listener = other.submit(other.manifest(LISTENS, learners=2, more=", network: job"))
        with other.cancelled(listener):
            what = "a learner of the same job connects"
            await_(lambda: "reached\n" in other.log(listener, learner=2), what, desk.options.patience_s)
            addresses = {
                pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]: pod["status"]["podIP"]
                for pod in other.room.pods(f"{listener}-1")
            }
            for level in LEVELS:
                command = CONNECTS.format(address=addresses["0"], port=PORT)
                job_id = desk.submit(desk.manifest(command, more=f", network: {level}"))
                desk.await_state(job_id, "COMPLETED")
                log = desk.log(job_id)
                if not log.endswith("status 1\n") or not any(word in log for word in ("timed out", "refused")):
                    raise Failed(f"a learner at level {level} reached one of another tenant: {log!r}")
    return f"a learner at {addresses['0']} was reached by its own job, and not at levels {', '.join(LEVELS)} by another"


def _list(kind: str, client: ClusterClient) -> object:
    return client.list(kind, {})


def _demand_refusal(kubeconfig: Any, place: Room, what: str, ask: Any) -> None:
    client = ClusterClient(read_settings({"kubeconfig": str(kubeconfig), "namespace": place.namespace}))
    try:
        ask(client)
    except Refused as refused:
        if refused.status != 403:
            raise Failed(f"{what} in {place.namespace}: {refused}") from refused
    else:
        raise Failed(f"{what} in {place.namespace}: permitted")
    finally:
        client.close()


def _let_in(room: Room, guest: Room) -> None:
    """Grant the guest's daemon the tenant's role, and allow all traffic; the proof must detect it."""
    subject = {"kind": "ServiceAccount", "namespace": guest.namespace, "name": "ffdl-batch-daemon"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "ffdl-batch-daemon"}
    room.admin.create({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "guest"},
        "roleRef": role, "subjects": [subject],
    })  # fmt: skip
    open_to_all = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]}
    for one in (room, guest):
        one.admin.create({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "open"},
            "spec": open_to_all,
        })  # fmt: skip
