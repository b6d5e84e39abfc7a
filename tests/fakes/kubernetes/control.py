"""What a test may do to the cluster: requests ``POST /<name>`` with JSON, on a port of its own."""

from __future__ import annotations

import json
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from tests.fakes.kubernetes.cluster import Cluster
from tests.fakes.kubernetes.kinds import NODES, PODS
from tests.fakes.kubernetes.kubelet.kubelet import Kubelets
from tests.fakes.kubernetes.kubelet.process import Running
from tests.fakes.kubernetes.registry import Deletion
from tests.fakes.kubernetes.web import Request, Response

Given = dict[str, Any]


class Control:
    """One method for each wish, all take and give JSON."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def answer(self, request: Request) -> Response:
        """One wish."""
        method: Callable[[Given], Awaitable[Any]] | None = getattr(self, f"do_{request.path.strip('/')}", None)
        if method is None:
            return Response(404, json.dumps({"error": f"no such wish: {request.path}"}).encode())
        try:
            found = await method(json.loads(request.body or b"{}"))
        except Exception:  # noqa: BLE001 - told to the test
            return Response(500, json.dumps({"error": traceback.format_exc()}).encode())
        return Response(200, json.dumps({"result": found}).encode())

    async def do_token(self, given: Given) -> None:
        self._cluster.authorizer.tokens[given["token"]] = (given["user"], given["groups"])

    async def do_forget_token(self, given: Given) -> None:
        """As one that has expired."""
        del self._cluster.authorizer.tokens[given["token"]]

    async def do_fault(self, given: Given) -> None:
        self._cluster.faults.add(given)

    async def do_clear_faults(self, given: Given) -> None:
        self._cluster.faults.clear()

    async def do_expire(self, given: Given) -> None:
        """All versions but the latest are too old; `by_status`: watches are refused with the status 410."""
        self._cluster.store.expire()
        self._cluster.lists.forget()
        self._cluster.watches.refuse_by_status = bool(given.get("by_status"))

    async def do_close_watches(self, given: Given) -> int:
        return self._cluster.watches.close(given.get("plural", ""))

    async def do_webhook(self, given: Given) -> None:
        """Refuse creations of a kind in a webhook's name; without a message no longer."""
        webhooks = self._cluster.registry.admission.webhooks
        webhooks[:] = [one for one in webhooks if one[0] != given["plural"]]
        if given.get("message"):
            webhooks.append((given["plural"], given.get("name", "policy.example.com"), given["message"]))

    async def do_evict(self, given: Given) -> None:
        self._cluster.evict(self._cluster.registry.get(PODS, given["namespace"], given["pod"]))

    async def do_lose_node(self, given: Given) -> None:
        """Nothing is heard of a node; with `power` its processes go on."""
        if self._cluster.kubelets is not None:
            self._cluster.kubelets.silence(given["node"], power=bool(given.get("power")))
        self._cluster.nodes.lose(given["node"])

    async def do_recover_node(self, given: Given) -> None:
        self._cluster.nodes.recover(given["node"])
        if self._cluster.kubelets is not None:
            self._cluster.kubelets.resume(given["node"])

    async def do_pressure(self, given: Given) -> None:
        """The pod's node throws it out for want of something."""
        self._kubelets.evict(given["namespace"], given["pod"], given["message"])

    async def do_out_of_memory(self, given: Given) -> None:
        """The kernel kills the container's largest process, or with `whole` the container."""
        self._running(given).run_out_of_memory(whole=bool(given.get("whole")))

    async def do_kill(self, given: Given) -> None:
        """Every process of a container dies."""
        self._running(given).kill()

    async def do_rotate(self, given: Given) -> None:
        """A container's log begins anew."""
        self._running(given).rotate()

    async def do_images(self, given: Given) -> None:
        """Names (patterns) that no registry has from now on."""
        self._kubelets.conduct.images.missing[:] = given["missing"]

    async def do_detach(self, given: Given) -> None:
        """Claims whose volumes cannot be attached to nodes from now on, and why."""
        detached = self._kubelets.conduct.detached
        detached.clear()
        detached.update(given["claims"])

    @property
    def _kubelets(self) -> Kubelets:
        assert self._cluster.kubelets is not None, "this cluster has no kubelets: give the knob `kubelet`"
        return self._cluster.kubelets

    def _running(self, given: Given) -> Running:
        running = self._kubelets.worker(given["namespace"], given["pod"]).slot(given["container"]).running
        assert running is not None, f"container {given['container']} does not run"
        return running

    async def do_delete_node(self, given: Given) -> None:
        self._cluster.registry.delete(NODES, "", given["node"], Deletion())

    async def do_pause(self, given: Given) -> None:
        """Controllers that do nothing: ``jobs``, ``scheduler``, ``collector``, ``nodes``."""
        getattr(self._cluster, given["controller"]).queue.paused = bool(given.get("paused", True))

    async def do_counts(self, given: Given) -> Given:
        """Requests by verb and resource, and open watches."""
        found: Given = {"requests": dict(self._cluster.api.counts), "watches": self._cluster.watches.open}
        if given.get("reset"):
            self._cluster.api.counts.clear()
        return found
