"""What a container sees in its root beside the image."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.kubernetes.kinds import Obj
from tests.fakes.kubernetes.kubelet.slot import Slot
from tests.fakes.kubernetes.kubelet.volumes import Volumes
from tests.fakes.kubernetes.quantities import amount

_NEVER_WRITTEN = ("configMap", "secret", "downwardAPI", "projected")


def make_counters(slot: Slot) -> Path:
    """What the container sees as its control group."""
    place = slot.place / "cgroup"
    place.mkdir(exist_ok=True)
    limit = (slot.container["resources"].get("limits") or {}).get("memory")
    (place / "memory.max").write_text(f"{int(amount(limit)) if limit else 'max'}\n")
    (place / "memory.events").write_text("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n")
    return place


def mounts_of(
    pod: Obj, slot: Slot, volumes: Volumes, environment: dict[str, str], image_paths: list[str], files: dict[str, Path]
) -> list[Obj]:
    """All mounts, outer ones first. `files` are what kubelet and runtime put there, but for what the pod mounts."""
    found: list[Obj] = [{"source": path, "target": path, "readonly": True} for path in image_paths]
    for mount in slot.container.get("volumeMounts") or []:
        source = volumes.mount_source(mount, environment)
        kind = next(one for one in pod["spec"]["volumes"] if one["name"] == mount["name"])
        never = any(name in kind for name in _NEVER_WRITTEN)
        readonly = bool(mount.get("readOnly") or never)
        found.append({"source": str(source), "target": mount["mountPath"], "readonly": readonly})
    targets = {one["target"].rstrip("/") for one in found}
    readonly = bool((slot.container.get("securityContext") or {}).get("readOnlyRootFilesystem"))
    for target, path in files.items():
        if target not in targets:
            found.append({"source": str(path), "target": target, "readonly": readonly or target != "/etc/hosts"})
    found.append({"source": str(slot.message_file), "target": slot.container["terminationMessagePath"]})
    return sorted(found, key=lambda one: len(Path(one["target"]).parts))
