"""Check, before learners start, that a node lets them open as many devices as their allocation has.

The check opens each device file read-only and closes it at once. It runs in a child process, since a broken driver may
never answer. A device cgroup refuses with EPERM. A file that the cgroup allows and that has no driver fails with ENXIO.

A node knows how many devices a job has, but not which files they are. Slurm's numbers (SLURM_STEP_GPUS, and
CUDA_VISIBLE_DEVICES if no cgroup makes it count from 0) are positions in Slurm's list of the node's GPUs. That list
should follow the PCI bus, not the names of the files. It omits a display's GPU that gres.conf leaves out, and has one
entry for each MIG instance (common_gres_set_env in Slurm's src/plugins/gres/common/gres_common.c: GPUs have `index`,
only network cards `dev_num`). So numbers decide nothing here; they are a hint in a message.

Too few devices are always an error. Too many may be correct. The cgroup blocks only devices that gres.conf lists and
the job does not have (src/plugins/task/cgroup/task_cgroup_devices.c). A device that is not listed is open to every job,
and one resource may have several files (MultipleFiles). This check cannot distinguish these cases from a cgroup that
fails, so the job gets a warning.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import select
import signal
import time
from dataclasses import field
from typing import Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.domain.launch.devices import INTEL, NVIDIA, VENDORS, Devices
from ffdl_batch.host.fast_dataclass import dataclass

CODE = "S108"
LOOK_S = 60.0
"""Seconds in which all device files of a node must open. Opening one wakes up a GPU without persistence mode."""
CUDA, ROCR, ZE = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
VISIBLE_BY = {"nvidia": (CUDA,), "amd": (ROCR, "HIP_VISIBLE_DEVICES", CUDA), "intel": (ZE, CUDA)}
"""Variables in which a scheduler names the GPUs of a vendor. The first one that is set is used."""
HIP_LIKE = ("HIP_VISIBLE_DEVICES", CUDA)
"""Variables that AMD's programs read besides ROCR_VISIBLE_DEVICES. They number the GPUs that it leaves visible."""
MPS_SHARE, MPS_PIPE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY"
STEP_GPUS = "SLURM_STEP_GPUS"
"""The numbers of the step's GPUs on the node. CUDA_VISIBLE_DEVICES may count from 0 instead (srun(1))."""
_DENIED = frozenset(("EPERM", "EACCES"))
_BROKEN = frozenset(("ENOENT", "ENODEV", "EIO"))
Look = Callable[[Sequence[str]], Mapping[str, str]]
"""Open each file and return the name of its error, "" if it opened."""


@dataclass(frozen=True)
class Files:
    """Device files of one kind, with the result of opening each."""

    present: Tuple[str, ...] = ()
    """The files that exist."""
    messages: Mapping[str, str] = field(default_factory=dict)
    """The name of the error by file, "" if it opened. May have files of other kinds, too."""

    @property
    def open(self) -> Tuple[str, ...]:
        """Return the files that the learners may open, in the order of their numbers."""
        return tuple(path for path in self.present if self.messages.get(path, "") not in _DENIED | _BROKEN)

    @property
    def is_confined(self) -> bool:
        """Return whether this job may not open some of the files."""
        return any(self.messages.get(path) in _DENIED for path in self.present)


@dataclass(frozen=True)
class Found:
    """Devices that a node has for its learners."""

    vendor: str = ""
    assigned: Tuple[str, ...] = ()
    """The GPUs as the scheduler names them."""
    gpus: Files = field(default_factory=Files)
    gres: Mapping[str, Files] = field(default_factory=dict)
    """Device files of the other resources, by resource."""
    doubts: Tuple[str, ...] = ()
    """Warnings: faults that do not stop the job."""

    @property
    def files(self) -> Tuple[str, ...]:
        """Return all device files that the learners may open."""
        return (*self.gpus.open, *(path for files in self.gres.values() for path in files.open))


@dataclass(frozen=True)
class Equipment:
    """Device settings with which one learner starts."""

    gpus: str = ""
    """Its GPUs for reports, separated by commas."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables. They replace those of the contract."""
    options: Tuple[str, ...] = ()


def inspect(wanted: Devices, environ: Mapping[str, str], variable: str, look: Look) -> Found:
    """Compare the devices that the scheduler names with those that open.

    `variable` names them if the vendor is unknown. Raises PhaseFailed (S108) if too few devices open.
    """
    by_vendor = {vendor: _existing(wanted.gpu_files.get(vendor, ())) for vendor in VENDORS} if wanted.gpus else {}
    by_gres = {name: _existing(patterns) for name, patterns in wanted.gres_files.items() if wanted.each.get(name)}
    errors = look([path for there in (*by_vendor.values(), *by_gres.values()) for path in there])
    vendor = _vendor({name: Files(there, errors) for name, there in by_vendor.items()}, environ)
    assigned = _assigned(environ, VISIBLE_BY.get(vendor, (variable,)) if vendor else (variable,))
    gres = {name: Files(there, errors) for name, there in by_gres.items()}
    doubts: List[str] = []
    gpus = Files()
    if wanted.gpus and wanted.gpu_files:
        gpus = Files(tuple(path for path in by_vendor.get(vendor, ()) if path[-1:].isdigit()), errors)
        _check_gpus(wanted, vendor, assigned, gpus, environ.get(STEP_GPUS, ""), doubts)
    for name, files in gres.items():
        _check_gres(name, wanted.each[name] * wanted.learners, wanted.gres_files[name], files, doubts)
    return Found(vendor, assigned, gpus, gres, tuple(doubts))


def _existing(patterns: Iterable[str]) -> Tuple[str, ...]:
    """Return the files of all patterns in the order of their numbers, or none if a pattern matches no file."""
    found = [glob.glob(pattern) for pattern in patterns]
    return tuple(sorted({path for paths in found for path in paths}, key=_by_number)) if all(found) else ()


def _by_number(path: str) -> Tuple[str, int]:
    match = re.search(r"\d+$", path)
    return (path[: match.start()], int(match.group())) if match else (path, -1)


def _vendor(files: Mapping[str, Files], environ: Mapping[str, str]) -> str:
    """Return the vendor whose GPUs open here, else a vendor whose GPUs exist, else "". If there are several (one may
    be a display's), the first that the scheduler names wins."""
    there = [vendor for vendor in VENDORS if vendor in files and files[vendor].present]
    likely = [vendor for vendor in there if files[vendor].open] or there
    return next((vendor for vendor in likely if _assigned(environ, VISIBLE_BY[vendor])), likely[0] if likely else "")


def _assigned(environ: Mapping[str, str], names: Iterable[str]) -> Tuple[str, ...]:
    text = next((environ[name] for name in names if environ.get(name)), "")
    return tuple(name for name in text.split(",") if name and name != "NoDevFiles")


def _check_gpus(
    wanted: Devices, vendor: str, assigned: Sequence[str], files: Files, step_gpus: str, doubts: List[str]
) -> None:
    if not vendor:
        patterns = ", ".join(pattern for patterns in wanted.gpu_files.values() for pattern in patterns)
        raise _refused(
            f"has no device file of a GPU ({patterns}), and the allocation has {_gpus(wanted.gpus)}; load the driver, "
            "or name the files in gpu_devices of [backend.slurm]"
        )
    if len(assigned) < wanted.gpus:
        raise _refused(
            f"got {_gpus(len(assigned))} in {' or '.join(VISIBLE_BY[vendor])}, but {wanted.gpus} were requested; check "
            "Flags in gres.conf"
        )
    named = f"GPUs {','.join(assigned)}"
    whole = sum(not name.startswith("MIG-") for name in assigned)
    if len(files.open) < whole + (whole < len(assigned)):  # MIG instances may all be of one GPU
        hint = _lacking(files, assigned, step_gpus) if vendor == NVIDIA else ""
        raise _refused(f"lets the learners open {_these(files)}, and the allocation has {named}{hint}")
    if len(files.open) > len(assigned):
        doubts.append(_too_many(files, named))


def _lacking(files: Files, assigned: Sequence[str], step_gpus: str) -> str:
    """Name broken files for the message, and missing ones on the assumption that Slurm's numbers are the files'."""
    numbers = _numbers(step_gpus.split(",")) or ([] if files.is_confined else _numbers(assigned))
    stem = _by_number(files.present[0])[0] if files.present else ""
    named = {f"{stem}{number}" for number in numbers if stem and _numbers(assigned)}
    errors = {path: files.messages.get(path, "ENOENT") for path in named.union(files.present)}
    broken = [f"{path} ({errors[path]})" for path in sorted(errors, key=_by_number) if errors[path] in _BROKEN]
    return f"; look for {', '.join(broken)}" if broken else ""


def _numbers(names: Iterable[str]) -> List[int]:
    """Return all names as numbers, or none if one is not a number (a MIG device, a UUID)."""
    listed = list(names)
    return [int(name) for name in listed] if all(name.isdigit() for name in listed) else []


def _check_gres(name: str, count: int, patterns: Sequence[str], files: Files, doubts: List[str]) -> None:
    if len(files.open) < count:
        there = _these(files) if files.present else f"no device file of {name} ({', '.join(patterns)})"
        raise _refused(f"lets the learners open {there}, and the allocation has {name}:{count}")
    if len(files.open) > count:
        doubts.append(_too_many(files, f"{name}:{count}"))


def _too_many(files: Files, what: str) -> str:
    why = "it does not confine devices (ConstrainDevices of cgroup.conf)"
    if files.is_confined:
        why = "one that gres.conf does not list is open to every job; leave it out of gpu_devices or gres_devices"
    return f"node {os.uname().nodename} lets the learners open {_these(files)}, and the allocation has {what}: {why}"


def _these(files: Files) -> str:
    return ", ".join(files.open) or f"none of {', '.join(files.present)}"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _refused(what: str) -> PhaseFailed:
    return PhaseFailed(CODE, f"node {os.uname().nodename} {what}")


# ------------------------------------------------------------------------------------------ the learners' parts


def equip(wanted: Devices, found: Found, counts: Sequence[int], environ: Mapping[str, str]) -> List[Equipment]:
    """Return the equipment of each learner of the node, in order. `counts` are the numbers of their GPUs."""
    lists = _deal(found.assigned, counts, shared=wanted.shared)
    made = []
    for index, own in enumerate(lists):
        variables, options = _gpu_variables(found.vendor, own), [*_gpu_options(wanted, found, own)]
        if own and wanted.shared:
            variables.update(_mps_variables(environ, sum(1 for count in counts if count)))
            options += _mounts(path for path in [environ.get(MPS_PIPE, "")] if path)
        for name, files in found.gres.items():
            paths = _part(files.open, wanted.each[name], wanted.learners, index)
            variables[f"FFDL_DEVICES_{re.sub('[^A-Z0-9]', '_', name.upper())}"] = ",".join(paths)
            options += _mounts(paths)
        made.append(Equipment(",".join(own), variables, tuple(options)))
    return made


def _deal(names: Sequence[str], counts: Sequence[int], *, shared: bool) -> List[Tuple[str, ...]]:
    """Deal the GPUs in order until none are left. If they are shared, each learner that has any gets all."""
    if shared:
        return [tuple(names) if count else () for count in counts]
    dealt, begin = [], 0
    for count in counts:
        dealt.append(tuple(names[begin : begin + count]))
        begin += count
    return dealt


def _gpu_variables(vendor: str, own: Sequence[str]) -> Dict[str, str]:
    """Return the variables of a vendor. Those that count from 0 number the GPUs that ROCR_VISIBLE_DEVICES leaves."""
    if vendor in ("", NVIDIA):
        return {CUDA: ",".join(own)}
    if vendor == INTEL:
        return {CUDA: "", ZE: ",".join(own)}
    return {ROCR: ",".join(own), **dict.fromkeys(HIP_LIKE, ",".join(map(str, range(len(own)))))}


def _gpu_options(wanted: Devices, found: Found, own: Sequence[str]) -> Tuple[str, ...]:
    if not own or not found.vendor or not wanted.options:
        return ()
    known = tuple(wanted.options.get(found.vendor, ()))
    # If the container runtime has no option for these, bind their files one by one.
    return known or tuple(_mounts(found.gpus.open))


def _mps_variables(environ: Mapping[str, str], sharing: int) -> Dict[str, str]:
    """Divide the percentage, which Slurm gives for the whole step, equally among the learners that share."""
    percent = environ.get(MPS_SHARE, "")
    if not percent.isdigit():
        return {}
    pipe = {MPS_PIPE: environ[MPS_PIPE]} if environ.get(MPS_PIPE) else {}
    return {MPS_SHARE: str(max(1, int(percent) // sharing)), **pipe}


def _part(paths: Sequence[str], each: int, learners: int, index: int) -> Sequence[str]:
    """Return a learner's own files, or all if the job's files cannot be determined."""
    return paths[index * each : (index + 1) * each] if len(paths) <= each * learners else paths


def _mounts(paths: Iterable[str]) -> List[str]:
    return [word for path in paths for word in ("--mount", f"type=bind,source={path},destination={path}")]


# -------------------------------------------------------------------------------------------------- looking


def look(paths: Sequence[str], go_on: Callable[[], None], limit_s: float = LOOK_S) -> Mapping[str, str]:
    """Open each file in a child process and call `go_on`, which may raise, repeatedly while it runs. Raises PhaseFailed
    after `limit_s` seconds. The child is killed but not waited for, since a driver may hold it forever."""
    if not paths:
        return {}
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _open_all(paths, writer)
    os.close(writer)
    errors: Dict[str, str] = {}
    try:
        text, deadline = b"", time.monotonic() + limit_s
        while True:
            if select.select([reader], [], [], 0.2)[0]:
                piece = os.read(reader, 65536)
                text += piece
                if not piece:
                    break
            elif time.monotonic() > deadline:
                asked = [path for path in paths if path not in _lines(text)]
                raise _refused(f"did not open {asked[0]} within {limit_s:.0f} s: look after its driver")
            go_on()
        errors = _lines(text)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, os.WNOHANG)
        raise
    finally:
        os.close(reader)
    os.waitpid(child, 0)
    return errors


def _lines(text: bytes) -> Dict[str, str]:
    return dict(json.loads(line) for line in text.decode("utf-8", "surrogateescape").split("\n")[:-1])


def _open_all(paths: Sequence[str], writer: int) -> None:
    """Write, in the child, one line for each file as soon as its result is known. Never returns."""
    try:
        for path in paths:
            os.write(writer, (json.dumps([path, _try(path)]) + "\n").encode("utf-8", "surrogateescape"))
    finally:
        os._exit(0)


def _try(path: str) -> str:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return ""
