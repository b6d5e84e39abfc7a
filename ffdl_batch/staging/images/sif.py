"""Let Apptainer build a SIF file of an image, in a directory of its own."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field

from ffdl_batch.domain.data.image_reference import Reference
from ffdl_batch.domain.data.image_task import SIF
from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.staging.cache.election import FillRight, Heartbeat
from ffdl_batch.staging.cache.entry import new_entry, seal, write_entry
from ffdl_batch.staging.faults import Fault
from ffdl_batch.staging.images.registry import is_plain
from ffdl_batch.staging.tree import Tree

ASK_S = 60.0
LAST_CHARACTERS = 300
_PR_SET_PDEATHSIG = 1
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY")
_SCRATCH, _LAYERS = "scratch", "layers"
_VERSION = re.compile(r"(apptainer|singularity)\S* version ([0-9]+)\.([0-9]+)")
_WITH_CONFIG = (1, 2)
"""Apptainer's release that has APPTAINER_CONFIGDIR (its changelog, v1.2.0). 1.4 has --authfile."""
_CONFIG = "docker-config.json"
"""File in that directory with credentials of registries."""
_HUB = "https://index.docker.io/v1/"
"""Name of Docker's own registry in such a file."""
_libc = ctypes.CDLL(None)


class RuntimeTooOld(Fault):
    """The program on this node takes credentials only in ways that others can see."""


def maker_of(program: str) -> str:
    """Return what determines the built file: program, major version and architecture. Raises Fault."""
    name, (major, _) = _release(program)
    return f"{name} {major} {platform.machine()}"


def _release(program: str) -> tuple[str, tuple[int, int]]:
    """Return name and version. Raises Fault."""
    try:
        reply = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=ASK_S, check=False, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise Fault(FaultClass.REFUSED, f"{program} cannot be asked for its version: {error}") from error
    found = _VERSION.search(reply)
    if found is None:
        raise Fault(FaultClass.REFUSED, f"{program} does not say its version")
    return found[1], (int(found[2]), int(found[3]))


def make(
    program: str, reference: Reference, digest: str, credentials: Mapping[str, str], right: FillRight, *, each_s: float
) -> None:
    """Build the SIF file as the entry of the right. Raises Fault, OSError."""
    began, key = time.time(), os.path.basename(right.directory).partition(".")[0]
    work = f"{right.directory}/work-{os.urandom(4).hex()}"
    right.begin(lambda: Heartbeat(bytes=_size(right.directory)), each_s)
    os.makedirs(f"{work}/{_SCRATCH}", mode=0o700)
    os.makedirs(f"{work}/{_LAYERS}", mode=0o700)
    pinned = reference.pinned(digest)
    _pull(program, pinned, work, credentials, without_tls=is_plain(reference.host))
    shutil.rmtree(f"{right.directory}/tree", ignore_errors=True)
    os.mkdir(f"{right.directory}/tree", 0o700)
    os.rename(f"{work}/{SIF}", f"{right.directory}/tree/{SIF}")
    for name in os.listdir(right.directory):
        if name.startswith("work-"):
            _remove_all(f"{right.directory}/{name}")
    with Tree(f"{right.directory}/tree") as tree:
        sizes = seal(right.directory, tree, lambda _size: None)
    write_entry(right.directory, new_entry(key, pinned, sizes, began))
    right.place()


def _pull(program: str, pinned: str, work: str, credentials: Mapping[str, str], *, without_tls: bool) -> None:
    argv = [program, "-q", "pull", "--disable-cache", *(["--no-https"] if without_tls else [])]
    env = {name: os.environ[name] for name in _PASSED if name in os.environ}
    env |= {"LC_ALL": "C.UTF-8", "APPTAINER_TMPDIR": f"{work}/{_SCRATCH}", "APPTAINER_CACHEDIR": f"{work}/{_LAYERS}"}
    try:
        with _credentials_for(program, pinned, credentials, work) as known:
            argv += [*known.options, f"{work}/{SIF}", pinned]
            done = subprocess.run(
                argv, env={**env, **known.env}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", check=False, pass_fds=known.descriptors, preexec_fn=_tied_to(os.getpid()),
            )  # fmt: skip
    except OSError as error:
        raise Fault(FaultClass.REFUSED, f"{program} cannot be started: {error.strerror}") from error
    if done.returncode or not os.path.exists(f"{work}/{SIF}"):
        reply = " ".join(done.stderr.split())[-LAST_CHARACTERS:]
        full = "no space left" in reply.lower()
        kind = FaultClass.FULL if full else FaultClass.REFUSED
        raise Fault(kind, f"{os.path.basename(program)} could not fetch it (status {done.returncode}): {reply}")


@dataclass(frozen=True, slots=True)
class _Credentials:
    """How the program gets the credentials."""

    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    descriptors: tuple[int, ...] = ()


@contextmanager
def _credentials_for(program: str, pinned: str, credentials: Mapping[str, str], work: str) -> Iterator[_Credentials]:
    """Pass credentials by a file in memory, which ends with the last process that has it open. Apptainer reads it by an
    option, or as the user's own file. Its environment would be visible in a dump. Raises RuntimeTooOld, OSError."""
    if "password" not in credentials:
        yield _Credentials()
        return
    takes_file = _takes_files(program)
    if not takes_file:
        name, release = _release(program)
        if name != "apptainer" or release < _WITH_CONFIG:
            what = (
                f"{name} {release[0]}.{release[1]} on node {os.uname().nodename} takes credentials by variables alone"
            )
            raise RuntimeTooOld(FaultClass.LIBRARY, what, cure="a private image needs Apptainer 1.2 or newer there")
    host = pinned.partition("://")[2].partition("/")[0]
    pair = {"auth": base64.b64encode(f"{credentials['user_name']}:{credentials['password']}".encode()).decode()}
    descriptor = os.memfd_create("registry")
    file = f"/proc/self/fd/{descriptor}"
    try:
        with os.fdopen(os.dup(descriptor), "w", encoding="utf-8") as writer:
            json.dump({"auths": dict.fromkeys((host, *((_HUB,) if host == "docker.io" else ())), pair)}, writer)
        if takes_file:
            yield _Credentials(("--authfile", file), descriptors=(descriptor,))
            return
        config = f"{work}/config"
        os.mkdir(config, 0o700)
        os.symlink(file, f"{config}/{_CONFIG}")
        yield _Credentials(env={"APPTAINER_CONFIGDIR": config}, descriptors=(descriptor,))
    finally:
        os.close(descriptor)


def _takes_files(program: str) -> bool:
    try:
        noted = subprocess.run(
            [program, "pull", "--help"], capture_output=True, text=True, errors="replace", timeout=ASK_S, check=False,
            stdin=subprocess.DEVNULL,
        ).stdout  # fmt: skip
    except subprocess.SubprocessError:
        return False
    return "--authfile" in noted


def _tied_to(parent: int) -> Callable[[], None]:
    """Return a function for the child process: it makes the child end with its parent, so that two processes never
    write into the same directory."""

    def tie() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return tie


def _remove_all(path: str) -> None:
    """Remove the directory. Unpacked images have directories that their owner cannot write."""
    for above, _, _ in os.walk(path):
        os.chmod(above, 0o700)
    shutil.rmtree(path)


def _size(directory: str) -> int:
    """Return about how many bytes are in the directory. Files may come and go."""
    size = 0
    for above, _, files in os.walk(directory):
        for name in files:
            try:
                size += os.lstat(f"{above}/{name}").st_size
            except OSError:
                continue
    return size
