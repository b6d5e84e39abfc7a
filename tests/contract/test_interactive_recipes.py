"""The recipes of docs/interactive.md with the real Jupyter and TensorBoard: real daemon, local backend, no network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.contract.daemon_rig import PLAIN, Site, site_in, until
from tests.contract.test_port_forward import forwarded
from tests.preloaded import FFDL

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "jupyter"
PACKAGES = ("jupyterlab==4.6.6", "tensorboard==2.21.0", "setuptools==65.5.0")
"""TensorBoard imports pkg_resources, which the newest releases of setuptools do not have."""
WRITE = """\
import time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

writer = EventFileWriter(".")
summary = Summary(value=[Summary.Value(tag="loss", simple_value=0.25)])
writer.add_event(Event(wall_time=time.time(), step=7, summary=summary))
writer.flush()
print("ready", flush=True)
time.sleep(600)
"""
MANIFEST = """\
name: board
framework: {name: custom, version: python-numpy, command: python3 train.py}
memory: 100MB
batch: {network: none}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A daemon whose learners have the packages."""
    place, base = tmp_path_factory.mktemp("packages"), tmp_path_factory.mktemp("recipes")
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    subprocess.run([f"{place}/bin/pip", "-q", "install", *PACKAGES], check=True)
    environment = {"FFDL_BACKEND": "local", "PATH": f"{place}/bin:{os.environ['PATH']}"}
    with site_in(base, more_environment=environment) as made:
        made.launch(program=PLAIN)
        until(made.is_served, lambda: f"the daemon to answer; its log:\n{made.log}")
        yield made
    shutil.rmtree(place)


def fetch(port: int, path: str, body: object = None, token: str = "") -> Any:
    """The JSON that a server answers; it may not listen yet."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", None if body is None else json.dumps(body).encode()
    )
    if token:
        request.add_header("Authorization", f"token {token}")
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def answers(port: int, path: str, token: str = "") -> Any:
    try:
        return fetch(port, path, token=token)
    except OSError:
        return None


@pytest.mark.full
def test_jupyter_recipe_serves_notebooks_that_are_stored_at_halt(site: Site) -> None:
    port = 21_000 + os.getpid() % 10_000
    manifest = site.directory / "jupyter.yml"
    text = (EXAMPLE / "manifest.yml").read_text().replace("--port 8888", f"--port {port}")
    manifest.write_text(text.replace("cpus: 1\n", "cpus: 0.1\n"))
    job_id = site.run("submit", "--parsable", str(manifest), str(EXAMPLE / "model")).strip()
    until(lambda: site.state_of(job_id) == "PROCESSING", "the server to be started")
    listing = until(lambda: re.search(r"token=(\w+)", list_servers(site, job_id)), lambda: list_servers(site, job_id))
    token = listing[1]
    with forwarded([*FFDL, "port-forward", job_id, f"0:{port}"], site.environment()) as local:
        until(lambda: answers(local, "/api/status", token), "the server to answer")
        with pytest.raises(OSError, match="403"):
            fetch(local, "/api/contents")
        made = fetch(local, "/api/contents", {"type": "notebook"}, token)
        assert [one["name"] for one in fetch(local, "/api/contents", token=token)["content"]] == [made["name"]]
    site.run("halt", "--wait", job_id)
    results = json.loads(site.run("show", "--json", job_id))["job"]["results"]
    assert [path.name for path in Path(results).rglob(made["name"])] == [made["name"]]
    site.run("cancel", job_id)


def list_servers(site: Site, job_id: str) -> str:
    """What the recipe prints."""
    done = site.try_to("exec", job_id, "--", "sh", "jupyter.sh", "list")
    return str(done.stdout + done.stderr)


@pytest.mark.full
def test_tensorboard_recipe_serves_curves_of_running_training(site: Site) -> None:
    port = 31_000 + os.getpid() % 10_000
    (site.directory / "model").mkdir()
    (site.directory / "model" / "train.py").write_text(WRITE)
    manifest = site.directory / "board.yml"
    manifest.write_text(MANIFEST)
    job_id = site.run("submit", "--parsable", str(manifest), str(site.directory / "model")).strip()
    until(lambda: site.state_of(job_id) == "PROCESSING" and "ready" in site.run("logs", job_id), "the event file")
    words = ("exec", job_id, "--", "tensorboard", "--logdir", ".", "--host", "127.0.0.1", "--port", str(port))
    with preloaded.Popen([*FFDL, *words], env=site.environment(), stdin=subprocess.DEVNULL) as board:
        try:
            with forwarded([*FFDL, "port-forward", job_id, f"0:{port}"], site.environment()) as local:
                until(lambda: (answers(local, "/data/plugin/scalars/tags") or {}).get("."), "the curve")
                ((_, step, value),) = fetch(local, "/data/plugin/scalars/scalars?run=.&tag=loss")
                assert (step, value) == (7, 0.25)
        finally:
            board.terminate()
    site.run("cancel", job_id)
