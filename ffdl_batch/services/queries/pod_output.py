"""Describes where the files of pods are. Pods have a tree of their own; only their logs reach the daemon."""

from __future__ import annotations

from dataclasses import replace

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.launch.launch_file import LaunchFile, Pod
from ffdl_batch.domain.launch.pod_protocol import TREE
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.ports.capabilities import StoresApart
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.outcome.attempt_records import read_final, read_launch


def where_kept(pod: Pod, local: str) -> tuple[str, str]:
    """Return where files are that exist only at `local` in pods, and what to do. A claim has the tree at its top."""
    if pod.apart:
        return "go with its pods", "name a data store for training_results, and they are kept there"
    below = local.removeprefix(f"{TREE}/")
    return f"are in the cluster's claim (claim of [backend.kubernetes]), at {below}", "ffdl download fetches them"


def where_stored(launch: LaunchFile) -> tuple[str, str]:
    """Return where results are that pods store in a directory, and what to do. The path is the pods': on this host it
    may be the same directory, or another one."""
    assert launch.pod is not None
    place = launch.pod.claimed(launch.stores.results)
    return f"are {place}" if place else "are in the cluster", "ffdl download fetches them"


def without_places(storage: JobStorage, adapters: Adapters, job: Job, view: JobView) -> JobView:
    """Return the job without directories of results that are not on this host because its attempts were pods. If the
    results went to no store, a note says where they are.

    Reads files only for jobs of such backends, and only while the file system answers.
    """
    if not _runs_in_pods(adapters, job):
        return view
    try:
        storage.tree.check()
    except OSError:  # the launch files are in the tree
        return view
    directory = storage.root.job(job.id)
    # The last attempt of the job has no results if it never started learners.
    named = [
        one.number for one in view.attempts if one.results or directory.attempt(one.number).results == view.results
    ]
    launches = {number: _launch(directory.attempt(number)) for number in named}
    in_pods = {number: launch for number, launch in launches.items() if launch is not None and launch.pod is not None}
    if not in_pods:
        return view
    attempts = tuple(
        replace(
            one,
            results="",
            pending_upload_directory=_pending_upload_directory(in_pods[one.number]) if one.upload_pending else "",
        )
        if one.number in in_pods
        else one
        for one in view.attempts
    )
    last = in_pods.get(job.attempt)
    if last is not None and last.apart and view.stored_in and job.state.is_terminal:
        view = _without_lost(view, directory.attempt(job.attempt))
    own = {directory.attempt(number).results: launch for number, launch in in_pods.items()}
    outside = {launch.stores.results: launch for launch in in_pods.values() if launch.stores.results}
    if view.results in outside:
        where, cure = where_stored(outside[view.results])
        return replace(
            view, attempts=attempts, results="", results_note=f"{view.results} of the pods: they {where}; {cure}"
        )
    if view.results not in own:
        return replace(view, attempts=attempts)
    note = "" if view.stored_in else _note(own[view.results])
    return replace(view, attempts=attempts, results="", results_note=note)


def _pending_upload_directory(launch: LaunchFile) -> str:
    assert launch.pod is not None
    where, _ = where_kept(launch.pod, AttemptDir(launch.attempt_dir).results)
    return where


def _without_lost(view: JobView, attempt: AttemptDir) -> JobView:
    """Remove the store from the view if the pods were deleted before their results were stored there."""
    try:
        final = read_final(attempt)
    except OSError:
        return view
    return view if final is not None and final.stored else replace(view, stored_in="", stored_at="")


def _runs_in_pods(adapters: Adapters, job: Job) -> bool:
    try:
        return isinstance(adapters.get(job.backend), StoresApart)
    except InvalidRequest:  # it has no backend yet, or its backend is not configured any more
        return False


def _launch(attempt: AttemptDir) -> LaunchFile | None:
    try:
        return read_launch(attempt)
    except OSError:  # the file system of the tree does not answer
        return None


def _note(launch: LaunchFile) -> str:
    assert launch.pod is not None
    if launch.pod.apart and launch.uploads:
        return "they went with its pods before they could be stored"
    where, cure = where_kept(launch.pod, AttemptDir(launch.attempt_dir).results)
    return f"they {where}; {cure}"
