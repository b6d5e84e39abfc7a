"""Submit trial runs of the user's manifests under other names, and cancel them however the command ends."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.options.submission import Manner, build_submissions
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import Stop, complain

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.client.submissions.submission_builder import Wanted
    from ffdl_batch.domain.job.spec import JobSpec
    from ffdl_batch.domain.job.submission import Submission

CANCEL_S = 20
"""Maximum time for the cancel request to the daemon."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signalled(KeyboardInterrupt):
    """A signal that ends the command. Like Ctrl-C, it is not caught by handlers of failures."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


class Signals:
    """Turns signals that end a command into :class:`Signalled`. Ignored signals (nohup) stay ignored.

    While signals are held, a signal waits until they are released, except a second Ctrl-C.
    """

    def __init__(self) -> None:
        self._held, self._came = True, 0

    @contextmanager
    def caught(self) -> Iterator[Signals]:
        """Catch the signals, at first held, and restore their handlers afterwards."""
        before = {n: signal.signal(n, self._catch) for n in ENDING if signal.getsignal(n) is not signal.SIG_IGN}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def hold(self) -> None:
        """Hold signals from now on."""
        self._held = True

    def release(self) -> None:
        """Raise the signal that came while they were held, and later ones at once."""
        self._held = False
        if self._came:
            raise Signalled(self._came)

    def _catch(self, number: int, _frame: FrameType | None) -> None:
        is_urgent = not self._held or (self._came and number == signal.SIGINT)
        self._held, self._came = True, self._came or number
        if is_urgent:
            raise Signalled(number)


def trial_submission(manifest: str, wanted: Wanted, prefix: str) -> tuple[Submission, JobSpec | None]:
    """Return the submission of a trial run, and its spec: the manifest with another name, and only the first element of
    an array.

    The daemon reports errors of the manifest; the spec is None then. Raises :class:`Stop` if all jobs share one
    checkpoint directory, because the trial run would write into it.
    """
    from ffdl_batch.domain.job.submission import Expected
    from ffdl_batch.manifest import ManifestSource, parse_manifest

    (submission,) = build_submissions([manifest], "", wanted)
    source = ManifestSource(submission.manifest, submission.manifest_name, submission.base_dir)
    spec = parse_manifest(source, options=submission.options).spec
    if spec is not None and spec.batch.checkpoint.shared:
        raise Stop(
            ExitCode.BAD_MANIFEST,
            f"{submission.manifest_name}: batch.checkpoint.shared: the trial run would write into the checkpoints of "
            "your other jobs; copy the manifest without it",
        )
    name = wanted.options.get("job-name") or (spec.name if spec is not None else "run")
    options = {**submission.options, "job-name": f"{prefix}{name}"}
    first = _first_element(spec, submission) if spec is not None else None
    if first is None:
        return replace(submission, options=options, expected=Expected.JOB), spec
    return replace(submission, options={**options, "array": str(first)}, expected=Expected.ARRAY), spec


def _first_element(spec: JobSpec, submission: Submission) -> int | None:
    """Return the array index of the trial run; None if the manifest is no array."""
    from ffdl_batch.domain.job.array import read_indexes

    text = spec.batch.array or ("" if spec.batch.sweep else submission.environment_options.get("array", ""))
    if not text:
        return 0 if spec.batch.sweep else None
    with suppress(ValueError):  # of a variable; the daemon reports the error
        return read_indexes(text).values[0]
    return None


class TrialRuns:
    """Submits trial runs and cancels them. Created by :func:`trial_runs`."""

    def __init__(self, client: Client, manner: Manner, signals: Signals) -> None:
        self._client, self._manner, self._signals = client, manner, signals
        self._live: list[str] = []

    def start(self, submission: Submission, own_key: str = "") -> str:
        """Submit a trial run and return the id of its job. Warnings about `own_key`, a manifest key that the command
        itself has set, are not printed. Raises RequestRefused; raises Signalled after the submission."""
        self._signals.hold()
        trial_id = _submit(self._client, submission, self._manner, own_key)
        self._live.append(trial_id)
        self._signals.release()
        return trial_id

    def end(self) -> None:
        """Cancel all started runs, and handle signals again."""
        self.cancel()
        self._signals.release()

    def cancel(self) -> None:
        """Cancel all started runs, and hold signals from then on. A failure is only printed, so that the result of the
        command is not lost."""
        self._signals.hold()
        while self._live:
            _cancel(self._client, self._live.pop(0), self._manner)


@contextmanager
def trial_runs(client: Client, manner: Manner) -> Iterator[TrialRuns]:
    """Cancel all trial runs when the block ends, with or without an error. Raises :class:`Stop` for a signal. Signals
    are held until the first trial run is submitted."""
    try:
        with Signals().caught() as signals:
            runs = TrialRuns(client, manner, signals)
            try:
                yield runs
            finally:
                runs.cancel()
    except Signalled as end:
        raise Stop(128 + end.number, str(end)) from None


def _submit(client: Client, submission: Submission, manner: Manner, own_key: str) -> str:
    """Submit the trial run and return the id of its job."""
    from ffdl_batch.client import RequestRefused

    try:
        (result,) = client.send([submission])
    except Signalled:
        name = shlex.quote(submission.options["job-name"])
        complain(
            f"the trial run may have been submitted; find it with ffdl list -n {name}, and end it with ffdl cancel"
        )
        raise
    for warning in result.warnings:
        if not own_key or not warning.startswith(f"{own_key}: "):
            manner.warn(warning)
    if result.problem:
        raise RequestRefused(result.problem)
    trial_id = result.elements[0] if result.elements else result.id
    if not manner.quiet:
        index = submission.options.get("array")
        alone = f"; it is element {index} of the array, without the others" if result.elements else ""
        complain(f"trial run {trial_id} is submitted{alone}")
    return trial_id


def _cancel(client: Client, trial_id: str, manner: Manner) -> None:
    """Cancel the trial run, and report it. A failure is only printed, so that the result of the drill is not lost."""
    from ffdl_batch.client import ClientError
    from ffdl_batch.client.api import is_ended

    try:
        with _at_most(CANCEL_S):
            job = client.cancel(trial_id)
    except (ClientError, Signalled, TimeoutError) as error:
        complain(f"trial run {trial_id} could not be cancelled: {error}; try again: ffdl cancel {trial_id}")
        return
    if not manner.quiet and (job.state == "CANCELLED" or not is_ended(job)):
        complain(f"trial run {trial_id} is {'cancelled' if is_ended(job) else 'being cancelled'}")


@contextmanager
def _at_most(span_s: int) -> Iterator[None]:
    """Raise TimeoutError after `span_s`. The alarm raises Signalled, which the client does not handle as a failure."""

    def ring(number: int, _frame: FrameType | None) -> None:
        raise Signalled(number)

    before: Callable[[int, FrameType | None], object] | int | None = signal.signal(signal.SIGALRM, ring)
    try:
        signal.alarm(span_s)
        yield
    except Signalled as end:
        if end.number != signal.SIGALRM:
            raise
        raise TimeoutError(f"no answer in {span_s} s") from None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def model_beside(manifest: str, usage: str) -> Path:
    """Return the directory `model` beside a manifest. If there is none, raise UsageError with `usage`."""
    beside = (Path.cwd() if manifest == "-" else Path(manifest).parent) / "model"
    if not beside.is_dir():
        raise click.UsageError(f"there is no {beside}; name the model: {usage}")
    return beside
