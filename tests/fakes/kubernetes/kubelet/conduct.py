"""How the kubelets of a cluster are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.kubernetes.kinds import Obj
from tests.fakes.kubernetes.kubelet.images import Images


@dataclass
class Conduct:
    """How kubelets are: what the knobs of the cluster say."""

    backoff_s: float = 1.0
    probe_s: float = 10.0
    """The longest pause between two probes: tests need not wait as long as sites do."""
    sync_s: float = 0.2
    log_bytes: int = 10 * 1024 * 1024
    memory_limits: bool = False
    policies: bool = False
    """Whether NetworkPolicies are enforced, as far as :mod:`tests.fakes.kubernetes.kubelet.policies` goes."""
    loses_ends: bool = False
    """Whether the end of a container that ends by itself during its pod's deletion is lost, so that its sidecars are
    left alone until the pod's grace is over. Kubelet 1.36 is so where containerd is just taking that container down
    ("ttrpc: closed")."""
    imagined_s: float | None = None
    """Seconds that each container takes, without processes; None runs them. Sidecars go on until they are ended."""
    imagined_word: str = ""
    """What imagined sidecars leave as their termination message; ``%s`` is the Job's name."""
    images: Images = field(default_factory=Images)
    image_paths: list[str] = field(default_factory=list)
    """Directories of the machine that every image has, too."""
    claims: dict[str, Path] = field(default_factory=dict)
    """Directories of the machine that claims of these names are."""
    detached: dict[str, str] = field(default_factory=dict)
    """Claims whose volumes cannot be attached now, and why."""
    token_of: Callable[[str, str], str] = lambda namespace, account: ""


def conduct_of(knobs: Obj) -> Conduct:
    """From the cluster's knob ``kubelet``: the fields of :class:`Conduct`, of which `images` has those of
    :class:`Images`, and `claims` names directories of the machine."""
    plain = dict(knobs)
    images = Images(**plain.pop("images", {}))
    claims = {name: Path(path) for name, path in plain.pop("claims", {}).items()}
    return Conduct(images=images, claims=claims, **plain)
