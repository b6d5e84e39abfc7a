"""The whole cluster in one process: what it is made of, how it is begun, and what a test may do to it."""

from __future__ import annotations

import asyncio
import json
import ssl
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.kubernetes.authorization import Authorizer
from tests.fakes.kubernetes.collector import Collector
from tests.fakes.kubernetes.jobs import JobController
from tests.fakes.kubernetes.kinds import NAMESPACES, NODES, PODS, Obj
from tests.fakes.kubernetes.kubelet.conduct import conduct_of
from tests.fakes.kubernetes.kubelet.kubelet import Kubelets
from tests.fakes.kubernetes.kubelet.process import Process
from tests.fakes.kubernetes.nodes import NodeLifecycle, Scheduler, make_node
from tests.fakes.kubernetes.objects import disrupt
from tests.fakes.kubernetes.registry import Registry
from tests.fakes.kubernetes.routes import Routes
from tests.fakes.kubernetes.serving import ApiServer
from tests.fakes.kubernetes.store import Store
from tests.fakes.kubernetes.web import Fault, Request, Response, WebServer


@dataclass(frozen=True)
class Knobs:
    """How the cluster is. `tokens` is token -> (user, groups); `place` is for files of kubelets and claims. `kubelet`
    is how kubelets are (:func:`tests.fakes.kubernetes.kubelet.conduct.conduct_of`); without it pods get a node, and
    stay pending there."""

    place: str
    certificate: str
    tokens: dict[str, tuple[str, list[str]]]
    namespaces: dict[str, dict[str, str]]
    nodes: list[Obj] = field(default_factory=list)
    release: str = "1.36"
    kueue: bool = False
    kubelet: Obj | None = None


class Cluster:
    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.store = Store()
        self.registry = Registry(self.store, knobs.release)
        routes = Routes(kueue=knobs.kueue)
        self.authorizer = Authorizer(self.store, dict(knobs.tokens))
        self.api = ApiServer(self.registry, self.authorizer, routes)
        self.jobs, self.collector = JobController(self.registry), Collector(self.registry, routes.kinds)
        self.scheduler, self.nodes = Scheduler(self.registry), NodeLifecycle(self.registry)
        self.kubelets: Kubelets | None = None
        if knobs.kubelet is not None:
            self.kubelets = Kubelets(self.registry, conduct_of(knobs.kubelet), Path(knobs.place))
            self.api.log_of, self.api.execute_in = self.kubelets.log_of, self.kubelets.execute_in
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(knobs.certificate)
        self.web = WebServer(self.api.answer, tls)
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Begin to serve, with the nodes and namespaces of the knobs."""
        for controller in (self.jobs, self.collector, self.scheduler, self.nodes):
            self._tasks.append(asyncio.create_task(controller.queue.run()))
        for name, labels in {"default": {}, "kube-system": {}, **self.knobs.namespaces}.items():
            self.registry.create(NAMESPACES, "", {"metadata": {"name": name, "labels": dict(labels)}})
        for given in self.knobs.nodes:
            self.store.insert(NODES, make_node(given))
        await self.web.start()

    async def stop(self) -> None:
        await self.web.stop()
        if self.kubelets is not None:
            await self.kubelets.stop()
        for task in self._tasks:
            task.cancel()


class Control:
    """What a test may do to the cluster: requests ``POST /<name>`` with JSON, on a port of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, api, registry = cluster, cluster.api, cluster.registry
        tokens = cluster.authorizer.tokens
        self._commands: dict[str, Callable[..., object]] = {
            "token": lambda token, user, groups: tokens.update({token: (user, groups)}),
            "tokens": lambda: dict(tokens),
            "forget_token": lambda token: tokens.pop(token),  # noqa: PLW0108 - called by keyword
            "fault": lambda **fault: api.faults.append(Fault(**fault)),
            "clear_faults": api.faults.clear,
            "counts": self._counts,
            "used": lambda user: [rest for name, *rest in cluster.authorizer.used if name == user],
            "expire": cluster.store.expire,
            "close_watches": api.watches.close,
            "webhook": lambda plural, name, message: registry.admission.webhooks.append((plural, name, message)),
            "pause": self._pause,
            "evict": self._evict,
            "lose_node": self._lose_node,
            "delete_node": lambda node: registry.delete(NODES, "", node),
            # The pod's node throws it out for want of something.
            "pressure": lambda namespace, pod, message: self._kubelets.worker(namespace, pod).evicted(message),
            # The kernel kills the container's largest process, or with `whole` the container.
            "out_of_memory": lambda whole, **where: self._running(**where).run_out_of_memory(whole=whole),
            "kill": lambda **where: self._running(**where).kill(),
            "rotate": lambda **where: self._running(**where).rotate(),
            "images": self._set_missing_images,
            "detach": self._set_detached_claims,
        }

    async def answer(self, request: Request) -> Response:
        try:
            found = self._commands[request.path.strip("/")](**json.loads(request.body))
            return Response(200, json.dumps({"result": found}).encode())
        except Exception:  # noqa: BLE001 - the test gets it
            return Response(500, json.dumps({"error": traceback.format_exc()}).encode())

    def _counts(self, reset: bool) -> dict[str, int]:
        """Return requests by verb and resource."""
        found = dict(self._cluster.api.counts)
        if reset:
            self._cluster.api.counts.clear()
        return found

    def _pause(self, controller: str, paused: bool = True) -> None:
        """Let a controller do nothing: ``jobs``, ``scheduler``, ``collector``, ``nodes``."""
        getattr(self._cluster, controller).queue.paused = paused

    def _evict(self, namespace: str, pod: str) -> None:
        """The Eviction API."""
        registry, message = self._cluster.registry, "Eviction API: evicting"
        registry.change(PODS, namespace, pod, lambda one: disrupt(one, "EvictionByEvictionAPI", message))
        registry.delete(PODS, namespace, pod)

    def _lose_node(self, node: str) -> None:
        """Hear nothing of a node, whose processes end."""
        if self._cluster.kubelets is not None:
            self._cluster.kubelets.silence(node)
        self._cluster.nodes.lose(node)

    def _set_missing_images(self, missing: list[str]) -> None:
        """Set the names (patterns) of images that no registry has."""
        self._kubelets.conduct.images.missing[:] = missing

    def _set_detached_claims(self, claims: dict[str, str]) -> None:
        """Set the claims whose volumes cannot be attached to nodes, and why."""
        self._kubelets.conduct.detached.clear()
        self._kubelets.conduct.detached.update(claims)

    @property
    def _kubelets(self) -> Kubelets:
        assert self._cluster.kubelets is not None, "this cluster has no kubelets: give the knob `kubelet`"
        return self._cluster.kubelets

    def _running(self, namespace: str, pod: str, container: str) -> Process:
        running = self._kubelets.worker(namespace, pod).slot(container).running
        assert isinstance(running, Process), f"container {container} does not run"
        return running
