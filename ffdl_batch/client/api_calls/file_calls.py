"""Calls that copy the output of a job, and run commands inside its learners."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ffdl_batch.client.api_calls.requests import StreamCalls
from ffdl_batch.client.connection.daemon_start import Dialling
from ffdl_batch.domain.launch.attach_protocol import ERRORS, EXIT, INPUT_END, OUTPUT

if TYPE_CHECKING:
    import subprocess

    from ffdl_batch.client.api_calls.job_output import JobOutput
    from ffdl_batch.client.attach import Helper
    from ffdl_batch.client.stores.job_files import Copy


class FileCalls(StreamCalls):
    """Calls that copy the output of a job, and run commands inside its learners."""

    _dialling: Dialling
    _progress_s = 3600.0
    """Interval at which a copy calls :meth:`_progressed`."""

    def _progressed(self) -> None:
        """Raise an exception to end the copy."""

    @abstractmethod
    def open_helpers(self, job_id: str, learner: int | None = None) -> Iterator[Helper]:
        """Start a helper beside a running learner."""

    def download(
        self,
        job_id: str,
        into: str | Path,
        *,
        kind: str = "results",
        attempt: int | None = None,
        only: Sequence[str] = (),
        force: bool = False,
    ) -> Path:
        """Copy the results, model, logs or checkpoint (`kind`) of a job into a directory, and return it.

        Works as ``ffdl download``: existing files are skipped, and repeating the call continues an interrupted copy. If
        a file differs, nothing is copied without `force`. `only` has patterns of the files to copy.
        `attempt` is a number; None: the last one that ran. Raises UnknownJob, RequestRefused, TransferFailed.
        """
        from ffdl_batch.client.stores.job_files import Copy

        directory = Path(into).absolute()
        self._copy(Copy(self._job_output().find(job_id, kind, attempt), directory, force, only=tuple(only)))
        return directory

    def _read_results(self, job_id: str, names: Sequence[str], directory: Path, most_bytes: int) -> None:
        """Copy some files of the results into a temporary directory, and keep no state elsewhere. Raises as
        :meth:`download`, and FileTooLarge for a file of more than `most_bytes`."""
        from ffdl_batch.client.stores.job_files import Copy

        copy = Copy(self._job_output().find(job_id), directory, only=tuple(names), most_file_bytes=most_bytes)
        self._copy(copy, {"XDG_CACHE_HOME": str(directory / ".cache")})

    def _job_output(self) -> JobOutput:
        from ffdl_batch.client.api_calls.job_output import JobOutput

        return JobOutput(self._open_wire)

    def _copy(self, copy: Copy, variables: Mapping[str, str] | None = None) -> None:
        from ffdl_batch.client.stores.job_files import bring_output, place_of

        dialling = self._dialling
        place = place_of(dialling.way(), {**dialling.environ, **(variables or {})}, dialling.state_dir)
        bring_output(self._job_output(), copy, place, lambda _: self._progressed(), self._progress_s)

    def exec(self, job_id: str, command: Sequence[str], *, learner: int = 1) -> subprocess.CompletedProcess[bytes]:
        """Run a command inside a running learner, as ``ffdl exec`` does, and return its exit status and output.

        The command gets no input. The status is 128 + N if signal N ended it. Raises RequestRefused if the learner does
        not run.
        """
        import subprocess

        from ffdl_batch.client.attach import AttachRequest

        parts: dict[str, list[bytes]] = {OUTPUT: [], ERRORS: []}
        with next(iter(self.open_helpers(job_id, learner))) as helper:
            helper.begin(AttachRequest(tuple(command)))
            helper.send(INPUT_END)
            while True:
                for kind, payload in helper.take():
                    if kind in parts:
                        parts[kind].append(payload)
                    elif kind == EXIT:
                        status = int(json.loads(payload)["status"])
                        output, errors = (b"".join(parts[name]) for name in (OUTPUT, ERRORS))
                        return subprocess.CompletedProcess(list(command), status, output, errors)
