"""What pods print is read by one connection each: of very many pods at once, and over connections that died unheard."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.launch.pod_protocol import Frame, FrameKind, encode_frame
from ffdl_kubernetes.connection import load_config
from ffdl_kubernetes.observing import log_follower
from ffdl_kubernetes.observing.log_follower import Follower
from ffdl_kubernetes.settings import KubernetesSettings
from tests.fakes.kubernetes.certificates import make_certificate, write_kubeconfig
from tests.fakes.kubernetes.rig import eventually
from tests.fakes.kubernetes.web import Request, Response, WebServer

PODS = 130
"""More than an HTTP client opens connections by default."""


class Ear:
    """A listener that keeps what it hears: (pod, number of the line)."""

    def __init__(self) -> None:
        self.heard: set[tuple[str, int]] = set()

    def on_frame(self, pod: str, frame: Frame, at: float) -> None:
        self.heard.add((pod, frame.n))

    def on_end(self, pod: str) -> None:
        raise AssertionError(f"{pod} is not silent")


def line(number: int) -> bytes:
    """As kubelet gives it, with its time."""
    frame = Frame(1, number, FrameKind.APPEND, "events/node-0.jsonl", 0, b"{}\n")
    return f"2026-01-02T03:04:0{number}.000000000Z {encode_frame(frame)}\n".encode()


@contextlib.contextmanager
def server(logs: Callable[[str, int], AsyncIterator[bytes]]) -> Iterator[str]:
    """Serves the logs of any pod: `logs` is given its name and how often it was asked for before."""
    asked: dict[str, int] = {}
    loop, web = asyncio.new_event_loop(), []

    async def answer(request: Request) -> Response:
        pod = request.path.split("/")[-2]
        before = asked.get(pod, 0)
        asked[pod] = before + 1
        return Response(200, media="text/plain", stream=logs(pod, before))

    async def start() -> None:
        web.append(WebServer(answer))
        await web[0].start()

    async def end() -> None:
        """A task that is left when the loop is closed complains later, in the midst of another test."""
        await web[0].stop()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await loop.shutdown_asyncgens()

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{web[0].port}"
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def follower(place: Path, url: str, ear: Ear) -> Iterator[Follower]:
    file = place / "kubeconfig"
    file.write_text(
        json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": url}}], "users": [{"name": "it", "user": {}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": "jobs"}}],
        })
    )  # fmt: skip
    with follower_of(file, ear) as found:
        yield found


@contextlib.contextmanager
def follower_of(file: Path, ear: Ear) -> Iterator[Follower]:
    settings = KubernetesSettings(kubeconfig=str(file), request_timeout_s=60)
    found = Follower(settings, lambda: str(load_config(settings).context.namespace), ear)
    try:
        yield found
    finally:
        found.stop()


async def one_line(pod: str, before: int) -> AsyncIterator[bytes]:
    """And then nothing for ever."""
    yield line(before + 1)
    await asyncio.Event().wait()


def test_follower_reads_logs_of_many_pods_at_once(tmp_path: Path) -> None:
    ear, pods = Ear(), [f"pod-{number}" for number in range(PODS)]
    with server(one_line) as url, follower(tmp_path, url, ear) as found:
        for pod in pods:
            found.follow(pod)
        eventually(lambda: ear.heard == {(pod, 1) for pod in pods}, "each pod's first line was read")


@pytest.mark.parametrize("begun", [False, True])
def test_follower_resumes_reading_after_kubeconfig_was_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """Without `namespace` in the settings it is the file that says where the pods are."""
    monkeypatch.setattr(log_follower, "PAUSE_S", 0.05)
    breaks = threading.Event()

    async def one_line_at_a_time(pod: str, before: int) -> AsyncIterator[bytes]:
        yield line(before + 1)
        while not breaks.is_set():
            await asyncio.sleep(0.02)

    ear, file, away = Ear(), tmp_path / "kubeconfig", tmp_path / "away"
    with server(one_line_at_a_time) as url, follower(tmp_path, url, ear) as found:
        if begun:
            found.follow("pod")
            eventually(lambda: ("pod", 1) in ear.heard, "its first line was read")
        file.rename(away)
        found.follow("pod")
        breaks.set()
        time.sleep(0.3)
        away.rename(file)
        eventually(lambda: ("pod", 1 + begun) in ear.heard, "it is read again")


def test_follower_reconnects_when_log_stream_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "SILENT_S", 0.2)
    ear = Ear()
    with server(one_line) as url, follower(tmp_path, url, ear) as found:
        found.follow("pod")
        # A busy machine may take longer than that to bring the line, too.
        eventually(lambda: any(number > 1 for _, number in set(ear.heard)), "the log was asked for again")


def test_follower_closes_connection_of_pod_that_is_gone_before_tls_handshake_is_done(tmp_path: Path) -> None:
    authority, certificate = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        file = write_kubeconfig(tmp_path / "kubeconfig", url, authority, namespace="jobs", token="t")
        with follower_of(file, Ear()) as found:
            found.follow("pod")
            connection, _ = server.accept()
            connection.settimeout(300)
            found.forget("pod")
            eventually(lambda: not found._tasks, "reading was cancelled")
            with context.wrap_socket(connection, server_side=True) as answering:
                while answering.recv(65536):
                    pass
    gc.collect()  # a connection that is left open fails the test by its ResourceWarning
