"""A cluster for a test.

::

    with cluster(tmp_path, nodes=[node("a"), node("b", gpus=4)]) as k8s:
        client = lightkube.Client(KubeConfig.from_file(k8s.kubeconfig))
        k8s.fault("status", method="POST", path="/jobs", code=429, retry_after=1)
"""

from __future__ import annotations

import contextlib
import json
import secrets
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from tests import preloaded
from tests.fakes.kubernetes.certificates import Authority, write_kubeconfig

ROOT = Path(__file__).resolve().parents[3]
START_S, STOP_S = 30, 60
ANSWER_S = 120
NAMESPACE = "team-vision"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
MASTERS = "system:masters"


def node(name: str, *, cpu: str = "8", memory: str = "32Gi", gpus: int = 0, **more: Any) -> dict[str, Any]:
    """A node; `more`: ``labels``, ``taints``, ``resources``, ``pods``."""
    resources = dict(more.pop("resources", {}))
    if gpus:
        resources["nvidia.com/gpu"] = gpus
    return {"name": name, "cpu": cpu, "memory": memory, "resources": resources, **more}


class FakeCluster:
    """A running cluster. `kubeconfig` is the administrator's, by token; `namespace` is there and empty."""

    def __init__(self, place: Path, knobs: dict[str, Any]) -> None:
        self.place, self.namespace = place, NAMESPACE
        place.mkdir(parents=True, exist_ok=True)
        self._authority = Authority(place / "certificates")
        self.authority = self._authority.file
        server = self._authority.server()
        self._token = secrets.token_hex(16)
        self.log = place / "cluster.log"
        tokens = {self._token: ("admin", [MASTERS])}
        namespaces = {NAMESPACE: dict(RESTRICTED)}
        plain = {
            "place": str(place), "authority": str(self.authority), "certificate": str(server.certificate),
            "key": str(server.key), "tokens": tokens, "namespaces": namespaces, **knobs,
        }  # fmt: skip
        file = place / "knobs.json"
        file.write_text(json.dumps(plain))
        with self.log.open("wb") as output:
            self.process = preloaded.Popen(
                [sys.executable, "-m", "tests.fakes.kubernetes", str(file)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, cwd=ROOT,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        ports = json.loads(line)
        self.url, self._control = f"https://127.0.0.1:{ports['port']}", f"http://127.0.0.1:{ports['control']}"
        self.kubeconfig = self.kubeconfig_of("admin")

    def kubeconfig_of(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig for a user, new ones included; what they may do is up to roles."""
        file = self.place / f"{user.replace(':', '-').replace('/', '-')}.kubeconfig"
        token = self._token
        if user != "admin":
            token = secrets.token_hex(16)
            self.do("token", token=token, user=user, groups=list(groups))
        return write_kubeconfig(file, self.url, self.authority, namespace=self.namespace, token=token)

    def do(self, wish: str, **given: Any) -> Any:
        """One wish of the control port (:mod:`tests.fakes.kubernetes.control`)."""
        request = urllib.request.Request(f"{self._control}/{wish}", json.dumps(given).encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                return json.load(answer)["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["error"]) from None

    def ask(self, method: str, path: str, body: object = None, *, content: str = "application/json") -> Any:
        """A request of the administrator's, and its answer as plain objects; AssertionError with a refusal."""
        with self.open(method, path, body, content=content) as answer:
            return json.load(answer)

    def open(self, method: str, path: str, body: object = None, *, content: str = "application/json") -> HTTPResponse:
        """The same, of which the answer is read as it comes."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data, headers, method=method)
        trusted = ssl.create_default_context(cafile=str(self.authority))
        try:
            answer: HTTPResponse = urllib.request.urlopen(request, timeout=ANSWER_S, context=trusted)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()}") from None
        return answer

    def fault(self, what: str, **given: Any) -> None:
        """``drop``, ``reset``, ``status`` or ``slow``; see :class:`tests.fakes.kubernetes.faults.Fault`."""
        self.do("fault", what=what, **given)

    def counts(self, *, reset: bool = False) -> dict[str, int]:
        """Requests since the start or since the last reset, by verb and resource."""
        return dict(self.do("counts", reset=reset)["requests"])

    def stop(self) -> None:
        """End the cluster and every process in it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@contextlib.contextmanager
def cluster(place: Path, *, nodes: Sequence[dict[str, Any]] | None = None, **knobs: Any) -> Iterator[FakeCluster]:
    """A cluster with these nodes; `knobs` are those of :class:`tests.fakes.kubernetes.cluster.Knobs`."""
    found = FakeCluster(place / "kubernetes", {"nodes": list(nodes or [node("node-a")]), **knobs})
    try:
        yield found
    finally:
        found.stop()


def eventually(check: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    """The first true answer of `check`; fails when none came in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not so after {seconds} s: {what}")
