"""The kubelets of the tests' cluster do what kubelets do: what is believed of the adapter rests on it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.fakes.kubernetes.rig import FakeCluster, cluster, eventually, node

Plain = dict[str, Any]
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
SECURITY = {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"}}  # fmt: skip
MERGE = "application/merge-patch+json"


class Hands:
    """Pods and Jobs on a cluster."""

    def __init__(self, k8s: FakeCluster) -> None:
        self.k8s = k8s
        self.core, self.batch = f"api/v1/namespaces/{k8s.namespace}", f"apis/batch/v1/namespaces/{k8s.namespace}"

    def spec(self, *containers: Plain, inits: tuple[Plain, ...] = (), **more: Any) -> Plain:
        return {"restartPolicy": "Never", "securityContext": SECURITY, "initContainers": list(inits),
                "automountServiceAccountToken": False, "containers": list(containers), **more}  # fmt: skip

    def pod(self, name: str, *containers: Plain, meta: Plain | None = None, **more: Any) -> None:
        """Create one."""
        plain = {"metadata": {"name": name, **(meta or {})}, "spec": self.spec(*containers, **more)}
        self.k8s.ask("POST", f"{self.core}/pods", plain)

    def get(self, name: str) -> Plain:
        return dict(self.k8s.ask("GET", f"{self.core}/pods/{name}"))

    def pods(self) -> list[Plain]:
        return list(self.k8s.ask("GET", f"{self.core}/pods")["items"])

    def wait(self, name: str, phase: str) -> Plain:
        eventually(lambda: self.get(name)["status"]["phase"] == phase, f"{name} is {phase}")
        return self.get(name)

    def log(self, name: str, container: str = "main", query: str = "") -> str:
        with self.k8s.open("GET", f"{self.core}/pods/{name}/log?container={container}{query}") as answer:
            return answer.read().decode()

    def await_log(self, name: str, text: str, container: str = "main") -> None:
        def said() -> bool:
            try:
                return text in self.log(name, container)
            except AssertionError as refusal:
                assert "is waiting to start" in str(refusal), refusal
                return False

        eventually(said, f"{text} in {name}'s log")

    def started(self, name: str, container: str = "main") -> bool:
        return "waiting" not in state_of(self.get(name), container)


def state_of(pod: Plain, container: str = "main") -> Plain:
    status = pod["status"]
    every = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return next((dict(one["state"]) for one in every if one["name"] == container), {"waiting": {}})


def sh(name: str, script: str, **more: Any) -> Plain:
    """A container that runs a script."""
    command = ["/bin/sh", "-c", script]
    return {"name": name, "image": "python:3", "command": command, "securityContext": CONFINED, **more}


def sidecar(script: str, **more: Any) -> Plain:
    return sh("side", script, restartPolicy="Always", **more)


@pytest.fixture
def hands(tmp_path: Path) -> Iterator[Hands]:
    kubelet = {"probe_s": 0.1, "backoff_s": 0.2, "sync_s": 0.05, "images": {"missing": ["*/absent:*"]}}
    with cluster(tmp_path, nodes=[node("n1", cpu="4", memory="4Gi", gpus=1)], kubelet=kubelet) as k8s:
        yield Hands(k8s)


def test_fake_kubelet_runs_container_with_own_user_root_and_environment(hands: Hands) -> None:
    script = """
    id -u; id -g; id -G; hostname; pwd; echo "$POD $SECRET $(cat /in/deep/key) $(cat /in/whole/other)"
    touch /x 2>/dev/null || echo read-only; touch /tmp/mine && ls /tmp; ls /root 2>&1 | head -1
    grep -c . /proc/self/mountinfo >/dev/null && kill -0 1 2>&1 | head -1
    env | grep -v '^PWD\\|^OLDPWD\\|^_=\\|^SHLVL' | cut -d= -f1 | sort | tr '\\n' ' '
    echo last words >/dev/termination-log; exit 7
    """
    hands.k8s.ask("POST", f"{hands.core}/configmaps", {"metadata": {"name": "plan"}, "data": {"key": "from a map"}})
    secret = {"metadata": {"name": "private"}, "stringData": {"key": "s3cret", "other": "o"}}
    hands.k8s.ask("POST", f"{hands.core}/secrets", secret)
    env = [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "private", "key": "key"}}},
    ]
    mounts = [
        {"name": "plan", "mountPath": "/in/deep", "readOnly": True}, {"name": "private", "mountPath": "/in/whole"},
        {"name": "tmp", "mountPath": "/tmp", "subPath": "of-main"},
    ]  # fmt: skip
    volumes = [
        {"name": "plan", "configMap": {"name": "plan"}}, {"name": "private", "secret": {"secretName": "private"}},
        {"name": "tmp", "emptyDir": {}},
    ]  # fmt: skip
    hands.pod("one", sh("main", script, env=env, volumeMounts=mounts), volumes=volumes, enableServiceLinks=False)
    ended = state_of(hands.wait("one", "Failed"))["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (7, "Error", "last words\n")
    said = hands.log("one").splitlines()
    assert said[:6] == ["1000", "1000", "1000", "one", "/", "one s3cret from a map o"]
    assert said[6:9] == ["read-only", "mine", "ls: cannot open directory '/root': Permission denied"]
    assert said[-1].split() == [
        "HOME", "HOSTNAME", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "PATH", "POD", "SECRET",
    ]  # fmt: skip


def test_fake_cluster_rejects_unsupported_pod_and_job_fields(hands: Hands) -> None:
    with pytest.raises(AssertionError, match=r"does not know, in Pod odd: spec\.hostPID"):
        hands.pod("odd", sh("main", "true"), hostPID=True)
    with pytest.raises(AssertionError, match=r"spec\.containers\.main\.livenessProbe\.httpGet"):
        hands.pod("odd", sh("main", "true", livenessProbe={"httpGet": {"port": 80}}))
    template = {"spec": hands.spec(sh("main", "true", stdin=True))}
    job = {"metadata": {"name": "odd"}, "spec": {"template": template}}
    with pytest.raises(AssertionError, match=r"in Job odd: spec\.containers\.main\.stdin"):
        hands.k8s.ask("POST", f"{hands.batch}/jobs", job)


def test_fake_kubelet_runs_sidecar_from_before_until_after_main_container(hands: Hands) -> None:
    side = sidecar("echo up; sleep 0.3; trap 'echo told; sleep 0.2; exit 3' TERM; sleep 99 & touch /p/open; wait",
                   startupProbe={"exec": {"command": ["test", "-e", "/p/open"]}, "failureThreshold": 1000},
                   volumeMounts=[{"name": "p", "mountPath": "/p"}])  # fmt: skip
    volumes = [{"name": "p", "emptyDir": {}}]
    main = sh("main", "ls /p; until n=$(ps -e -o args= | grep -c '^sleep 9[9]'); do sleep 0.1; done; echo $n",
              volumeMounts=[{"name": "p", "mountPath": "/p"}])  # fmt: skip
    hands.pod("two", main, inits=(side,), volumes=volumes, shareProcessNamespace=True)
    pod = hands.wait("two", "Succeeded")
    assert hands.log("two") == "open\n1\n", "both are in one process namespace"
    assert hands.log("two", "side") == "up\ntold\n"
    assert state_of(pod, "side")["terminated"]["exitCode"] == 3


def test_fake_kubelet_restarts_sidecar_that_exits(hands: Hands) -> None:
    side = sidecar("n=$(cat /p/n || echo 0); echo $((n+1)) >/p/n; echo run $n; [ $n -gt 0 ] && exec sleep 99",
                   volumeMounts=[{"name": "p", "mountPath": "/p"}])  # fmt: skip
    hands.pod("again", sh("main", "sleep 99"), inits=(side,), volumes=[{"name": "p", "emptyDir": {}}])
    hands.await_log("again", "run 1", "side")
    eventually(lambda: "running" in state_of(hands.get("again")), "the learner's container")
    (status,) = hands.get("again")["status"]["initContainerStatuses"]
    assert status["restartCount"] == 1
    assert "run 0\n" in hands.log("again", "side", "&previous=true")


def test_fake_kubelet_runs_pre_stop_hook_before_term_and_kill(hands: Hands) -> None:
    hook = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook >/proc/1/fd/1; touch /p/hooked"]}}}
    script = "trap 'echo term; ls /p; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    heeds = sh("main", script, lifecycle=hook, volumeMounts=[{"name": "p", "mountPath": "/p"}])
    ignores = sh("main", "trap '' TERM; echo up; while :; do sleep 0.05; done")
    # Who heeds it has the time for it; only who ignores it is waited for.
    for name, main, grace_s in (("stop", heeds, 60), ("deaf", ignores, 1)):
        hands.pod(name, main, volumes=[{"name": "p", "emptyDir": {}}], terminationGracePeriodSeconds=grace_s,
                  meta={"finalizers": ["example.com/read"]})  # fmt: skip
        hands.await_log(name, "up")
        hands.k8s.ask("DELETE", f"{hands.core}/pods/{name}")
    codes = [state_of(hands.wait(name, "Failed"))["terminated"]["exitCode"] for name in ("stop", "deaf")]
    assert codes == [3, 137]
    assert hands.log("stop").split() == ["up", "hook", "term", "hooked"]
    for name in ("stop", "deaf"):
        hands.k8s.ask("PATCH", f"{hands.core}/pods/{name}", {"metadata": {"finalizers": None}}, content=MERGE)
    eventually(lambda: not hands.pods(), "the pods are gone once nothing holds them")


def test_fake_kubelet_stops_updating_annotation_volume_after_pod_deletion(hands: Hands) -> None:
    item = {"path": "asked", "fieldRef": {"fieldPath": "metadata.annotations['x/request']"}}
    script = 'trap \'\' TERM; l=; while :; do w=$(cat /w/asked); [ "$w" = "$l" ] || echo got $w; l=$w; sleep 0.02; done'
    main = sh("main", script, volumeMounts=[{"name": "w", "mountPath": "/w", "readOnly": True}])
    hands.pod("heard", main, volumes=[{"name": "w", "downwardAPI": {"items": [item]}}], terminationGracePeriodSeconds=2,
              meta={"finalizers": ["example.com/read"]})  # fmt: skip
    eventually(lambda: hands.get("heard")["status"]["phase"] == "Running", "it runs")
    for number, ending in enumerate((False, True)):
        if ending:
            hands.k8s.ask("DELETE", f"{hands.core}/pods/heard")
        change = {"metadata": {"annotations": {"x/request": f"no-{number}"}}}
        hands.k8s.ask("PATCH", f"{hands.core}/pods/heard", change, content=MERGE)
        if not ending:
            hands.await_log("heard", "got no-0")
    hands.wait("heard", "Failed")
    assert hands.log("heard") == "got no-0\n"


def test_fake_kubelet_follows_logs_with_timestamps_and_since_time(hands: Hands) -> None:
    hands.pod("said", sh("main", "echo one; sleep 1.1; echo two; printf '%s' three; printf '%020000d\\n' 4"))
    eventually(lambda: hands.started("said"), "it runs")
    lines = hands.log("said", query="&follow=true&timestamps=true").splitlines()
    stamps = [line.split(" ", 1)[0] for line in lines]
    assert [line.split(" ", 1)[1][:5] for line in lines] == ["one", "two", "three"]
    assert stamps == sorted(stamps) and all(len(stamp) == len("2026-01-01T00:00:00.123456789Z") for stamp in stamps)
    assert len(lines[2]) > 20_000, "a long line is given whole, however the runtime cut it"
    assert hands.log("said", query=f"&sinceTime={stamps[1][:19]}Z").startswith("two\nthree")


def test_fake_kubelet_retries_image_pull_until_image_exists(hands: Hands) -> None:
    hands.pod("void", sh("main", "echo here", image="example.com/absent:1"))
    waits = eventually(lambda: state_of(hands.get("void")).get("waiting"), "it waits")
    eventually(lambda: state_of(hands.get("void"))["waiting"].get("reason") == "ImagePullBackOff", "backed off")
    assert waits and "not found" in state_of(hands.get("void"))["waiting"]["message"]
    hands.k8s.do("images", missing=[])
    hands.wait("void", "Succeeded")


def test_fake_kubelet_ends_pods_for_memory_deadline_and_node_pressure(hands: Hands) -> None:
    for name, limit_s in (("oom", None), ("late", 1), ("evicted", None)):
        hands.pod(name, sh("main", "echo up; exec sleep 99"), terminationGracePeriodSeconds=1,
                  activeDeadlineSeconds=limit_s)  # fmt: skip
    where = {"namespace": hands.k8s.namespace}
    hands.await_log("oom", "up")
    hands.k8s.do("out_of_memory", **where, pod="oom", container="main", whole=True)
    ended = state_of(hands.wait("oom", "Failed"))["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    hands.await_log("evicted", "up")
    hands.k8s.do("pressure", **where, pod="evicted", message="The node was low on resource: memory.")
    evicted = hands.wait("evicted", "Failed")
    target = next(one for one in evicted["status"]["conditions"] if one["type"] == "DisruptionTarget")
    assert (evicted["status"]["reason"], target["reason"]) == ("Evicted", "TerminationByKubelet")
    assert hands.wait("late", "Failed")["status"]["reason"] == "DeadlineExceeded"


def test_fake_kubelet_evicts_pod_when_empty_dir_exceeds_size_limit(hands: Hands) -> None:
    main = sh("main", "head -c 2000000 /dev/zero >/p/x; sleep 99", volumeMounts=[{"name": "p", "mountPath": "/p"}])
    hands.pod("full", main, volumes=[{"name": "p", "emptyDir": {"sizeLimit": "1Mi"}}])
    assert 'EmptyDir volume "p" exceeds the limit "1Mi"' in hands.wait("full", "Failed")["status"]["message"]


def headless(hands: Hands, name: str, job: str) -> None:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": job}}
    hands.k8s.ask("POST", f"{hands.core}/services", {"metadata": {"name": name}, "spec": spec})


def test_fake_cluster_resolves_pod_names_of_indexed_job_and_deletes_its_pods(hands: Hands) -> None:
    headless(hands, "gang", "gang")
    script = """
    until grep -q gang-1.gang /etc/hosts && grep -q gang-0.gang /etc/hosts; do sleep 0.02; done
    echo $JOB_COMPLETION_INDEX; until grep -q then.team /etc/hosts; do sleep 0.02; done
    """
    spec = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 0,
            "template": {"spec": hands.spec(sh("main", script), subdomain="gang")}}  # fmt: skip
    hands.k8s.ask("POST", f"{hands.batch}/jobs", {"metadata": {"name": "gang"}, "spec": spec})
    pods = {one["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]: one for one in hands.pods()}
    assert all(one["metadata"]["name"].startswith(f"gang-{index}-") for index, one in pods.items())
    for index, one in pods.items():
        hands.await_log(one["metadata"]["name"], f"{index}\n")
    headless(hands, "then", "gang")
    job = f"{hands.batch}/jobs/gang"

    def is_complete() -> bool:
        found = hands.k8s.ask("GET", job)["status"].get("conditions") or ()
        return any((one["type"], one["status"]) == ("Complete", "True") for one in found)

    eventually(is_complete, "it ends")
    hands.k8s.ask("DELETE", f"{job}?propagationPolicy=Background")
    eventually(lambda: not hands.pods(), "what a Job owns goes with it")


def test_fake_cluster_deletes_pods_of_lost_node(hands: Hands) -> None:
    lost = [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute",
             "tolerationSeconds": 0}]  # fmt: skip
    hands.pod("there", sh("main", "echo up; exec sleep 99"), tolerations=lost, terminationGracePeriodSeconds=1)
    hands.await_log("there", "up")
    hands.k8s.do("lose_node", node="n1")
    pod = eventually(lambda: hands.get("there")["metadata"].get("deletionTimestamp") and hands.get("there"), "deleted")
    target = next(one for one in pod["status"]["conditions"] if one["type"] == "DisruptionTarget")
    assert target["reason"] == "DeletionByTaintManager"
    with pytest.raises(AssertionError, match="connection refused"):
        hands.log("there")
    hands.k8s.do("delete_node", node="n1")
    eventually(lambda: not hands.pods(), "the pod garbage collector deletes it")


def test_fake_kubelet_late_container_cleanup_spares_other_containers(hands: Hands, tmp_path: Path) -> None:
    """Who ends what is left of it comes late, when another container's mounts may have been given its number."""
    with preloaded.Popen(["unshare", "--ipc", "cat"], stdin=subprocess.PIPE) as lower:
        # Two dollars stand for one in a command.
        hands.pod("early", sh("main", f"echo up; : {tmp_path}; kill -STOP $$$$"), shareProcessNamespace=True)
        hands.await_log("early", "up")
    assert lower.returncode == 0  # its number is free, too: the next container's process namespace has it
    (first,) = [pid for pid in _processes() if f": {tmp_path};" in _words(pid)]
    parent = int(_stat(first)[1])
    os.kill(parent, signal.SIGSTOP)
    try:
        eventually(lambda: _stat(parent)[0] == "T", "its parent is stopped")
        os.kill(first, signal.SIGKILL)
        eventually(lambda: _stat(first)[0] == "Z", "the first has ended, and nobody noticed")
        hands.pod("late", sh("main", "echo up; sleep 1; echo through"))
        hands.await_log("late", "up")
    finally:
        os.kill(parent, signal.SIGCONT)
    hands.wait("early", "Failed")
    hands.wait("late", "Succeeded")
    assert hands.log("late") == "up\nthrough\n"


def test_fake_cluster_leaves_no_process_or_mount_after_close(tmp_path: Path) -> None:
    with cluster(tmp_path, kubelet={}) as k8s:
        hands = Hands(k8s)
        hands.pod("left", sh("main", f"echo up; trap '' TERM; : {tmp_path}; setsid sleep 98 & sleep 97"))
        hands.await_log("left", "up")
        inside = [pid for pid in _processes() if str(tmp_path) in _words(pid)]
        assert inside
    assert not [pid for pid in inside if Path(f"/proc/{pid}").exists()]
    assert str(tmp_path / "kubernetes/pods") not in Path("/proc/self/mountinfo").read_text()


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and int(path.name) > 1]


def _stat(pid: int) -> list[str]:
    """State, parent and what follows in /proc/PID/stat."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
