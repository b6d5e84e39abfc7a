"""The job of a Python function: its model, and its handle, which returns the result or raises the exception.

The function and its arguments are sent in the job's model, pickled with cloudpickle. The result is a file in the job's
results. It is unpickled only if it is signed with the job's key, which this process has made and only the job knows. So
another user who can write to the results cannot execute code here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from types import ModuleType
from typing import Generic, NoReturn, TypeVar, cast

from ffdl_batch.client.errors import FileTooLarge, FunctionFailed, InputUnusable, RequestRefused, UnknownJob
from ffdl_batch.client.functions import function_runner
from ffdl_batch.client.handles import JobHandle
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import JobView, Problem
from ffdl_batch.domain.job_state import TERMINAL
from ffdl_batch.host.fast_dataclass import dataclass

R = TypeVar("R")
MAX_RESULT_BYTES = 1 << 30
"""Maximum size of a result. Larger values belong in files in $RESULT_DIR."""
_RESULT = "function.result"
FOLDER = ".ffdl-function"
"""The directory in the model with the call."""
RUNNER = Path(function_runner.__file__)
"""The program that calls the function."""
_SIGNED = hashlib.sha256().digest_size


class RemoteTraceback(Exception):
    """The traceback in the learner, as the cause of an exception that :meth:`FunctionHandle.result` raises."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True, slots=True)
class FunctionHandle(JobHandle, Generic[R]):
    """The handle of a job that calls a function. It holds the key of the result, so it works in this process only."""

    key: bytes = field(default=b"", repr=False)

    def done(self) -> bool:
        """Return whether the job has ended."""
        return self.view().state in {state.value for state in TERMINAL}

    def result(self, timeout_s: float | None = None) -> R:
        """Wait until the job has ended, and return the function's value, or raise its exception.

        The exception has the traceback in the learner as its ``__cause__``. Raises FunctionFailed if the job ended
        without a result, and WaitTimedOut after `timeout_s` seconds; the job continues.
        """
        job = self.wait(timeout_s)
        with tempfile.TemporaryDirectory(prefix="ffdl-result-") as directory:
            try:
                self.client._read_results(self.id, [_RESULT], Path(directory), MAX_RESULT_BYTES)
                outcome, payload = self._open(Path(directory) / _RESULT, job)
            except FileTooLarge as error:
                cure = "write large values into files in $RESULT_DIR, and copy them with download()"
                _fail(job, f"the result has more than {MAX_RESULT_BYTES} bytes, the maximum", error, cure)
            except (FileNotFoundError, RequestRefused) as error:
                if isinstance(error, UnknownJob):
                    raise
                _fail(job, _why(job), error)
        if outcome["status"] != "returned":
            _raise_failure(job, outcome, payload)
        return cast(R, _unpickle(payload, job, ""))

    def _open(self, path: Path, job: JobView) -> tuple[Mapping[str, str], bytes]:
        """Return the outcome and the pickled value of a signed file. Raises FunctionFailed."""
        data = path.read_bytes()
        start = len(function_runner.MAGIC)
        signature, body = data[start : start + _SIGNED], data[start + _SIGNED :]
        right = hmac.new(self.key, body, hashlib.sha256).digest()
        if not data.startswith(function_runner.MAGIC) or not hmac.compare_digest(signature, right):
            _fail(job, f"{_RESULT} in its results is not signed by the job, and was not read")
        head, _, payload = body.partition(b"\n")
        return json.loads(head), payload


def write_model(root: Path, model: str | Path | None, call: object, key: bytes) -> None:
    """Write the model: the given directory, the pickled call, and the program that calls it. Raises InputUnusable."""
    cloudpickle = _cloudpickle()
    try:
        pickled = cloudpickle.dumps(call)
    except Exception as error:
        raise InputUnusable(
            f"the function or an argument cannot be pickled: {error}",
            cure="open files and connections in the function, and pass their names",
            code="C101",
        ) from error
    if model is None:
        root.mkdir()
    else:
        shutil.copytree(model, root, symlinks=True)
    folder = root / FOLDER
    folder.mkdir()
    shutil.copy(RUNNER, folder)
    source = Path(cast(str, cloudpickle.__file__)).parent
    shutil.copytree(source, folder / "packages" / "cloudpickle", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "call.pickle").write_bytes(pickled)
    python = ".".join(map(str, sys.version_info[:2]))
    (folder / "call.json").write_text(json.dumps({"python": python, "key": key.hex()}))


def _cloudpickle() -> ModuleType:
    try:
        import cloudpickle
    except ImportError:
        raise InputUnusable(
            "functions are sent with cloudpickle, which is not installed",
            cure="pip install 'ffdl-batch[functions]'",
            code="C101",
            exit_code=ExitCode.UNAVAILABLE,
        ) from None
    return cast(ModuleType, cloudpickle)


def _raise_failure(job: JobView, outcome: Mapping[str, str], payload: bytes) -> NoReturn:
    """Raise the function's exception, or FunctionFailed."""
    text = outcome["text"]
    if outcome["status"] != "raised":
        own = ".".join(map(str, sys.version_info[:2]))
        cure = f"name an image with Python {own} (image=), or its interpreter (python=)"
        _fail(job, f"its function needs Python {own}, and the learner has Python {text}", cure=cure)
    if not payload:
        _fail(job, f"its function raised an exception that cannot be pickled\n{text}")
    remote = _unpickle(payload, job, text)
    assert isinstance(remote, BaseException), "the runner writes nothing else"
    raise remote from RemoteTraceback(text)


def _unpickle(payload: bytes, job: JobView, text: str) -> object:
    """Return the value of a signed payload. Raises FunctionFailed if this process lacks what it needs."""
    try:
        return _cloudpickle().loads(payload)
    except Exception as error:  # noqa: BLE001 - whatever a class of the user does
        _fail(job, f"its result cannot be read here: {type(error).__name__}: {error}\n{text}".rstrip(), error)


def _why(job: JobView) -> str:
    reason = f" ({job.error_code}: {job.message})" if job.message else f" ({job.error_code})"
    return f"the job is {job.state} without a result{reason}"


def _fail(job: JobView, message: str, error: Exception | None = None, cure: str = "") -> NoReturn:
    cure = cure or job.cure or f"ffdl logs {job.id}"
    problem = Problem(job.error_code, f"{job.id}: {message}", int(ExitCode.FAILED), cure)
    raise FunctionFailed(problem) from error
