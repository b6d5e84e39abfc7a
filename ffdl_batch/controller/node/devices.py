"""Before learners start: whether a node lets them open as many devices as their allocation has.

What may be opened is found by opening: read-only and at once closed, in a process of its own, since a broken driver
may never answer. A device cgroup refuses with EPERM; a file that was let through and has no driver says ENXIO.

How many a job has is known on its node; which files they are is not. Slurm's numbers (SLURM_STEP_GPUS, and
CUDA_VISIBLE_DEVICES where no cgroup makes it count from 0) are places in its list of the node's GPUs, which is to
follow the PCI bus and not the names of the files, has none of a display that gres.conf leaves out, and one for each MIG
instance (common_gres_set_env in Slurm's src/plugins/gres/common/gres_common.c: GPUs have `index`, only network cards
`dev_num`). So numbers decide nothing here; they are a hint in a message.

Too few is always wrong. Too many may be right: the cgroup keeps away only what gres.conf lists and the job does not
have (src/plugins/task/cgroup/task_cgroup_devices.c), a device that is not listed is open to every job, and one resource
may have several files (MultipleFiles). From here these cannot be told from a cgroup that fails; the job is warned.
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
from dataclasses import dataclass, field
from typing import Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.domain.launch.devices import INTEL, NVIDIA, VENDORS, Devices

CODE = "S108"
LOOK_S = 60.0
"""How long all device files of a node may take to be opened: a GPU without persistence mode wakes up at that."""
CUDA, ROCR, ZE = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
TOLD_BY = {"nvidia": (CUDA,), "amd": (ROCR, "HIP_VISIBLE_DEVICES", CUDA), "intel": (ZE, CUDA)}
"""Variables in which a scheduler names the GPUs of a vendor; the first that is set counts."""
HIP_LIKE = ("HIP_VISIBLE_DEVICES", CUDA)
"""What AMD's programs read beside ROCR_VISIBLE_DEVICES, as numbers among the GPUs that this one leaves them."""
MPS_SHARE, MPS_PIPE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY"
STEP_GPUS = "SLURM_STEP_GPUS"
"""The numbers of the step's GPUs on the node, whatever CUDA_VISIBLE_DEVICES counts from (srun(1))."""
_DENIED = frozenset(("EPERM", "EACCES"))
_BROKEN = frozenset(("ENOENT", "ENODEV", "EIO"))
Look = Callable[[Sequence[str]], Mapping[str, str]]
"""What opening each file says: "" or the name of the error."""


@dataclass(frozen=True)
class Files:
    """The device files of one kind that there are, and those of them that may be opened. `said` has the others'
    errors."""

    there: Tuple[str, ...] = ()
    said: Mapping[str, str] = field(default_factory=dict)

    @property
    def open(self) -> Tuple[str, ...]:
        """Those that may be opened, in the order of their numbers."""
        return tuple(path for path in self.there if self.said.get(path, "") not in _DENIED | _BROKEN)

    @property
    def is_confined(self) -> bool:
        """Whether any is kept from this job."""
        return any(self.said.get(path) in _DENIED for path in self.there)


@dataclass(frozen=True)
class Found:
    """What a node has for its learners. `told` are the GPUs as the scheduler names them, `gres` the files of the other
    resources, `doubts` what is not as it should be and stops nothing."""

    vendor: str = ""
    told: Tuple[str, ...] = ()
    gpus: Files = field(default_factory=Files)
    gres: Mapping[str, Files] = field(default_factory=dict)
    doubts: Tuple[str, ...] = ()

    @property
    def files(self) -> Tuple[str, ...]:
        """All device files that the learners may open."""
        return (*self.gpus.open, *(path for files in self.gres.values() for path in files.open))


@dataclass(frozen=True)
class Equipment:
    """What one learner is started with. `gpus` is its list for reports; `variables` replace those of the contract."""

    gpus: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    options: Tuple[str, ...] = ()


def inspect(wanted: Devices, environ: Mapping[str, str], told_by: str, look: Look) -> Found:
    """Hold what the scheduler tells against what may be opened. `told_by`: the variable that counts where the vendor is
    not known. Raises PhaseFailed (S108) where too little may be opened."""
    by_vendor = {vendor: _there(wanted.gpu_files.get(vendor, ())) for vendor in VENDORS} if wanted.gpus else {}
    by_gres = {name: _there(patterns) for name, patterns in wanted.gres_files.items() if wanted.each.get(name)}
    said = look([path for there in (*by_vendor.values(), *by_gres.values()) for path in there])
    vendor = _vendor({name: Files(there, said) for name, there in by_vendor.items()}, environ)
    told = _told(environ, TOLD_BY.get(vendor, (told_by,)) if vendor else (told_by,))
    gres = {name: Files(there, said) for name, there in by_gres.items()}
    doubts: List[str] = []
    gpus = Files()
    if wanted.gpus and wanted.gpu_files:
        gpus = Files(tuple(path for path in by_vendor.get(vendor, ()) if path[-1:].isdigit()), said)
        _check_gpus(wanted, vendor, told, gpus, environ.get(STEP_GPUS, ""), doubts)
    for name, files in gres.items():
        _check_gres(name, wanted.each[name] * wanted.learners, wanted.gres_files[name], files, doubts)
    return Found(vendor, told, gpus, gres, tuple(doubts))


def _there(patterns: Iterable[str]) -> Tuple[str, ...]:
    """The files of all patterns, by their numbers; none where one of the patterns has no file."""
    found = [glob.glob(pattern) for pattern in patterns]
    return tuple(sorted({path for paths in found for path in paths}, key=_by_number)) if all(found) else ()


def _by_number(path: str) -> Tuple[str, int]:
    match = re.search(r"\d+$", path)
    return (path[: match.start()], int(match.group())) if match else (path, -1)


def _vendor(files: Mapping[str, Files], environ: Mapping[str, str]) -> str:
    """Whose GPUs may be opened here, of several (one may be a display's) the first that was told of; else whose there
    are; "" = nobody's."""
    there = [vendor for vendor in VENDORS if vendor in files and files[vendor].there]
    likely = [vendor for vendor in there if files[vendor].open] or there
    return next((vendor for vendor in likely if _told(environ, TOLD_BY[vendor])), likely[0] if likely else "")


def _told(environ: Mapping[str, str], names: Iterable[str]) -> Tuple[str, ...]:
    text = next((environ[name] for name in names if environ.get(name)), "")
    return tuple(name for name in text.split(",") if name and name != "NoDevFiles")


def _check_gpus(
    wanted: Devices, vendor: str, told: Sequence[str], files: Files, step_gpus: str, doubts: List[str]
) -> None:
    if not vendor:
        patterns = ", ".join(pattern for patterns in wanted.gpu_files.values() for pattern in patterns)
        raise _refused(
            f"has no device file of a GPU ({patterns}), and the allocation has {_gpus(wanted.gpus)}; load the driver, "
            "or name the files in gpu_devices of [backend.slurm]"
        )
    if len(told) < wanted.gpus:
        raise _refused(
            f"was told of {_gpus(len(told))} by {' or '.join(TOLD_BY[vendor])}, and {wanted.gpus} were asked for; see "
            "Flags in gres.conf"
        )
    whole = sum(not name.startswith("MIG-") for name in told)
    if len(files.open) < whole + (whole < len(told)):  # MIG instances may all be of one GPU
        hint = _lacking(files, told, step_gpus) if vendor == NVIDIA else ""
        raise _refused(f"lets the learners open {_these(files)}, and the allocation has GPUs {','.join(told)}{hint}")
    if len(files.open) > len(told):
        doubts.append(_too_many(files, f"GPUs {','.join(told)}"))


def _lacking(files: Files, told: Sequence[str], step_gpus: str) -> str:
    """For the message: what is broken, and what is not there if Slurm's numbers are those of the files."""
    numbers = _numbers(step_gpus.split(",")) or ([] if files.is_confined else _numbers(told))
    stem = _by_number(files.there[0])[0] if files.there else ""
    named = {f"{stem}{number}" for number in numbers if stem and _numbers(told)}
    errors = {path: files.said.get(path, "ENOENT") for path in named.union(files.there)}
    broken = [f"{path} ({errors[path]})" for path in sorted(errors, key=_by_number) if errors[path] in _BROKEN]
    return f"; look for {', '.join(broken)}" if broken else ""


def _numbers(names: Iterable[str]) -> List[int]:
    """All of them as numbers; none where one is no number (a MIG device, a UUID)."""
    listed = list(names)
    return [int(name) for name in listed] if all(name.isdigit() for name in listed) else []


def _check_gres(name: str, count: int, patterns: Sequence[str], files: Files, doubts: List[str]) -> None:
    if len(files.open) < count:
        there = _these(files) if files.there else f"no device file of {name} ({', '.join(patterns)})"
        raise _refused(f"lets the learners open {there}, and the allocation has {name}:{count}")
    if len(files.open) > count:
        doubts.append(_too_many(files, f"{name}:{count}"))


def _too_many(files: Files, what: str) -> str:
    why = "it does not confine devices (ConstrainDevices of cgroup.conf)"
    if files.is_confined:
        why = "one that gres.conf does not list is open to every job; leave it out of gpu_devices or gres_devices"
    return f"node {os.uname().nodename} lets the learners open {_these(files)}, and the allocation has {what}: {why}"


def _these(files: Files) -> str:
    return ", ".join(files.open) or f"none of {', '.join(files.there)}"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _refused(what: str) -> PhaseFailed:
    return PhaseFailed(CODE, f"node {os.uname().nodename} {what}")


# ------------------------------------------------------------------------------------------ the learners' parts


def equip(wanted: Devices, found: Found, counts: Sequence[int], environ: Mapping[str, str]) -> List[Equipment]:
    """What each learner of the node gets, in order; `counts` are the GPUs of each."""
    lists = _deal(found.told, counts, shared=wanted.shared)
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
    """In order, to each as many as it is to have, as far as they go; all to each who has any where they are shared."""
    if shared:
        return [tuple(names) if count else () for count in counts]
    dealt, begin = [], 0
    for count in counts:
        dealt.append(tuple(names[begin : begin + count]))
        begin += count
    return dealt


def _gpu_variables(vendor: str, own: Sequence[str]) -> Dict[str, str]:
    """By vendor; what counts from 0 does so among the GPUs that the vendor's own variable leaves."""
    if vendor in ("", NVIDIA):
        return {CUDA: ",".join(own)}
    if vendor == INTEL:
        return {CUDA: "", ZE: ",".join(own)}
    return {ROCR: ",".join(own), **dict.fromkeys(HIP_LIKE, ",".join(map(str, range(len(own)))))}


def _gpu_options(wanted: Devices, found: Found, own: Sequence[str]) -> Tuple[str, ...]:
    if not own or not found.vendor or not wanted.options:
        return ()
    known = tuple(wanted.options.get(found.vendor, ()))
    # The container runtime has no option for these: their files are bound one by one.
    return known or tuple(_mounts(found.gpus.open))


def _mps_variables(environ: Mapping[str, str], sharing: int) -> Dict[str, str]:
    """Slurm gives the percentage of the whole step; the learners that share have equal parts of it."""
    percent = environ.get(MPS_SHARE, "")
    if not percent.isdigit():
        return {}
    pipe = {MPS_PIPE: environ[MPS_PIPE]} if environ.get(MPS_PIPE) else {}
    return {MPS_SHARE: str(max(1, int(percent) // sharing)), **pipe}


def _part(paths: Sequence[str], each: int, learners: int, index: int) -> Sequence[str]:
    """A learner's own files; all where nobody can tell which are the job's."""
    return paths[index * each : (index + 1) * each] if len(paths) <= each * learners else paths


def _mounts(paths: Iterable[str]) -> List[str]:
    return [word for path in paths for word in ("--mount", f"type=bind,source={path},destination={path}")]


# -------------------------------------------------------------------------------------------------- looking


def look(paths: Sequence[str], go_on: Callable[[], None], limit_s: float = LOOK_S) -> Mapping[str, str]:
    """Open each file in a child; `go_on` is called again and again meanwhile, and may raise. Raises PhaseFailed where
    that takes longer than `limit_s`: the child, which a driver may hold for ever, is left to end by itself."""
    if not paths:
        return {}
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _open_all(paths, writer)
    os.close(writer)
    said: Dict[str, str] = {}
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
        said = _lines(text)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, os.WNOHANG)
        raise
    finally:
        os.close(reader)
    os.waitpid(child, 0)
    return said


def _lines(text: bytes) -> Dict[str, str]:
    return dict(json.loads(line) for line in text.decode("utf-8", "surrogateescape").split("\n")[:-1])


def _open_all(paths: Sequence[str], writer: int) -> None:
    """In the child: a line for each file as soon as it is known. Never returns."""
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
