"""A pod's volumes as directories, and what a container sees in its root beside the image."""

from __future__ import annotations

import base64
import os
import re
import shutil
import time
from pathlib import Path

from tests.fakes.kubernetes.kinds import CONFIG_MAPS, SECRETS, Obj
from tests.fakes.kubernetes.kubelet.conduct import Conduct
from tests.fakes.kubernetes.objects import annotations_of, labels_of, namespace_of
from tests.fakes.kubernetes.quantities import amount
from tests.fakes.kubernetes.store import Store

Files = dict[str, tuple[bytes, int]]
"""Path -> content and mode."""
_KEYED = re.compile(r"^metadata\.(labels|annotations)\['([^']*)'\]$")
_FOLLOWED = ("configMap", "secret", "downwardAPI", "projected")


class NotReady(Exception):
    """A volume's source is missing (yet). `reason` is that of the event."""

    reason = "FailedMount"


class NotAttached(NotReady):
    """A claim's volume is not at the pod's node (yet)."""

    reason = "FailedAttachVolume"


class Volumes:
    """The volumes of one pod below `place`; claims are below `claims`, but for those that the kubelet knows."""

    def __init__(self, place: Path, claims: Path, store: Store, conduct: Conduct) -> None:
        self._place, self._claims, self._store, self._conduct = place, claims, store, conduct
        self._directories: dict[str, Path] = {}
        self._written: dict[str, Files] = {}

    def set_up(self, pod: Obj) -> None:
        """Make all. Raises NotReady."""
        group = pod["spec"].get("securityContext", {}).get("fsGroup")
        for volume in pod["spec"].get("volumes") or []:
            name = volume["name"]
            if "persistentVolumeClaim" in volume:
                place = self._claim(namespace_of(pod), volume["persistentVolumeClaim"]["claimName"], group)
            elif "emptyDir" in volume:
                place = self._place / "empty" / name
                if not place.exists():
                    place.mkdir(parents=True)
                    _give(place, group, 0o777)
            else:
                place = self._place / "files" / name
                place.mkdir(parents=True, exist_ok=True)
                _give(place, group, 0o755 if group is None else 0o775)
                self._write(place, name, self._content(pod, volume), group)
            self._directories[name] = place

    def _claim(self, namespace: str, name: str, group: int | None) -> Path:
        """Return the directory of a claim, made if it is missing. Raises NotAttached."""
        if why := self._conduct.detached.get(name, ""):
            raise NotAttached(why)
        place = self._conduct.claims.get(name, self._claims / namespace / name)
        if not place.exists():
            place.mkdir(parents=True)
            place.chmod(0o777)
        if group is not None and place.stat().st_gid != group:
            _give_all(place, group)
        return place

    def follow(self, pod: Obj) -> None:
        """Write again what has changed in the pod or in what its volumes show."""
        group = pod["spec"].get("securityContext", {}).get("fsGroup")
        for volume in pod["spec"].get("volumes") or []:
            name = volume["name"]
            if name in self._directories and any(source in volume for source in _FOLLOWED):
                try:
                    content = self._content(pod, volume)
                except NotReady:
                    continue
                self._write(self._directories[name], name, content, group)

    def mounts(self, pod: Obj, container: Obj, environment: dict[str, str], added: list[Obj]) -> list[Obj]:
        """Return all mounts of a container, outer ones first. `added` are those of kubelet and runtime; where the pod
        mounts something, they are left out."""
        kinds = {volume["name"]: volume.keys() for volume in pod["spec"].get("volumes") or []}
        found = [
            {"source": str(self._source(mount, environment)), "target": mount["mountPath"],
             "readonly": bool(mount.get("readOnly") or kinds[mount["name"]] & set(_FOLLOWED))}
            for mount in container.get("volumeMounts") or []
        ]  # fmt: skip
        targets = {one["target"].rstrip("/") for one in found}
        found += [one for one in added if one["target"] not in targets]
        return sorted(found, key=lambda one: len(Path(one["target"]).parts))

    def _source(self, mount: Obj, environment: dict[str, str]) -> Path:
        place, below = self._directories[mount["name"]], mount.get("subPath", "")
        if mount.get("subPathExpr"):
            below = re.sub(r"\$\(([^)]*)\)", lambda match: environment.get(match[1], match[0]), mount["subPathExpr"])
        for part in Path(below).parts:
            mode = place.stat().st_mode & 0o7777
            place = place / part
            if not place.exists():
                place.mkdir()
                shutil.chown(place, 0, place.parent.stat().st_gid)
                place.chmod(mode)
        return place.resolve()

    def too_large(self, pod: Obj) -> str:
        """Return the message about an emptyDir that is larger than its limit, or nothing."""
        for volume in pod["spec"].get("volumes") or []:
            limit = (volume.get("emptyDir") or {}).get("sizeLimit")
            place = self._directories.get(volume["name"])
            if limit and place is not None and _size(place) > amount(limit):
                return f'Usage of EmptyDir volume "{volume["name"]}" exceeds the limit "{limit}". '
        return ""

    def _write(self, place: Path, name: str, files: Files, group: int | None) -> None:
        """Change all files at once, by a link (kubelet's atomic writer)."""
        if self._written.get(name) == files:
            return
        fresh = place / f"..{time.strftime('%Y_%m_%d_%H_%M_%S')}.{time.monotonic_ns()}"
        fresh.mkdir()
        fresh.chmod(0o755)
        for path, (content, mode) in files.items():
            file = fresh / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            _give(file, group, mode | (0o440 if group is not None else 0))
        data, link = place / "..data", place / "..data_tmp"
        before = data.readlink() if data.is_symlink() else None
        link.symlink_to(fresh.name)
        link.replace(data)
        for top in {Path(path).parts[0] for path in files}:
            if not (place / top).is_symlink():
                (place / top).symlink_to(f"..data/{top}")
        if before is not None:
            shutil.rmtree(place / before, ignore_errors=True)
        self._written[name] = files

    def _content(self, pod: Obj, volume: Obj) -> Files:
        mode = volume[next(key for key in _FOLLOWED if key in volume)]["defaultMode"]
        sources = volume["projected"].get("sources") or [] if "projected" in volume else [volume]
        found: Files = {}
        for source in sources:
            for kind in (CONFIG_MAPS, SECRETS):
                what = "configMap" if kind is CONFIG_MAPS else "secret"
                if what in source:
                    name = source[what].get("secretName") or source[what].get("name", "")
                    obj = self._store.get(kind, namespace_of(pod), name)
                    if obj is None:
                        raise NotReady(f'MountVolume.SetUp failed for volume : {what.lower()} "{name}" not found')
                    found |= _chosen(content_of(obj), source[what].get("items"), mode)
            for item in source.get("downwardAPI", {}).get("items") or []:
                found[item["path"]] = (field_value(pod, item["fieldRef"]["fieldPath"]).encode(), mode)
        return found


def _chosen(content: dict[str, bytes], items: list[Obj] | None, mode: int) -> Files:
    """Return the files of an object, or those that `items` name."""
    if items is None:
        return {key: (value, mode) for key, value in content.items()}
    for item in items:
        if item["key"] not in content:
            raise NotReady(f"MountVolume.SetUp failed for volume : references non-existent key: {item['key']}")
    return {item["path"]: (content[item["key"]], item.get("mode", mode)) for item in items}


def content_of(obj: Obj) -> dict[str, bytes]:
    plain, encoded = obj.get("data") or {}, obj.get("binaryData") or {}
    if obj["kind"] == "Secret":
        plain, encoded = {}, plain
    texts = {key: value.encode() for key, value in plain.items()}
    return {**texts, **{key: base64.b64decode(value) for key, value in encoded.items()}}


def field_value(pod: Obj, path: str) -> str:
    if keyed := _KEYED.match(path):
        values = labels_of(pod) if keyed[1] == "labels" else annotations_of(pod)
        return values.get(keyed[2], "")
    found: object = pod
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return "" if found is None else str(found)


def _give_all(place: Path, group: int) -> None:
    """What kubelet does where the group of a volume's root is another than the pod's (OnRootMismatch)."""
    for directory, _, names in os.walk(place, topdown=False):
        for path in (*(os.path.join(directory, name) for name in names), directory):
            if not os.path.islink(path):
                mode = os.stat(path).st_mode & 0o7777
                os.chown(path, -1, group)
                os.chmod(path, mode | (0o2770 if path == directory else 0o660))


def _size(place: Path) -> int:
    found = 0
    for directory, _, names in os.walk(place):
        for name in names:
            try:
                found += os.lstat(os.path.join(directory, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return found


def _give(path: Path, group: int | None, mode: int) -> None:
    """Owner root; with an fsGroup its group, directories with the bit that passes it on."""
    if group is not None:
        os.chown(path, 0, group)
        if path.is_dir():
            mode |= 0o2070
    path.chmod(mode)
