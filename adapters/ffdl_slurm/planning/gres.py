"""Compute the generic resources of learners on a node (gres.conf(5)): GPUs, shares of a GPU, MIG devices, others. Pure.

Shares are counted in ``shard`` or ``mps``, and all shares of a job on a node are of one GPU, unless slurm.conf has
MULTIPLE_SHARING_GRES_PJ (SelectTypeParameters). Slurm allocates a GPU whole or in shares, so a job asks for one of
both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from ffdl_batch.domain.backend_facts import NodeShape
from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.job.learner_layout import Load, Part
from ffdl_batch.domain.job.spec_errors import SHARING, is_share
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.learner_start import refusal

_MIG = re.compile(r"\d+g\.\d+gb[\w.+-]*", re.IGNORECASE | re.ASCII)
_FIELD = "batch.gres"


@dataclass(frozen=True, slots=True)
class Generic:
    """The generic resources of a job's learners."""

    gpu_type: str = ""
    """The cluster's name of the requested type of GPUs; "" = any."""
    share: str = ""
    """The resource in which shares of a GPU are counted; "" if no share is requested."""
    per_gpu: int = 0
    """Number of shares of a GPU."""
    units: int = 0
    """Number of shares for each learner, if the manifest names the resource."""
    each: Mapping[str, int] = field(default_factory=dict)
    """Other resources of each learner."""

    def load_of(self, part: Part) -> Load:
        """Return what each learner of `part` needs of its node."""
        plain = replace(part.load, equipped=1 if self.each else 0)
        if self.units:
            return replace(plain, shares=self.units)
        if is_share(part):
            return replace(plain, gpus=0, shares=math.ceil(part.gpus * self.per_gpu))
        return plain

    def capacity_of(self, node: NodeShape) -> Load:
        """Return what one of these nodes has for learners."""
        gpus = count_gpus(node, self.gpu_type)
        shares = count(node, self.share) // max(1, gpus) if self.share else 0
        most = min((count(node, name) // number for name, number in self.each.items()), default=0)
        return Load(node.cpus, node.memory_bytes // 1024**2, gpus, shares, most)

    def text(self, load: Load) -> str:
        """Return the value of --gres for a node with this load, always with counts."""
        kind = f"gpu:{self.gpu_type}" if self.gpu_type else "gpu"
        parts = [f"{kind}:{load.gpus}"] if load.gpus else []
        parts += [f"{self.share}:{load.shares}"] if load.shares else []
        return ",".join([*parts, *(f"{name}:{number * load.equipped}" for name, number in sorted(self.each.items()))])

    def note(self, part: Part) -> str:
        """Return a note if a share was rounded up to whole units; else ""."""
        units = self.load_of(part).shares
        if not is_share(part) or units == part.gpus * self.per_gpu:
            return ""
        return (
            f"{part.path('gpus')}: {part.gpus:g} is rounded up to {units} of the {self.per_gpu} {self.share} of a GPU"
        )


def count(node: NodeShape, name: str) -> int:
    """Return how many of ``name`` (of all types) or ``name:type`` one node has."""
    return sum(there for known, there in node.gres.items() if name in (known, known.partition(":")[0]))


def count_gpus(node: NodeShape, kind: str) -> int:
    """Return how many GPUs of the type ("" = any) one node has."""
    return node.gpus.get(kind, 0) if kind else sum(node.gpus.values())


def shares_per_gpu(nodes: Iterable[NodeShape]) -> dict[str, float]:
    """Return the number of shares that are one GPU, by name of the resource. Leave out a resource if nodes differ."""
    found: dict[str, set[float]] = {}
    for node in nodes:
        for name in SHARING:
            if (shares := count(node, name)) and (gpus := count_gpus(node, "")):
                found.setdefault(name, set()).add(shares / gpus)
    return {name: sizes.pop() for name, sizes in found.items() if len(sizes) == 1}


def kinds(nodes: Sequence[NodeShape]) -> tuple[str, ...]:
    """Return the GPU types of nodes."""
    return tuple(sorted({kind for node in nodes for kind in node.gpus if kind}))


def choose(
    asked: Mapping[str, int],
    gpu_type: str,
    parts: Sequence[Part],
    nodes: Sequence[NodeShape],
    findings: list[Finding],
) -> Generic:
    """Return the resources for `asked` (``batch.gres``) and the parts' GPUs on `nodes`. Add what is missing to
    `findings`."""
    others = {name: number for name, number in asked.items() if number > 0 and name.partition(":")[0] not in SHARING}
    named = {name: number for name, number in asked.items() if number > 0 and name not in others}
    fractions = [part for part in parts if is_share(part)]
    plain = Generic(_match_type(gpu_type, nodes, findings) if any(part.gpus for part in parts) else "", each=others)
    for name, number in (others | named).items() if nodes else ():
        findings += _missing(name, number, nodes)
    if findings:
        return plain
    if named:
        ((name, number),) = named.items()
        most = max((count(node, name) // max(1, count_gpus(node, "")) for node in nodes), default=number)
        if number > most:
            message = f"{number} {name} per learner, but no GPU here has more than {most}, and a job's are of one GPU"
            findings.append(refusal(_FIELD, message, "ask for whole GPUs", "C104"))
        return replace(plain, share=name, per_gpu=most, units=number)
    return _share_of(plain, fractions, nodes, findings) if fractions else plain


def _missing(name: str, number: int, nodes: Sequence[NodeShape]) -> list[Finding]:
    most = max(count(node, name) for node in nodes)
    if not most:
        return [refusal(_FIELD, f"no node here has {name!r}; {_offer(nodes)}", code="C104")]
    if number > most:
        message = f"{number} {name} per learner, but no node here has more than {most}"
        return [refusal(_FIELD, message, f"ask for at most {most} for each learner", "C104")]
    return []


def _share_of(plain: Generic, parts: Sequence[Part], nodes: Sequence[NodeShape], findings: list[Finding]) -> Generic:
    """Add the resource in which nodes with these GPUs, but no other nodes, count shares."""
    wanted = plain.gpu_type
    having = [node for node in nodes if count_gpus(node, wanted)]
    for name in SHARING:
        typed = f"{name}:{wanted}" if wanted and any(f"{name}:{wanted}" in node.gres for node in having) else name
        offering = [node for node in having if count(node, typed)]
        if not offering:
            continue
        if typed == name and wanted and any(set(node.gpus) != {wanted} for node in nodes if count(node, name)):
            message = f"{name} of {wanted} cannot be distinguished from {name} of other GPUs here"
            cure = "leave gpu_type out, or name a partition or a constraint beside it"
            findings.append(refusal("gpu_type", message, cure, "C104"))
        most = max(count(node, typed) // count_gpus(node, wanted) for node in offering)
        if most:
            return replace(plain, share=typed, per_gpu=most)
    for part in parts:
        message = f"{part.gpus:g} GPUs, but no node here offers shares of a GPU (gres shard or mps); {_offer(nodes)}"
        findings.append(refusal(part.path("gpus"), message, "ask for whole GPUs", "C104"))
    return plain


def _offer(nodes: Sequence[NodeShape]) -> str:
    gpus = {f"gpu:{kind}" if kind else "gpu" for node in nodes for kind in node.gpus}
    there = sorted(gpus | {name for node in nodes for name in node.gres})
    return f"known: {', '.join(there)}" if there else "there are no generic resources"


def _match_type(asked: str, nodes: Sequence[NodeShape], findings: list[Finding]) -> str:
    """Return the cluster's spelling of the requested GPU type. A MIG device may be named by its profile alone."""
    known = kinds(nodes)
    if not asked or not nodes:
        return asked
    match = next((kind for kind in known if _plain(kind) == _plain(asked)), None)
    if match is not None:
        return match
    parts = [kind for kind in known if _MIG.fullmatch(asked) and re.search(rf"[_.-]{re.escape(asked)}$", kind, re.I)]
    if len(parts) == 1:
        return parts[0]
    there = f"known: {', '.join(known)}" if known else "its GPUs have no types, so leave gpu_type out"
    findings.append(refusal("gpu_type", f"there is no GPU of type {asked!r} here; {there}", code="C104"))
    return asked


def _plain(text: str) -> str:
    """Return the type without case, dashes and vendor: FfDL writes nvidia-TeslaK80, and a site may write tesla_k80."""
    letters = "".join(c for c in text.lower() if c.isalnum())
    return letters.removeprefix("nvidia").removeprefix("amd")
