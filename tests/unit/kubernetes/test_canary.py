"""The canary's pods: what is made of their tries, that they may run anywhere, and that they really try."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from kubernetes_validate import validate

from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.job.spec import BatchOptions
from ffdl_batch.domain.launch.network_level import NetworkLevel
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_kubernetes.objects.canary import CLIENTS, CONNECT, LAST, LISTEN, PORT, SERVERS, jobs_of, policies
from ffdl_kubernetes.observing.network_canary import Proof, judge, refuse_unproved
from ffdl_kubernetes.planning.network_access import lacking_levels
from ffdl_kubernetes.settings import KubernetesSettings
from ffdl_kubernetes.tenancy.tenant_objects import PERMISSIONS
from tests.fakes.kubernetes.pod_security import violations
from tests.fakes.kubernetes.rig import eventually
from tests.unit.kubernetes.request_rig import FACTS, PLAIN, plan_of

OPEN, SHUT = "10.0.0.1", "10.0.0.2"
SETTINGS = KubernetesSettings(service_account="ffdl-batch-learner", image_pull_secrets=("registry",))


@pytest.mark.parametrize(("free", "bound", "enforced", "words"), [
    ({OPEN: 3, SHUT: 0}, {OPEN: 0, SHUT: 0}, True, "a canary proved"),
    ({OPEN: 3, SHUT: 3}, {OPEN: 3, SHUT: 3}, False, "does not enforce NetworkPolicies"),
    ({OPEN: 3, SHUT: 0}, {OPEN: 1, SHUT: 0}, False, "connections out of a pod that may make none"),
    ({OPEN: 3, SHUT: 3}, {OPEN: 0, SHUT: 0}, False, "connections into a pod that may take none"),
    ({OPEN: 0, SHUT: 0}, {OPEN: 0, SHUT: 0}, None, "nothing is known"),
])  # fmt: skip
def test_canary_judges_network_policy_enforcement_from_connection_counts(
    free: dict[str, int], bound: dict[str, int], enforced: bool | None, words: str
) -> None:
    found = judge(free, bound, OPEN, SHUT)
    assert found.enforced is enforced and words in found.text


@pytest.mark.parametrize("part", [SERVERS, CLIENTS])
@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_canary_objects_pass_schemas_and_restricted_pod_security(part: str, version: str) -> None:
    job = cast("dict[str, Any]", jobs_of("ffdl-canary-1", part, (OPEN, SHUT), SETTINGS))
    validate(job, version, strict=True)
    assert violations("restricted", job["spec"]["template"]) == ""
    pod = job["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False and pod["serviceAccountName"] == "ffdl-batch-learner"
    for one in policies("ffdl-canary-1"):
        validate(cast("dict[str, Any]", one), version, strict=True)


def test_canary_policies_open_one_of_each_pair_and_close_the_other() -> None:
    found = {str(one["metadata"]["name"]): one["spec"] for one in cast("list[dict[str, Any]]", policies("c"))}
    assert {name: (spec["ingress"], spec["egress"]) for name, spec in found.items()} == {
        "c-servers-0": ([{}], []), "c-servers-1": ([], []), "c-clients-0": ([], [{}]), "c-clients-1": ([], []),
    }  # fmt: skip


def test_daemon_permissions_cover_canary_objects() -> None:
    verbs = {resource: allowed for _, resources, allowed in PERMISSIONS for resource in resources}
    assert {"create", "patch", "delete"} <= set(verbs["jobs"]) and "list" in verbs["pods"]
    assert "create" in verbs["networkpolicies"]


def listens(address: str) -> bool:
    try:
        with socket.create_connection((address, PORT), 2):
            return True
    except OSError:
        return False


def test_canary_programs_count_connections_to_listening_server_only(tmp_path: Path) -> None:
    number = os.getpid() % 60000  # another run of this test may go on beside this one, and the port is one
    here, nowhere = (f"127.{part}.{number // 250}.{number % 250 + 1}" for part in (21, 22))
    server = subprocess.Popen([sys.executable, "-I", "-c", LISTEN], env={"FFDL_POD_IP": here})
    try:
        eventually(lambda: listens(here), "the server listens")
        log = tmp_path / "said"
        text = CONNECT.replace("/dev/termination-log", str(log))
        assert str(log) in text
        assert text.count(", 2) as connection") == text.count("settimeout(2)") == 1
        text = text.replace(", 2) as connection", ", 60) as connection").replace("settimeout(2)", "settimeout(60)")
        subprocess.run([sys.executable, "-I", "-c", text, here, nowhere], check=True, timeout=600)
        assert json.loads(log.read_text()) == {here: LAST, nowhere: 0}
    finally:
        server.kill()
        server.wait()
    assert PORT > 1024


UNPROVED = BackendFacts(python=FACTS.python, network_levels=frozenset({NetworkLevel.HOST}), warnings=("it is shut",))


def batch(level: NetworkLevel) -> Any:
    from dataclasses import replace

    return replace(PLAIN, batch=BatchOptions(network=level))


def test_kubernetes_plan_rejects_named_network_level_without_proof() -> None:
    with pytest.raises(InvalidRequest, match="network level job cannot be proved: it is shut") as caught:
        plan_of(batch(NetworkLevel.JOB), facts=UNPROVED)
    assert caught.value.findings[0].code == "S107"


def test_kubernetes_plan_reports_how_its_network_level_was_proved() -> None:
    plan = plan_of(facts=UNPROVED)
    assert (plan.network.level, "it is shut" in plan.warnings) == ("host", True)
    assert plan.network.mechanism == "none; no canary proved that NetworkPolicies are enforced"
    assert plan_of().network.mechanism == "NetworkPolicy, proved by a canary"
    said = plan_of(settings={"network_policies": "enforced"}).network
    assert (said.level, said.mechanism) == ("none", "NetworkPolicy, as the site says")
    assert lacking_levels(FACTS) == {}


def test_refuse_unproved_rejects_plan_only_if_policies_are_not_enforced() -> None:
    refuse_unproved(Proof(None, "unknown"))
    refuse_unproved(Proof(True, "proved"))
    with pytest.raises(InvalidRequest, match="it let all through; the job was planned"):
        refuse_unproved(Proof(False, "it let all through"))
