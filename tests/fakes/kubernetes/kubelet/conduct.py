"""How the kubelets of a cluster are: what the knobs of the cluster say."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from tests.fakes.kubernetes.kinds import Obj


class PullFailed(Exception):
    """No registry has the image."""


@dataclass
class Images:
    """Each image is the machine's own file system, but for those that match a pattern of `missing`. `known` maps names
    to their configuration (``env``, ``user``, ``group``)."""

    missing: list[str] = field(default_factory=list)
    known: dict[str, Obj] = field(default_factory=dict)

    def get(self, name: str) -> Obj:
        if any(fnmatch(name, pattern) for pattern in self.missing):
            full = name if ":" in name.rsplit("/", 1)[-1] or "@" in name else f"{name}:latest"
            what = f'failed to pull and unpack image "{full}": failed to resolve reference "{full}"'
            raise PullFailed(f"rpc error: code = NotFound desc = {what}: {full}: not found")
        return self.known.get(name, {})


@dataclass
class Conduct:
    """The fields of the cluster's knob ``kubelet``."""

    backoff_s: float = 1.0
    probe_s: float = 10.0
    """The longest pause between two probes: tests need not wait as long as sites do."""
    sync_s: float = 0.2
    memory_limits: bool = False
    policies: bool = False
    """Whether NetworkPolicies are enforced, as far as :func:`tests.fakes.kubernetes.kubelet.worker.is_cut_off` goes."""
    loses_ends: bool = False
    """Whether the end of a container that ends by itself during its pod's deletion is lost, so that its sidecars are
    left alone until the pod's grace is over. Kubelet 1.36 is so where containerd is just taking that container down
    ("ttrpc: closed")."""
    imagined_s: float | None = None
    """Seconds that each container takes, without processes; None runs them. Sidecars run until they are ended."""
    imagined_word: str = ""
    """What imagined sidecars leave as their termination message; ``%s`` is the Job's name."""
    images: Images = field(default_factory=Images)
    image_paths: list[str] = field(default_factory=list)
    """Directories of the machine that every image has, too."""
    claims: dict[str, Path] = field(default_factory=dict)
    """Directories of the machine that claims of these names are."""
    detached: dict[str, str] = field(default_factory=dict)
    """Claims whose volumes cannot be attached now, and why."""


def conduct_of(knobs: Obj) -> Conduct:
    """Read the knob ``kubelet``, which is plain JSON."""
    images = Images(**knobs.get("images", {}))
    claims = {name: Path(path) for name, path in knobs.get("claims", {}).items()}
    return Conduct(**{**knobs, "images": images, "claims": claims})
