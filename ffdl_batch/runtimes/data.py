"""Plans where a job's data are read and its results are stored: directories that nodes see, and remote stores. Pure.

Data from a store are in the job's own directory, one for all attempts, and have FfDL's paths in the learner: those of a
mounted store read-only below ``/mnt/data``, those of a copied one below ``/job``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import field, replace

from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.domain.data.mounts import Brought, Mounting, Mounts, why_brought
from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.job.data_stores import REMOTE, StoreRefused, place_in
from ffdl_batch.domain.job.learner_layout import Gang
from ffdl_batch.domain.job.spec import DataStore, JobSpec, Staging, StoreType
from ffdl_batch.domain.launch.launch_file import Copy, LaunchFile, Stores
from ffdl_batch.domain.launch.placeholders import literal
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.learner_contract import SHARED_CHECKPOINTS, Input, Places

SUBMITTED = "_submitted_code"
MODEL_STORE = os.path.join(SUBMITTED, "model.zip")  # noqa: PTH118 - a name, nothing is touched


@dataclass(frozen=True, slots=True)
class Subject:
    """The attempt that is planned."""

    job_id: str
    spec: JobSpec
    gang: Gang
    job: JobDir
    attempt: AttemptDir
    results_store: str = ""
    """Directory in which the site stores all results; "" = it has none."""
    failures: int = 0
    """How many failed attempts the job may have."""
    number: int = 1
    """Number of the attempt."""
    apart: bool = False
    """Whether it sees no files of earlier attempts, and a learner none of other learners."""


@dataclass(frozen=True, slots=True)
class Data:
    """The data of an attempt."""

    places: Places
    copies: tuple[Copy, ...] = ()
    fetches: tuple[Transfer, ...] = ()
    """Brought by the staging program."""
    uploads: tuple[Transfer, ...] = ()
    """Stored by the staging program."""
    stores: Stores = field(default_factory=Stores)
    needs_dirs: tuple[str, ...] = ()
    """Directories that the nodes must have."""
    warnings: tuple[str, ...] = ()


def place_data(subject: Subject) -> Data:
    """Return the data of an attempt. Raises StoreRefused."""
    stores = [(f"data_stores[{index}]", store) for index, store in enumerate(subject.spec.data_stores)]
    found = Data(Places(subject.job, subject.attempt, subject.job_id), warnings=tuple(_warnings(stores)))
    if stores:
        found = replace(found, places=replace(found.places, copied=stores[0][1].is_copied))
    number = 0
    for at, store in stores:
        if store.training_data:
            number += 1
            base = _below_base(at, store, subject.spec.base_dir)
            found = _with_input(found, at, store, number, base, subject.gang)
    targets = [(at, store) for at, store in stores if store.training_results]
    if len(targets) > 1:
        message = f"results go to {targets[0][0]} already"
        raise StoreRefused(f"{targets[1][0]}.training_results", message, "leave it out in all stores but one")
    for at, store in targets:
        found = _with_results(subject, found, at, store)
    kept = subject.results_store
    if kept:
        found = replace(found, uploads=(), stores=_stores_in(kept))
    return found


def _warnings(stores: list[tuple[str, DataStore]]) -> Iterator[str]:
    for at, store in stores:
        if store.effective_type is StoreType.MOUNT_VOLUME and not store.connection.get("path"):
            yield f"{at}: {store.type} without connection.path mounts nothing, as in FfDL"


def _below_base(at: str, store: DataStore, base_dir: str) -> str:
    """Return the directory of a store; "" = it is remote, or mounts nothing. Raises StoreRefused."""
    kind = store.effective_type
    path = store.connection.get("path", "")
    if kind in REMOTE or (not path and kind is StoreType.MOUNT_VOLUME):
        return ""
    if not path:
        message = f"a data store of type {kind} needs connection.path, the directory that holds the data"
        raise StoreRefused(f"{at}.connection.path", message)
    mode = store.connection.get("mode", "mount")
    if mode not in ("mount", "copy"):
        message = f"{mode!r} is not a mode of a data store; choose mount or copy"
        raise StoreRefused(f"{at}.connection.mode", message)
    return os.path.normpath(os.path.join(base_dir or "/", path))  # noqa: PTH118 - pure, nothing is touched


def _with_input(found: Data, at: str, store: DataStore, number: int, base: str, gang: Gang) -> Data:
    """Return `found` with the input of one store, the `number`th that has input."""
    places = found.places
    if store.effective_type in REMOTE:
        local = places.job.data(number)
        address, prefix = _place_in(at, store, store.training_data)
        link = not store.is_copied and gang.nodes == 1  # a link leads to the one node's cache
        found = replace(found, fetches=(*found.fetches, Transfer(address, prefix, local, link=link)))
        name = "" if address.kind is StoreKind.HTTP else store.training_data
        given = Input(name, local, store.is_copied)
    elif base and store.is_copied:
        local = places.attempt.data if number == 1 else f"{places.attempt.data}-{number}"
        found = replace(found, copies=(*found.copies, Copy(_below(at, base, store.training_data), local)))
        given = Input(store.training_data, "" if number == 1 else local, True)
    else:
        path = _below(at, base, store.training_data) if base else ""
        found = replace(found, needs_dirs=(*found.needs_dirs, path) if path else found.needs_dirs)
        given = Input(store.training_data, path, False)
    if number == 1:
        return replace(
            found, places=replace(places, data_container=given.name, data=given.host, copied=given.copied)
        )  # fmt: skip
    return replace(found, places=replace(places, more=(*places.more, given)))


def _with_results(subject: Subject, found: Data, at: str, store: DataStore) -> Data:
    base = _below_base(at, store, subject.spec.base_dir)
    places = replace(found.places, results_container=store.training_results, results_copied=store.is_copied)
    if store.effective_type in REMOTE:
        address, above = _place_in(at, store, store.training_results)
        if address.kind is StoreKind.HTTP:
            message = "results cannot be stored on a web server"
            raise StoreRefused(f"{at}.training_results", message, "name a store of another type for them")
        return _with_uploads(subject, replace(found, places=places), address, above)
    if not base:
        return replace(found, places=places)
    bucket = _below(at, base, store.training_results)
    return replace(
        found,
        places=replace(
            places,
            results_bucket=bucket,
            shared_checkpoints=subject.spec.batch.checkpoint.shared,
            bucket_keeps_checkpoints=subject.apart,
        ),
        stores=_stores_in(_below(at, bucket, subject.job_id)),
    )


def _with_uploads(subject: Subject, found: Data, store: StoreAddress, above: str) -> Data:
    """Return `found` with uploads in FfDL's layout of a bucket of results. Checkpoints are at its top, in a directory
    of each job, or in one of all jobs: its content is then brought for the first attempt of a job. Existing checkpoints
    are also brought for each attempt that does not see the files of the attempt before."""
    job, attempt, own = subject.job, subject.attempt, _joined(above, subject.job_id)
    shared = subject.spec.batch.checkpoint.shared and not found.places.copies_results
    checkpoints = _joined(above, SHARED_CHECKPOINTS, "" if shared else subject.job_id)
    sent = (
        (own, attempt.results),
        (_joined(own, SUBMITTED), attempt.staging(SUBMITTED)),
        (checkpoints, job.checkpoints),
    )
    uploads = [Transfer(store, literal(prefix), literal(local)) for prefix, local in sent]
    logs = Transfer(store, literal(own) + "/learner-{learner_id}", literal(attempt.logs) + "/learner-{learner_id}")
    fetches = found.fetches
    if (shared and subject.number == 1) or (subject.apart and subject.number > 1):
        fetches = (*fetches, Transfer(store, checkpoints, job.checkpoints, optional=True))
    return replace(found, fetches=fetches, uploads=(*uploads, logs))


def without_learners(launch: LaunchFile) -> LaunchFile:
    """Return the launch file of an attempt that only brings data. They are kept with the job, not in a cache of its
    node."""
    fetches = tuple(replace(fetch, link=False) for fetch in launch.fetches)
    return replace(launch, only_stages=True, fetches=fetches, copies=(), needs_dirs=())


CACHE_PER_GPU = 6 * 10**9
"""How much data of a mounted store FfDL keeps on the node for each GPU of a learner."""


def plan_mounts(subject: Subject, fetches: tuple[Transfer, ...], site: Mounting, *, cached: bool) -> Mounts | None:
    """Return which of `fetches` nodes mount. A cache of the nodes' own keeps what is read repeatedly nearer, and data
    that are staged ahead must be copied."""
    mode = subject.spec.batch.mount or site
    ahead = subject.spec.batch.staging is Staging.AHEAD and subject.spec.element is None
    if mode is Mounting.NEVER or ahead or (cached and mode is Mounting.AUTO):
        return None
    inputs = [store for store in subject.spec.data_stores if store.training_data and store.effective_type in REMOTE]
    found, brought = [], []
    for number, (store, fetch) in enumerate(zip(inputs, fetches, strict=False)):
        if store.is_copied:
            continue
        why = why_brought(fetch.store)
        if why:
            brought.append(Brought(number, why))
        else:
            found.append(number)
    if not found and not brought:
        return None
    gpus = max(1, int(subject.spec.resources.gpus))
    return Mounts(tuple(found), mode is Mounting.ALWAYS, CACHE_PER_GPU * gpus, tuple(brought))


def _place_in(at: str, store: DataStore, container: str) -> tuple[StoreAddress, str]:
    try:
        return place_in(store, container)
    except StoreRefused as refused:
        path = f"{at}.{refused.path}" if refused.path else at
        raise StoreRefused(path, refused.message, refused.cure) from None


def _stores_in(directory: str) -> Stores:
    return Stores(results=directory, logs=directory, model=os.path.join(directory, MODEL_STORE))  # noqa: PTH118 - pure


def _joined(*names: str) -> str:
    return "/".join(name for name in names if name)


def _below(at: str, base: str, name: str) -> str:
    """Return `name` inside `base`. Raises StoreRefused if it leads out of it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise StoreRefused(at, f"{name!r} leads out of the data store; use a plain directory name")
    return os.path.join(base, *parts)  # noqa: PTH118 - pure, nothing is touched
