"""The call that submits a Python function as a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple, Unpack, cast

from ffdl_batch.client.api_calls.requests import StreamCalls
from ffdl_batch.client.submissions.submit_options import SubmitOptions, with_explicit_signature

if TYPE_CHECKING:
    from ffdl_batch.client.api import Client
    from ffdl_batch.client.functions.function_handle import FunctionHandle

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class FunctionCalls(StreamCalls):
    """Calls that submit functions."""

    @with_explicit_signature
    def submit_function(  # noqa: PLR0913 - one parameter per choice
        self,
        fn: Callable[[Unpack[Ts]], R],
        *args: *Ts,
        image: str = "python-numpy",
        python: str = "python3",
        model: str | Path | None = None,
        manifest: Mapping[str, object] | None = None,
        backend: str = "",
        strict: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> FunctionHandle[R]:
        """Submit a job that calls ``fn(*args)``, and return a handle; its :meth:`~FunctionHandle.result` returns the
        value, or raises the function's exception.

        `image` is an image as in `framework.version` of a manifest with `framework.name: custom`, and `python` its
        interpreter, which must have the same version as this one, such as 3.11. `model` is a directory that is sent
        with the function; it is the working directory, and on ``sys.path``. `manifest` has other keys of a manifest,
        such as `data_stores`. The other keywords are options of ``ffdl-submit``, as for :meth:`submit`: ``gpus=1``.

        The function is pickled with cloudpickle (``pip install 'ffdl-batch[functions]'``). Functions of ``__main__``
        and of notebooks, and nested functions, are sent as code. Functions of modules are sent by name; the learner
        must have the modules. For keyword arguments, use :func:`functools.partial`. With several learners, each one
        calls the function, and the value of the first is returned.

        A result is unpickled only if it is signed with the key of the job, which no other user has. Raises as
        :meth:`submit`; InputUnusable if the function cannot be pickled.
        """
        import secrets
        import tempfile

        from ffdl_batch.client.functions.function_handle import FOLDER, RUNNER, FunctionHandle, write_model

        key = secrets.token_bytes(32)
        name = getattr(fn, "__name__", type(fn).__name__).strip("<>") or "function"
        given = dict(manifest or {})
        framework = {"name": "custom", "version": image, **cast("Mapping[str, object]", given.get("framework") or {})}
        framework["command"] = f"{python} {FOLDER}/{RUNNER.name}"
        whole = {"name": name, **given, "framework": framework}
        with tempfile.TemporaryDirectory(prefix="ffdl-function-") as directory:
            root = Path(directory, "model")
            write_model(root, model, (fn, args), key)
            client = cast("Client", self)
            job = client.submit(whole, root, backend=backend, strict=strict, **options)
        return FunctionHandle(client, job.id, job.warnings, job.network, key)
