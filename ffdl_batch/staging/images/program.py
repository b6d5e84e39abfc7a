"""Run the program for an image: find its SIF file in the cache, wait for it, or build it."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from contextlib import ExitStack, closing
from pathlib import Path

from ffdl_batch.domain.data.image_reference import NotAReference, Reference, parse_reference
from ffdl_batch.domain.data.image_task import NO_IMAGE, NO_RUNTIME, TOKEN_USER, ImageTask, decode_image_task
from ffdl_batch.domain.data.staging_protocol import (
    EXIT_STATUS,
    Cached,
    Direction,
    Failed,
    FaultClass,
    StageTaskError,
    fault_code,
)
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.host.core_dumps import forbid_core_dumps
from ffdl_batch.staging.cache.acquisition import Wanted, obtain
from ffdl_batch.staging.cache.capacity import free_space
from ffdl_batch.staging.cache.election import BEATS, FillRight
from ffdl_batch.staging.cache.entry import read_entry
from ffdl_batch.staging.cache.user_cache import Unusable, open_shelf
from ffdl_batch.staging.faults import Fault, Retries, shown
from ffdl_batch.staging.images.registry import Image, Registry
from ffdl_batch.staging.images.sif import RuntimeTooOld, make, maker_of
from ffdl_batch.staging.reporter import Reporter
from ffdl_batch.staging.secrets import read_secrets

KEY_FORMAT = 1
_CREDENTIALS = "check user_name and access_token of framework.image_location, and that they may pull it"
LEAST_BYTES = 64 << 20
UNPACKED = 3
"""Bytes that an image takes while it is unpacked and packed again, by the size of its layers."""


def run_image_program(path: str, *, output: int) -> int:
    """Do the task in the file. Lines go to the descriptor `output`. Return the exit status."""
    silent = Reporter(output, lambda text: text, 0)
    try:
        task = decode_image_task(Path(path).read_text(encoding="utf-8"))
        if task.secrets_file:  # no memory image of what holds them, nor of Apptainer
            forbid_core_dumps()
        secrets = read_secrets(task.secrets_file)
        address = StoreAddress(StoreKind.HTTP, credentials=task.credentials)
        credentials = secrets.of(address)
        if "password" in credentials:
            credentials.setdefault("user_name", TOKEN_USER)
    except (OSError, UnicodeDecodeError, StageTaskError) as error:
        return _fail(silent, FaultClass.INTERNAL, fault_code(FaultClass.INTERNAL, Direction.IN), str(error))
    except Fault as fault:
        return _fail(silent, fault.kind, fault_code(fault.kind, Direction.IN), fault.sentence())
    reporter = Reporter(output, secrets.scrub, task.rate_line_s)
    try:
        with ExitStack() as held:
            _download(task, credentials, reporter, held)
            reporter.done()
    except Fault as fault:
        return _judge(reporter, task.reference, fault, is_private=bool(credentials))
    except (Unusable, NotAReference) as why:
        return _go_without(reporter, str(why))
    except OSError as error:
        return _go_without(reporter, f"{shown(str(error.filename or task.cache.directory))}: {error.strerror or error}")
    except Exception as error:  # noqa: BLE001 - a trace might hold a secret
        return _go_without(reporter, f"the staging program failed: {type(error).__name__}: {error}")
    return 0


def _judge(reporter: Reporter, reference: str, fault: Fault, *, is_private: bool) -> int:
    """Fail the job if Apptainer cannot help either. Else let Apptainer fetch the image without the cache."""
    if isinstance(fault, RuntimeTooOld):
        return _fail(reporter, fault.kind, NO_RUNTIME, f"image {reference}: {fault.sentence()}")
    if fault.kind is FaultClass.CREDENTIALS and is_private:
        code = fault_code(fault.kind, Direction.IN)
        return _fail(reporter, fault.kind, code, f"image {reference}: {fault.cause}; {_CREDENTIALS}")
    if fault.kind is FaultClass.MISSING:
        return _fail(reporter, fault.kind, NO_IMAGE, f"image {reference}: {fault.cause}; check the name and the tag")
    return _go_without(reporter, fault.cause)


def _fail(reporter: Reporter, kind: FaultClass, code: str, message: str) -> int:
    reporter.failed(Failed(code, message, kind))
    return EXIT_STATUS[kind]


def _go_without(reporter: Reporter, why: str) -> int:
    """Let Apptainer fetch the image itself, or report what is wrong with it."""
    reporter.follow(None)
    reporter.note(f"the cache is not used for the image: {why}")
    reporter.done()
    return 0


def _download(task: ImageTask, credentials: dict[str, str], reporter: Reporter, held: ExitStack) -> None:
    reference = parse_reference(task.reference)
    maker = maker_of(task.program)
    shelf = open_shelf(task.cache.directory, os.geteuid())
    image = _looked_up(task, reference, credentials, reporter)
    key = key_of(reference, image.digest, maker)
    reporter.begin()
    reporter.expect(1, image.bytes)

    def fill(right: FillRight) -> None:
        make(task.program, reference, image.digest, credentials, right, each_s=task.cache.stale_s / BEATS)
        reporter.moved(image.bytes)
        reporter.finished()

    room = max(LEAST_BYTES, UNPACKED * image.bytes)
    filled = obtain(Wanted(key, room, 1, image.bytes, fill, reporter), shelf, task.cache, held)
    size = read_entry(shelf.entry(key)).bytes
    if not filled:
        reporter.keep_all(1, image.bytes)
    reporter.say(Cached(0, key, shelf.tree(key), shelf.use_lock(key), size, filled))
    free_space(shelf, task.cache.limit_bytes)


def key_of(reference: Reference, digest: str, maker: str) -> str:
    """Return the key of the entry. It includes registry and name, as for data."""
    words = (KEY_FORMAT, reference.scheme, reference.host, reference.name, digest, maker)
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def _looked_up(task: ImageTask, reference: Reference, credentials: dict[str, str], reporter: Reporter) -> Image:
    retries = Retries(task.tries, task.pause_s, reporter.retry, threading.Event())
    with closing(Registry(reference, credentials)) as registry:
        return retries.call(registry.look_up)
