"""Python functions as jobs, and the output of jobs, with a real daemon and the local backend."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import pickle
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import cloudpickle
import pytest

from ffdl_batch import AsyncClient, Client
from ffdl_batch.client import (
    FunctionFailed,
    FunctionHandle,
    InputUnusable,
    RemoteTraceback,
    RequestRefused,
    WaitTimedOut,
)
from ffdl_batch.client.functions import function_handle, function_runner
from ffdl_batch.domain.data.staging_protocol import Progress, write_line
from tests.contract.daemon_rig import PLAIN, Site, site_in, until

OTHER_PYTHON = """#!/bin/sh
exec {python} -c '
import runpy, sys
sys.version_info = (3, 8, 1, "final", 0)
runpy.run_path(sys.argv[1], run_name="__main__")' "$@"
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A daemon with the local backend, whose learners have this interpreter."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"FFDL_BACKEND": "local", "PATH": path}
    with site_in(tmp_path_factory.mktemp("site"), more_environment=environment) as site:
        site.launch(program=PLAIN)
        until(site.is_served, f"the daemon to answer; its log:\n{site.log}")
        yield site


@pytest.fixture
def client(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Client]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in site.environment().items():
        if name.startswith("FFDL_"):
            monkeypatch.setenv(name, value)
    with Client(site.socket, start=False) as client:
        yield client


def wait_long() -> None:
    """Keep the learner."""
    threading.Event().wait()


def running_with(word: str) -> list[int]:
    """The processes that have the word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if word in path.read_text(errors="replace"):
                found.append(int(path.parent.name))
    return found


def until_running(client: Client, job_id: str) -> None:
    """Wait until the learner runs. A job is PROCESSING a little earlier."""

    def runs() -> bool:
        with suppress(RequestRefused):
            return bool(client.attach_plans(job_id))
        return False

    until(runs, f"the learner of {job_id} to run")


def children() -> set[int]:
    """The child processes of the test's process."""
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


class Unfit(Exception):
    """An exception of the test, with a value."""


def test_function_returns_value_and_job_has_its_output(client: Client, tmp_path: Path) -> None:
    def train(rate: float, steps: list[int]) -> dict[str, object]:
        print(f"rate {rate}")
        Path(os.environ["RESULT_DIR"], "model.txt").write_text("weights")
        return {"loss": rate * sum(steps), "cwd": os.listdir("."), "self": os.environ["LEARNER_ID"]}  # noqa: PTH208

    job = client.submit_function(train, 0.5, [1, 2, 3], backend="local", cpus=0.1, job_name="train one")
    value = job.result(timeout_s=300)
    assert value == {"loss": 3.0, "cwd": [".ffdl-function"], "self": "1"}
    assert job.done()
    assert not (tmp_path / "cache").exists(), "no journal of the result stays"
    assert (job.view().name, job.view().state) == ("train one", "COMPLETED")
    assert [line.line for line in job.logs()] == ["rate 0.5"]
    assert (job.download(tmp_path / "out") / "model.txt").read_text() == "weights"
    assert sorted(path.name for path in job.download(tmp_path / "some", only=["*.txt"]).iterdir()) == ["model.txt"]
    assert (job.download(tmp_path / "logs", kind="logs")).is_dir()


def test_result_raises_exception_of_function_with_its_traceback(client: Client) -> None:
    def fail(word: str) -> None:
        raise ValueError(f"no {word}", 7)

    job = client.submit_function(partial(fail, word="luck"), backend="local")
    with pytest.raises(ValueError, match="no luck") as caught:
        job.result(timeout_s=300)
    assert caught.value.args == ("no luck", 7)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert re.search(r"line \d+, in fail\nValueError: \('no luck', 7\)", str(caught.value.__cause__))
    assert (job.view().state, job.view().exit_code) == ("FAILED", 1)


def test_result_of_job_without_result_names_state_and_reason(client: Client) -> None:
    ended = client.submit_function(os._exit, 7, backend="local")
    with pytest.raises(FunctionFailed, match=rf"{ended.id}: the job is FAILED without a result \(C") as caught:
        ended.result(timeout_s=300)
    assert caught.value.problem.code == ended.view().error_code
    slow = client.submit_function(__import__("time").sleep, 600.0, backend="local")
    with pytest.raises(WaitTimedOut):
        slow.result(timeout_s=0.1)
    slow.cancel()
    with pytest.raises(FunctionFailed, match="is CANCELLED without a result"):
        slow.result(timeout_s=300)


def test_result_of_learner_with_other_python_names_both(client: Client, tmp_path: Path) -> None:
    other = tmp_path / "python3.8"
    other.write_text(OTHER_PYTHON.format(python=sys.executable))
    other.chmod(0o755)
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with pytest.raises(FunctionFailed, match=rf"its function needs Python {own}, and the learner has Python 3\.8"):
        client.submit_function(len, "abc", backend="local", python=str(other)).result(timeout_s=300)


def test_function_has_files_of_model_and_keys_of_manifest(client: Client, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "own_module.py").write_text("def double(x):\n    return 2 * x\n")

    def use() -> str:
        import own_module  # type: ignore[import-not-found]

        return f"{own_module.double(21)} {os.environ['WORD']}"

    given = {"batch": {"env": {"WORD": "yes"}}}
    assert client.submit_function(use, model=model, manifest=given, backend="local").result(timeout_s=300) == "42 yes"


def test_function_that_cannot_be_pickled_is_refused(client: Client) -> None:
    with pytest.raises(InputUnusable, match="cannot be pickled"):
        client.submit_function(len, threading.Lock(), backend="local")  # type: ignore[arg-type]


def test_exec_and_metrics_of_running_job(client: Client) -> None:
    job = client.submit_function(wait_long, backend="local")
    until_running(client, job.id)
    done = job.exec(["sh", "-c", "echo out; echo err >&2; cat; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert list(job.metrics()) == []
    job.cancel()
    job.wait(timeout_s=300)


def test_async_functions_run_side_by_side(site: Site, client: Client) -> None:
    async def main() -> list[int]:
        async with AsyncClient(site.socket, start=False) as twin:
            jobs = [await twin.submit_function(pow, 2, n, backend="local", cpus=0.1) for n in range(3)]
            return list(await asyncio.gather(*(job.result(300) for job in jobs)))

    assert asyncio.run(main()) == [1, 2, 4]


def test_async_stream_ends_with_its_task_and_with_its_loop(site: Site, client: Client) -> None:
    def wait() -> None:
        print("ready", flush=True)
        __import__("time").sleep(600)

    async def main() -> list[str]:
        lines = []
        async with AsyncClient(site.socket, start=False, parallel=2) as twin:
            job = await twin.submit_function(wait, backend="local", cpus=0.1)
            async for line in job.logs(follow=True):
                lines.append(line.line)
                break

            async def read() -> None:
                async for line in job.logs(follow=True):
                    lines.append(line.line)

            reader = asyncio.create_task(read())
            while len(lines) < 2:
                await asyncio.sleep(0.05)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            await job.cancel()
            await job.wait(timeout_s=300)
        return lines

    before = set(threading.enumerate())
    assert asyncio.run(main()) == ["ready", "ready"]
    until(lambda: set(threading.enumerate()) <= before, "the threads to end")


def test_cancelled_exec_ends_its_command_and_its_helper(site: Site, client: Client) -> None:
    job = client.submit_function(wait_long, backend="local", cpus=0.1)
    until_running(client, job.id)

    async def main() -> None:
        async with AsyncClient(site.socket, start=False) as twin:
            call = asyncio.create_task(twin.exec(job.id, ["sleep", "4321.25"]))
            while not running_with("4321.25"):
                assert not call.done(), call
                await asyncio.sleep(0.05)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    before, helpers = set(threading.enumerate()), children()
    asyncio.run(main())
    until(lambda: not running_with("4321.25"), "the command in the learner to end")
    until(lambda: children() <= helpers, "the helper to end")
    until(lambda: set(threading.enumerate()) <= before, "the threads to end")
    assert client.exec(job.id, ["echo", "again"]).stdout == b"again\n"
    job.cancel()
    job.wait(timeout_s=300)


def test_cancelled_download_ends_its_program(
    site: Site, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client.submit_function(len, "abc", backend="local")
    assert job.result(timeout_s=300) == 3
    program = tmp_path / "hangs-4321.5"
    line = write_line(Progress(0, 1, 0, 1, 0.0)).strip()
    program.write_text(f"#!/bin/sh\nwhile echo '{line}'; do sleep 0.05; done\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    async def main() -> None:
        async with AsyncClient(site.socket, start=False) as twin:
            call = asyncio.create_task(twin.download(job.id, tmp_path / "into"))
            while not running_with(program.name):
                assert not call.done(), call
                await asyncio.sleep(0.05)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    before = set(threading.enumerate())
    asyncio.run(main())
    until(lambda: not running_with(program.name), "the program that copies to end")
    until(lambda: set(threading.enumerate()) <= before, "the threads to end")


class Planted:
    """A value whose unpickling leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("forged", ["unsigned", "other key", "cut"])
def test_result_that_job_did_not_sign_is_not_unpickled(client: Client, tmp_path: Path, forged: str) -> None:
    """As another user could put there who can write to the results."""
    job = client.submit_function(len, "abc", backend="local")
    assert job.result(timeout_s=300) == 3
    path = Path(client.output.find(job.id).directory) / "function.result"
    body = json.dumps({"status": "returned", "text": ""}).encode() + b"\n" + pickle.dumps(Planted(tmp_path / "planted"))
    signature = {"unsigned": bytes(32), "other key": hmac.digest(b"k", body, hashlib.sha256), "cut": b""}[forged]
    path.write_bytes(function_runner.MAGIC + signature + body)
    with pytest.raises(FunctionFailed, match="is not signed by the job"):
        job.result()
    assert not (tmp_path / "planted").exists()
    other = FunctionHandle[int](client, job.id)
    with pytest.raises(FunctionFailed, match="is not signed by the job"):
        other.result()


def test_result_larger_than_maximum_is_not_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_handle, "MAX_RESULT_BYTES", 1000)
    with pytest.raises(FunctionFailed, match="the result has more than 1000 bytes, the maximum"):
        client.submit_function(bytes, 2000, backend="local").result(timeout_s=300)


def test_exception_that_cannot_be_sent_or_read_has_its_text(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsendable() -> None:
        error = ValueError("with a lock")
        error.more = threading.Lock()  # type: ignore[attr-defined]
        raise error

    with pytest.raises(FunctionFailed, match=r"cannot be pickled\n(?s:.*)ValueError: with a lock"):
        client.submit_function(unsendable, backend="local").result(timeout_s=300)
    job = client.submit_function(unsendable.__class__.__name__.upper, backend="local")
    monkeypatch.setattr(cloudpickle, "loads", lambda _: (_ for _ in ()).throw(ImportError("no module x")))
    with pytest.raises(FunctionFailed, match="its result cannot be read here: ImportError: no module x"):
        job.result(timeout_s=300)
