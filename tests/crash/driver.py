"""One life of a process that may kill itself between two steps of its work. Run by the crash tests as a child.

    python -m tests.crash.driver [--submit N [--die-in-submit POINT]] [--halt] [--resume] [--watch] [--deploy]
                                 [--deploy-beside] [--die-at STEP] [--finish SECONDS] [--remove [--die-in-remove POINT]]

It does, in this order, what the daemon's loops do, through the same services, on the real database, adapters and
processes, and prints ``acknowledged <id>`` for each job that a client would have been told of. SIGKILL comes from
itself, so nothing runs after it: no `finally`, no exit handler, no flush.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import itertools
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ffdl_batch.config import load_settings
from ffdl_batch.daemon.platform import Platform, open_platform
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.submission import Caller, Submission
from ffdl_batch.domain.job.views import Resume
from ffdl_batch.services.data.model_archives import receive_archive
from ffdl_batch.services.deployment import deployer as deployer_of_product
from ffdl_batch.services.job_control import removal
from ffdl_batch.services.job_control.resume import resume_job
from ffdl_batch.services.job_control.stop import halt_job
from ffdl_batch.services.job_files import removal as removal_of_files
from ffdl_batch.services.submission.submit import submit
from ffdl_batch.store import NewJob
from tests import preloaded

LIMIT_S = 120.0
"""Maximum wait of a test for an expected event; not a measure of its duration."""
PAUSE_S, LOOK_EVERY = 0.05, 4
"""Between two turns; in how many of them the scheduler is asked once."""
IN_SUBMIT = ("before the commit", "before the answer", "answered before the commit")
"""The last one is no point of the product: it is the mistake that the tests must be able to find."""

IN_REMOVE = ("before the mark", "after the mark", "after the new name", "among the files")


def be_driver(
    arguments: Sequence[str], environment: Mapping[str, str], place: Path, said: Path, errors: Path
) -> NoReturn:
    """What a fork of the test process does in the place of everything else: as if it had been started in `place` with
    this environment, its output in the two files."""
    status = 1
    try:
        os.chdir(place)
        for number, path in ((1, said), (2, errors)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        sys.argv = ["driver", *arguments]
        os.environ.clear()
        os.environ.update(environment)
        logging.getLogger().handlers.clear()  # pytest's
        preloaded.share_server(os.getppid())
        subprocess.Popen = preloaded.PopenTree  # type: ignore[misc]
        status = main()
    except BaseException:  # noqa: BLE001 - the child's outermost frame
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # nothing of the test process is to happen here


def main() -> int:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--submit", type=int, default=0)
    parser.add_argument("--die-in-submit", choices=IN_SUBMIT)
    for name in ("--halt", "--resume", "--watch", "--deploy", "--deploy-beside"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--die-at", default="")
    parser.add_argument("--finish", type=float, default=0.0)
    parser.add_argument("--remove", action="store_true")
    parser.add_argument("--die-in-remove", choices=IN_REMOVE)
    options = parser.parse_args()
    platform = open_platform(load_settings())
    if options.submit:
        accept(platform, options.submit, options.die_in_submit)
    if options.halt or options.resume:
        for job in platform.storage.store.list_jobs(uid=None):
            if options.halt:
                halt_job(platform.storage, platform.adapters, Caller(os.getuid()), job.id)
            else:
                resume_job(
                    platform.storage, platform.adapters, platform.store_checks, Caller(os.getuid()), job.id, Resume()
                )
    if options.watch:
        watcher = platform.watcher(killer(options.die_at))
        watcher.step(full=True)
        watcher.close()
    if options.deploy:
        deployer = platform.deployer(killer(options.die_at))
        deadline = time.monotonic() + LIMIT_S
        deployer.step()
        while options.die_at and time.monotonic() < deadline:  # jobs were put off before they reached this step
            time.sleep(PAUSE_S)
            deployer.step()
    if options.deploy_beside:
        deploy_beside(platform, options.die_at)
    done = finish(platform, options.finish) if options.finish else True
    if options.remove:
        remove_all(platform, options.die_in_remove)
    platform.close()
    return 0 if done else 1


def die() -> None:
    """SIGKILL; does not return."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def killer(step: str) -> Callable[[str], None]:
    """Kills this process when deployer or watcher reach `step`."""

    def reached(name: str) -> None:
        if name == step:
            die()

    return reached


def deploy_beside(platform: Platform, die_at: str) -> None:
    """Deploy one job, and while the scheduler does not answer, the next one in another step, which dies at a step."""
    setattr(deployer_of_product, "BATCH", 1)  # noqa: B010 - a constant
    is_beside: list[bool] = []
    kill = killer(die_at)
    deployer = platform.deployer(lambda name: kill(name) if is_beside else None)

    def begin_next() -> bool:
        is_beside.append(True)
        deployer.step()
        raise AssertionError("the step beside reached its end")

    deployer.step(begin_next)


def accept(platform: Platform, count: int, die_in: str | None) -> None:
    """Submit `count` jobs in one request, as the daemon's route does, and acknowledge them."""
    archive = model_zip()
    digest = hashlib.sha256(archive).hexdigest()
    receive_archive(platform.storage.root, digest, [archive])
    if die_in:
        setattr(platform.storage.store, "add_jobs", dying_add(platform.storage.store.add_jobs, die_in))  # noqa: B010 - a method
    manifest = Path(os.environ["CRASH_MANIFEST"]).read_text(encoding="utf-8")
    submissions = [
        Submission(manifest, "manifest.yml", "/", digest, f"key-{n}", environ={"NUMBER": str(n)}) for n in range(count)
    ]
    results = submit(platform.storage, platform.adapters, platform.store_checks, Caller(os.getuid()), submissions)
    assert all(result.problem is None for result in results), results
    acknowledge([job_id for result in results for job_id in result.elements or (result.id,)])


def acknowledge(ids: Sequence[str]) -> None:
    """What the client hears."""
    for job_id in ids:
        print(f"acknowledged {job_id}", flush=True)


def remove_all(platform: Platform, die_in: str | None) -> None:
    """Remove every job, with death at a point of the first removal."""
    places = ((removal, "mark_removed"), (removal, "remove_files"), (removal_of_files, "finish_removal"))
    for point, (module, name) in zip(IN_REMOVE, places, strict=False):
        if die_in == point:
            setattr(module, name, lambda *_: die())
    if die_in == "among the files":
        unlink = os.unlink
        left = iter(range(2))

        def dying_unlink(*args: Any, **kwargs: Any) -> None:
            if next(left, None) is None:
                die()
            unlink(*args, **kwargs)

        os.unlink = dying_unlink
    for job in platform.storage.store.list_jobs(uid=None):
        removal.remove_job(platform.storage, platform.adapters, Caller(os.getuid()), job.id)


def dying_add(add: Callable[[Sequence[NewJob]], list[Job]], point: str) -> Callable[[Sequence[NewJob]], list[Job]]:
    """The commit of a submission, with death before or after it."""

    def add_jobs(jobs: Sequence[NewJob]) -> list[Job]:
        if point == "answered before the commit":
            acknowledge([job.id for job in jobs])
        if point != "before the answer":
            die()
        stored = add(jobs)
        die()
        return stored

    return add_jobs


def finish(platform: Platform, limit_s: float) -> bool:
    """Deploy and watch until every job has ended; False when that takes longer than `limit_s`."""
    deployer, watcher = (
        platform.deployer(),
        platform.watcher(),
    )
    deadline = time.monotonic() + limit_s
    try:
        for turn in itertools.count():
            if not platform.storage.store.count_live():
                break
            if time.monotonic() > deadline:
                return False
            deployer.step()
            watcher.step(full=turn % LOOK_EVERY == 0)
            time.sleep(PAUSE_S)
    finally:
        watcher.close()
    return True


def model_zip() -> bytes:
    """A model archive, always the same."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("train.py"), "print('x')\n")
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main())
