"""The points: each is tried on the cluster, and says what it saw. In the order in which they are tried."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ffdl_batch.domain.tenant import Done
from ffdl_kubernetes.api_discovery import may
from ffdl_kubernetes.client import Refused
from ffdl_kubernetes.tenancy.tenant_objects import DENY_ALL, PERMISSIONS, ROLE, SECURITY
from tests.proof.kubernetes.claims import by_a_claim
from tests.proof.kubernetes.debugging import commands, processes
from tests.proof.kubernetes.desk import BUCKET, Desk
from tests.proof.kubernetes.room import Room, await_
from tests.proof.kubernetes.sizes import share_a_pool, shrink_in_place
from tests.proof.kubernetes.tenants import learners, objects
from tests.proof.kubernetes.values import MISSING_IMAGE, TOO_MANY_CPUS, Failed, Impossible

SHIPPED = [
    (group, resource, verb) for group, resources, verbs in PERMISSIONS for resource in resources for verb in verbs
]
NOT_SHIPPED = (("", "secrets", "get"), ("", "pods", "create"), ("", "pods/exec", "create"), ("", "nodes", "list"))
SAVES = (
    "trap 'echo 7 >\"$CHECKPOINT_DIR/epoch\"; exit 0' USR2; "
    'if [ -e "$CHECKPOINT_DIR/epoch" ]; then echo "from epoch $(cat "$CHECKPOINT_DIR/epoch")"; exit 0; fi; '
    'echo "from epoch 0"; while :; do sleep 0.2; done'
)
COUNTS = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do echo $i; sleep 0.5; done"
GREEDY = "echo up; exec python3 -c 'import time; x = b\"x\" * (1 << 30); time.sleep(60)'"
STATES = ["PENDING", "DEPLOYING", "QUEUED", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED"]
LEARNERS = 3


def demand(so: object, otherwise: str) -> None:
    """Raises Failed with what was seen."""
    if not so:
        raise Failed(otherwise)


def a_tenant(room: Room, broken: str = "") -> str:
    """The namespace is made as administrators make it, and refuses pods that are not restricted."""
    steps = room.make()
    if broken == "security":
        room.admin.patch("Namespace", room.namespace, {"metadata": {"labels": dict.fromkeys(SECURITY)}})
    if broken == "role":
        room.admin.delete("RoleBinding", ROLE)
    demand(all(step.done is Done.MADE for step in steps), f"not all is new: {steps}")
    found = room.admin.get("Namespace", room.namespace)
    labels = (found or {"metadata": {}})["metadata"].get("labels") or {}
    demand(SECURITY.items() <= labels.items(), f"its labels are {labels}")
    demand(room.admin.get("NetworkPolicy", DENY_ALL), "it has no policy that denies all")
    container = {"name": "c", "image": "i"}  # it may run as root
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad"}}
    try:
        room.admin.create({**pod, "spec": {"containers": [container]}}, dry_run=True)
    except Refused as refused:
        demand(
            refused.status == 403 and "PodSecurity" in str(refused),
            f"it refused a pod that may be root's otherwise: {refused}",
        )
        return (
            f"namespace {room.namespace}, {len(steps)} objects, and a pod that may be root's is refused by PodSecurity"
        )
    raise Failed("the API server takes a pod that may be root's in a namespace that enforces restricted")


def permissions(desk: Desk) -> str:
    """The daemon's account may do what the shipped role has, and no more."""
    others = [one for one in NOT_SHIPPED if one[1] != "pods/exec" or not desk.options.debugging]
    with desk.room.daemons_client(desk.kubeconfig) as client:
        missing = [f"{verb} {resource}" for group, resource, verb in SHIPPED if not may(client, verb, group, resource)]
        more = [f"{verb} {resource}" for group, resource, verb in others if may(client, verb, group, resource)]
    demand(not missing, f"the daemon may not {', '.join(missing)}")
    demand(not more, f"the daemon may {', '.join(more)}")
    return f"{len(SHIPPED)} permissions of the shipped role are there, {len(others)} others are not"


def dry_run(desk: Desk) -> str:
    """The API server takes the objects of several kinds of manifests, and makes none."""
    variants: Mapping[str, str] = {
        "plain": desk.manifest("true"),
        "learners": desk.manifest("true", learners=LEARNERS),
        "time limit": desk.manifest("true", more=", time: '00:10:00'"),
        "variables": desk.manifest("true", more=", env: {LR: '0.1'}"),
        "node selector": desk.manifest("true", more=", kubernetes: {node_selector: 'kubernetes.io/os=linux'}"),
        "missing image": desk.manifest("true", version="missing"),
        **({"store": desk.manifest("true", with_store=True)} if desk.server else {}),
    }
    before = [one["metadata"]["name"] for one in desk.room.admin.list("ConfigMap", {})[0]]
    said = {}
    for name, manifest in variants.items():
        status, reply = desk.plan(manifest)
        demand(status == 200, f"{name}: {reply}")
        said[name] = str(reply["plan"]["trial"])
        demand("the API server accepts all" in said[name], f"{name}: {said[name]}")
    after = [one["metadata"]["name"] for one in desk.room.admin.list("ConfigMap", {})[0]]
    demand(before == after, f"objects were made: {after}")
    return f"objects of {len(variants)} manifests ({', '.join(variants)})"


def a_job_completes(desk: Desk) -> str:
    """States, log and status of a job."""
    job_id = desk.submit(desk.manifest("echo one; echo two; exit 0"))
    job = desk.await_state(job_id, "COMPLETED")
    states = sorted(job["timestamps"], key=job["timestamps"].get)
    demand(states == STATES, f"its states were {states}")
    demand(desk.log(job_id) == "one\ntwo\n", f"its log is {desk.log(job_id)!r}")
    demand(job["exit_code"] in (0, None), f"its exit code is {job['exit_code']}")
    return f"{job_id}: {len(states)} states, its log, exit code 0"


def need_store(desk: Desk) -> None:
    """Raises Impossible where pods do not reach the store."""
    if desk.server is None:
        raise Impossible(desk.why_no_store)
    if desk.store_answers:
        return
    _, _, address = desk.server.endpoint.partition("//")
    host, _, port = address.rpartition(":")
    program = f'import socket; socket.create_connection(("{host}", {port}), 10); print("reached")'
    job_id = desk.submit(desk.manifest(f"python3 -c '{program}' 2>&1 || true"))
    desk.await_state(job_id, "COMPLETED")
    log = desk.log(job_id)
    if "reached" not in log.splitlines():  # since Python 3.13 a traceback quotes the program, which has the word, too
        raise Impossible(f"a pod does not reach the store at {address}: {log.strip()[-200:]}")
    desk.store_answers = True


def results_are_copied(desk: Desk) -> str:
    """Data come from a store, and results go there."""
    need_store(desk)
    command = 'cat "$DATA_DIR/a"; echo 42 >"$RESULT_DIR/answer"'
    job_id = desk.submit(desk.manifest(command, with_store=True))
    desk.await_state(job_id, "COMPLETED")
    demand(desk.log(job_id) == "from the store\n", f"its log is {desk.log(job_id)!r}")
    key = f"out/{job_id}/answer"
    if desk.options.broken == "bytes" and desk.server is not None:
        desk.server.client.put_object(Bucket=BUCKET, Key=key, Body=b"41\n")
    stored = desk.stored(key)
    demand(stored == b"42\n", f"the result is {stored!r}")
    return f"{job_id}: read its data, and its result is in the store"


def a_failure(desk: Desk) -> str:
    """The learner's status is the job's."""
    job_id = desk.submit(desk.manifest("echo wrong; exit 3"))
    job = desk.await_state(job_id, "FAILED")
    told = (job["error_code"], job["exit_code"])
    demand(told == ("C201", 3), f"it is told as {told}")
    return f"{job_id}: C201, exit code 3"


def halt_and_resume(desk: Desk) -> str:
    """A halted job goes on from its checkpoint."""
    need_store(desk)
    job_id = desk.submit(desk.manifest(SAVES, with_store=True))
    with desk.cancelled(job_id):
        desk.await_log(job_id, "from epoch 0")
        desk.do(job_id, "halt")
        desk.await_state(job_id, "HALTED")
        desk.do(job_id, "resume")
        await_(lambda: desk.job(job_id)["state"] != "HALTED", "it goes on", desk.options.patience_s)
        desk.await_state(job_id, "COMPLETED")
    demand(desk.log(job_id, 2) == "from epoch 7\n", f"its second attempt printed {desk.log(job_id, 2)!r}")
    return f"{job_id}: saved at the halt, went on from there"


def elastic_jobs(desk: Desk) -> str:
    """The scaler changes the sizes of jobs, and each continues from its checkpoint."""
    need_store(desk)
    return share_a_pool(desk)


def in_place(desk: Desk) -> str:
    """The scaler lets learners leave a running job."""
    need_store(desk)
    return shrink_in_place(desk)


def cancel(desk: Desk) -> str:
    """A cancelled job ends, and its pods with it."""
    job_id = desk.submit(desk.manifest("echo up; sleep 3600"))
    with desk.cancelled(job_id):
        desk.await_log(job_id, "up")
        desk.do(job_id, "cancel")
        desk.await_state(job_id, "CANCELLED")

    def rests() -> bool:
        return all(pod["status"].get("phase") in ("Succeeded", "Failed") for pod in desk.room.pods(f"{job_id}-1"))

    await_(rests, "none of its pods runs", desk.options.patience_s)
    return f"{job_id}: CANCELLED, and no pod of it runs"


def learners_meet(desk: Desk) -> str:
    """Learners of one job reach each other by their pods' addresses."""
    job_id = desk.submit(desk.manifest("exec python3 meeting.py", learners=LEARNERS))
    desk.await_state(job_id, "COMPLETED")
    heard = desk.log(job_id)
    pods = desk.room.pods(f"{job_id}-1")
    addresses = {str(pod["status"].get("podIP")) for pod in pods}
    for rank in range(1, LEARNERS):
        demand(f"heard rank {rank} from" in heard, f"rank 0 printed {heard!r}")
        told = desk.log(job_id, learner=rank + 1)
        demand(told.startswith(f"told {rank} at ") and told.endswith(": yes\n"), f"rank {rank} printed {told!r}")
        reached = told.partition(" at ")[2].partition(":")[0]
        demand(reached in addresses, f"rank {rank} reached {reached}, and the pods have {sorted(addresses)}")
    return f"{job_id}: {LEARNERS} learners, at {', '.join(sorted(addresses))}"


def names(desk: Desk) -> str:
    """The headless Service gives pods names."""
    if why := desk.room.why_no_names():
        raise Impossible(why)
    look = 'import socket; name = socket.gethostname().rpartition("-")[0]; print(name)'
    asked = f"python3 -c '{look}; print(sorted({{one[4][0] for one in socket.getaddrinfo(name, 1)}}))'"
    job_id = desk.submit(desk.manifest(f"sleep 3; {asked}", learners=2))
    desk.await_state(job_id, "COMPLETED")
    said = desk.log(job_id)
    for pod in desk.room.pods(f"{job_id}-1"):
        demand(str(pod["status"].get("podIP")) in said, f"the Service's name gave {said!r}")
    return f"{job_id}: its Service has both pods"


def out_of_memory(desk: Desk) -> str:
    """A learner that takes more than it asked for."""
    job_id = desk.submit(desk.manifest(GREEDY))
    job = desk.await_state(job_id, "FAILED")
    demand(job["error_code"] == "C202", f"it is told as {job['error_code']}: {job['message']}")
    return f"{job_id}: C202, {job['message']}"


def no_image(desk: Desk) -> str:
    """An image that nobody has."""
    job_id = desk.submit(desk.manifest("true", version="missing"))
    with desk.cancelled(job_id):
        job = desk.await_state(job_id, "FAILED")
    demand(job["error_code"] == "S105" and MISSING_IMAGE in job["message"], f"{job['error_code']}: {job['message']}")
    demand(job["cure"], "it is not told what to do")
    return f"{job_id}: S105: {job['message'][:200]}"


def quota(desk: Desk) -> str:
    """Pods that a quota refuses: the job waits, and says for what."""
    hard: dict[str, Any] = {"hard": {"pods": "0"}}
    thing: dict[str, Any] = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "proof"}, "spec": hard}
    admin = desk.room.admin
    admin.create(thing)

    def counted() -> bool:
        return bool(((admin.get("ResourceQuota", "proof") or {}).get("status") or {}).get("hard"))

    try:
        await_(counted, "the quota is counted", desk.options.patience_s)
        job_id = desk.submit(desk.manifest("true"))
        with desk.cancelled(job_id):
            reason = desk.await_reason(job_id, "quota proof never has so much")
            state = desk.job(job_id)["state"]
            demand(state == "QUEUED", f"it is {state}")
    finally:
        admin.delete("ResourceQuota", "proof")
    return f"{job_id}: {reason}"


def unschedulable(desk: Desk) -> str:
    """Pods for which no node has room: the job waits, and says why."""
    job_id = desk.submit(desk.manifest("true", cpus=TOO_MANY_CPUS))
    with desk.cancelled(job_id):
        reason = desk.await_reason(job_id, "no node has room now")
        state = desk.job(job_id)["state"]
        demand(state == "QUEUED", f"it is {state}")
    return f"{job_id}: {reason}"


def policies(desk: Desk) -> str:
    """The canary's result on NetworkPolicies decides whether level none is accepted."""
    result = json.loads(desk.await_canary())
    status, reply = desk.plan(desk.manifest("true", more=", network: none"))
    demand((status == 200) is result["enforced"], f"{result['text']}, but level none: {status} {reply}")
    return f"{result['text']}; level none is {'taken' if result['enforced'] else 'refused'}"


def daemon_restart(desk: Desk) -> str:
    """A daemon that is killed in mid-job is not missed."""
    job_id = desk.submit(desk.manifest(COUNTS))
    desk.await_log(job_id, "3\n")
    desk.kill()
    desk.start()
    desk.await_state(job_id, "COMPLETED")
    demand(desk.log(job_id) == "".join(f"{n}\n" for n in range(1, 17)), f"its log is {desk.log(job_id)!r}")
    demand(desk.job(job_id)["attempt"] == 1, "it was started again")
    return f"{job_id}: one attempt, and its log is whole"


def deletion(desk: Desk) -> str:
    """Whoever deletes the Job deletes all that was made for it."""
    job_id = desk.submit(desk.manifest("true", learners=2, more=", env: {KEPT: here}"))
    desk.await_state(job_id, "COMPLETED")
    token = f"{job_id}-1"
    before = desk.room.owned(token)
    kinds = {one.partition("/")[0] for one in before}
    wanted = {"Job", "Pod", "ConfigMap", "Secret", "Service", "NetworkPolicy"}
    demand(wanted <= kinds, f"of {token} there is {before}")
    desk.room.admin.delete("Job", token)
    await_(lambda: not desk.room.owned(token), f"{before} are gone", desk.options.patience_s)
    return f"{token}: {len(before)} objects went with it"


def nothing_left(room: Room) -> str:
    """The namespace can be deleted, and no object holds it."""
    forced = room.clear()
    demand(not forced, "; ".join(forced))
    left = room.left()
    demand(not left, f"there still is {', '.join(left)}")
    return f"namespace {room.namespace} is gone, and nothing was made outside it"


TENANT, END = "tenant", "nothing is left"
POINTS: Mapping[str, Callable[[Desk], str]] = {
    "permissions": permissions,
    "dry run": dry_run,
    "a job completes": a_job_completes,
    "results are copied": results_are_copied,
    "data by a claim": by_a_claim,
    "exit code": a_failure,
    "halt and resume": halt_and_resume,
    "elastic jobs": elastic_jobs,
    "shrinks in place": in_place,
    "cancel": cancel,
    "learners reach each other": learners_meet,
    "names of pods": names,
    "out of memory": out_of_memory,
    "missing image": no_image,
    "commands": commands,
    "processes": processes,
    "policies": policies,
    "quota": quota,
    "unschedulable": unschedulable,
    "daemon restart": daemon_restart,
    "deletion": deletion,
    "another tenant's objects": objects,
    "another tenant's learners": learners,
}
"""Between the tenant and the end."""
