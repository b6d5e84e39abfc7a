"""The whole cluster in one process: what it is made of, and how it is begun."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.kubernetes.authorization import Authorizer
from tests.fakes.kubernetes.certificates import Pair, server_context
from tests.fakes.kubernetes.collector import Collector
from tests.fakes.kubernetes.conditions import disrupt
from tests.fakes.kubernetes.faults import Faults
from tests.fakes.kubernetes.job_controller import JobController
from tests.fakes.kubernetes.kinds import NAMESPACES, NODES, PODS, Obj, key_of
from tests.fakes.kubernetes.kubelet.conduct import conduct_of
from tests.fakes.kubernetes.kubelet.known import refuse_unknown
from tests.fakes.kubernetes.kubelet.kubelet import Kubelets
from tests.fakes.kubernetes.nodes import NodeLifecycle, make_node
from tests.fakes.kubernetes.registry import Registry
from tests.fakes.kubernetes.routes import Routes
from tests.fakes.kubernetes.scheduler import Scheduler
from tests.fakes.kubernetes.serving import ApiServer
from tests.fakes.kubernetes.store import Store
from tests.fakes.kubernetes.watching import Lists, Watches
from tests.fakes.kubernetes.web import WebServer


@dataclass(frozen=True)
class Knobs:
    """How the cluster is. `tokens` is token -> (user, groups); `place` is for files of kubelets and claims. `kubelet`
    is how kubelets are (:func:`tests.fakes.kubernetes.kubelet.conduct.conduct_of`); without it pods get a node, and
    stay pending there."""

    place: str
    authority: str
    certificate: str
    key: str
    tokens: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    nodes: list[Obj] = field(default_factory=list)
    release: str = "1.36"
    kueue: bool = False
    kubelet: Obj | None = None
    history: int = 10_000
    bookmark_s: float = 60.0
    create_retry_s: float = 1.0
    collect_s: float = 0.1


class Cluster:
    """Everything, wired."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.store = Store(keep=knobs.history)
        self.registry = Registry(self.store, knobs.release)
        self.routes = Routes(kueue=knobs.kueue)
        self.lists, self.watches = Lists(self.store), Watches(self.store, knobs.bookmark_s)
        self.faults = Faults()
        self.authorizer = Authorizer(self.store, dict(knobs.tokens))
        self.api = ApiServer(self.registry, self.authorizer, self.routes, self.lists, self.watches, self.faults)
        self.jobs = JobController(self.registry, knobs.create_retry_s)
        self.collector = Collector(self.registry, self.routes.kinds, knobs.collect_s)
        self.scheduler = Scheduler(self.registry)
        self.nodes = NodeLifecycle(self.registry)
        self.kubelets: Kubelets | None = None
        if knobs.kubelet is not None:
            self.registry.admission.checks.append(refuse_unknown)
            self.kubelets = Kubelets(self.registry, conduct_of(knobs.kubelet), Path(knobs.place))
            self.api.log_of, self.api.execute_in = self.kubelets.log_of, self.kubelets.execute_in
        tls = server_context(Pair(Path(knobs.certificate), Path(knobs.key)), Path(knobs.authority))
        self.web = WebServer(self.api.answer, tls)
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Begin to serve; the nodes and namespaces of the knobs are there."""
        for loop in (self.jobs.queue, self.collector.queue, self.scheduler.queue, self.nodes.queue):
            self._tasks.append(asyncio.create_task(loop.run()))
        for name in ("default", "kube-system"):
            self.registry.create(NAMESPACES, "", {"metadata": {"name": name}})
        for name, labels in self.knobs.namespaces.items():
            self.registry.create(NAMESPACES, "", {"metadata": {"name": name, "labels": dict(labels)}})
        for wish in self.knobs.nodes:
            self.store.insert(NODES, make_node(wish, self.knobs.release))
        await self.web.start()
        self.api.address = f"127.0.0.1:{self.web.port}"

    async def stop(self) -> None:
        """End all."""
        await self.web.stop()
        if self.kubelets is not None:
            await self.kubelets.stop()
        for task in self._tasks:
            task.cancel()

    def evict(self, pod: Obj, reason: str = "EvictionByEvictionAPI", message: str = "Eviction API: evicting") -> None:
        """End a pod for the cluster's sake."""
        self.registry.change(PODS, *key_of(pod), lambda one: disrupt(one, reason, message))
        self.registry.delete(PODS, *key_of(pod))
