"""A cluster for a test: ``with cluster(tmp_path, nodes=[node("a"), node("b", gpus=4)]) as k8s: ...``."""

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
from tests.fakes.kubernetes.certificates import make_certificate, write_kubeconfig

ROOT = Path(__file__).resolve().parents[3]
STOP_S, ANSWER_S = 60, 120
NAMESPACE = "team-vision"


def node(name: str, *, cpu: str = "8", memory: str = "32Gi", gpus: int = 0, **more: Any) -> dict[str, Any]:
    """Return a node; `more`: ``labels``, ``taints``, ``pods``."""
    return {"name": name, "cpu": cpu, "memory": memory, "resources": {"nvidia.com/gpu": gpus} if gpus else {}, **more}


class FakeCluster:
    """A running cluster. `kubeconfig` is the administrator's, by token; `namespace` is empty."""

    def __init__(self, place: Path, knobs: dict[str, Any]) -> None:
        self.place, self.namespace, self.log = place, NAMESPACE, place / "cluster.log"
        place.mkdir(parents=True)
        self.authority, certificate = make_certificate(place)
        self._token = secrets.token_hex(16)
        plain = {
            "place": str(place), "certificate": str(certificate),
            "tokens": {self._token: ("admin", ["system:masters"])},
            "namespaces": {NAMESPACE: {"pod-security.kubernetes.io/enforce": "restricted"}}, **knobs,
        }  # fmt: skip
        file = place / "knobs.json"
        file.write_text(json.dumps(plain))
        with self.log.open("wb") as output:
            self._process = preloaded.Popen(
                [sys.executable, "-m", "tests.fakes.kubernetes", str(file)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, cwd=ROOT,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.log.read_text()
        ports = json.loads(line)
        self.url, self._control = f"https://127.0.0.1:{ports['port']}", f"http://127.0.0.1:{ports['control']}"
        self.kubeconfig = self._write_kubeconfig("admin", self._token)

    def kubeconfig_of(self, user: str) -> Path:
        """Return a kubeconfig for a user, new ones included; what they may do is up to roles."""
        token = secrets.token_hex(16)
        self.do("token", token=token, user=user, groups=[])
        return self._write_kubeconfig(user, token)

    def grant(self, user: str, rules: Any, *, everywhere: bool = False) -> None:
        """Give a user a role with these rules, in the namespace or `everywhere`."""
        group, kind = "rbac.authorization.k8s.io", "ClusterRole" if everywhere else "Role"
        path = f"apis/{group}/v1" + ("" if everywhere else f"/namespaces/{self.namespace}")
        meta = {"name": f"role-of-{user}"}
        self.ask("POST", f"{path}/{kind.lower()}s", {"metadata": meta, "rules": rules})
        self.ask("POST", f"{path}/{kind.lower()}bindings", {
            "metadata": meta, "roleRef": {"apiGroup": group, "kind": kind, "name": meta["name"]},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        })  # fmt: skip

    def _write_kubeconfig(self, user: str, token: str) -> Path:
        file = self.place / f"{user}.kubeconfig"
        return write_kubeconfig(file, self.url, self.authority, namespace=self.namespace, token=token)

    def do(self, command: str, /, **given: Any) -> Any:
        """Send one request to the control port (:class:`tests.fakes.kubernetes.cluster.Control`)."""
        request = urllib.request.Request(f"{self._control}/{command}", json.dumps(given).encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                return json.load(answer)["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["error"]) from None

    def ask(self, method: str, path: str, body: object = None, *, content: str = "application/json") -> Any:
        """Send a request of the administrator's; return its answer as plain objects. Raises AssertionError with a
        refusal."""
        with self.open(method, path, body, content=content) as answer:
            return json.load(answer)

    def open(self, method: str, path: str, body: object = None, *, content: str = "application/json") -> HTTPResponse:
        """Do the same, with an answer that is read as it comes."""
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
        """Let requests meet ``drop``, ``status`` or ``slow``; see :class:`tests.fakes.kubernetes.web.Fault`."""
        self.do("fault", what=what, **given)

    def counts(self, *, reset: bool = False) -> dict[str, int]:
        """Return requests since the start or since the last reset, by verb and resource."""
        return dict(self.do("counts", reset=reset))

    def stop(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@contextlib.contextmanager
def cluster(place: Path, *, nodes: Sequence[dict[str, Any]] | None = None, **knobs: Any) -> Iterator[FakeCluster]:
    """Run a cluster with these nodes; `knobs` are those of :class:`tests.fakes.kubernetes.cluster.Knobs`."""
    found = FakeCluster(place / "kubernetes", {"nodes": list(nodes or [node("node-a")]), **knobs})
    try:
        yield found
    finally:
        found.stop()


def eventually(check: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    """Return the first true answer of `check`; fail when none came in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not so after {seconds} s: {what}")
