"""A pod's volumes as directories."""

from __future__ import annotations

import base64
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.kubernetes.kinds import CONFIG_MAPS, SECRETS, Obj, annotations_of, labels_of, name_of, namespace_of
from tests.fakes.kubernetes.quantities import amount
from tests.fakes.kubernetes.store import Store

Files = dict[str, tuple[bytes, int]]
"""Path -> content and mode."""

_KEYED = re.compile(r"^metadata\.(labels|annotations)\['([^']*)'\]$")
_FOLLOWED = ("configMap", "secret", "downwardAPI", "projected")


class NotReady(Exception):
    """A volume's source is not there (yet)."""

    def told(self) -> tuple[str, str, str]:
        """Reason, message and source of the event."""
        return "FailedMount", f"MountVolume.SetUp failed for volume : {self}", "kubelet"


class NotAttached(NotReady):
    """A claim's volume is not at the pod's node (yet)."""

    def told(self) -> tuple[str, str, str]:
        return "FailedAttachVolume", str(self), "attachdetach-controller"


@dataclass(frozen=True)
class Claims:
    """Directories of claims: below `place`, but for those of `known`. `detached`: why volumes of claims cannot be
    attached."""

    place: Path
    known: dict[str, Path]
    detached: dict[str, str]

    def get(self, namespace: str, name: str, group: int | None) -> Path:
        """The directory, made where it is not there; :class:`NotReady`."""
        if why := self.detached.get(name, ""):
            raise NotAttached(why)
        place = self.known.get(name, self.place / namespace / name)
        if not place.exists():
            place.mkdir(parents=True)
            place.chmod(0o777)
        if group is not None and place.stat().st_gid != group:
            _give_all(place, group)
        return place


class Volumes:
    """The volumes of one pod below `place`. `token_of` makes tokens."""

    def __init__(self, place: Path, store: Store, claims: Claims, token_of: Callable[[str, str], str]) -> None:
        self._place, self._store, self._claims, self._token_of = place, store, claims, token_of
        self.directories: dict[str, Path] = {}
        self._written: dict[str, Files] = {}

    def set_up(self, pod: Obj) -> None:
        """Make all; :class:`NotReady`."""
        group = pod["spec"].get("securityContext", {}).get("fsGroup")
        for volume in pod["spec"].get("volumes") or []:
            name = volume["name"]
            if "persistentVolumeClaim" in volume:
                place = self._claims.get(namespace_of(pod), volume["persistentVolumeClaim"]["claimName"], group)
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
            self.directories[name] = place

    def follow(self, pod: Obj) -> None:
        """Write anew what has changed in the pod or in what its volumes show."""
        group = pod["spec"].get("securityContext", {}).get("fsGroup")
        for volume in pod["spec"].get("volumes") or []:
            if volume["name"] in self.directories and any(source in volume for source in _FOLLOWED):
                try:
                    content = self._content(pod, volume)
                except NotReady:
                    continue
                self._write(self.directories[volume["name"]], volume["name"], content, group)

    def mount_source(self, mount: Obj, environment: dict[str, str]) -> Path:
        """What a container's mount shows of the volume."""
        place = self.directories[mount["name"]]
        below = mount.get("subPath", "")
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
        """The message about an emptyDir that is larger than its limit, or nothing."""
        for volume in pod["spec"].get("volumes") or []:
            limit = (volume.get("emptyDir") or {}).get("sizeLimit")
            place = self.directories.get(volume["name"])
            if limit and place is not None and _size(place) > amount(limit):
                return f'Usage of EmptyDir volume "{volume["name"]}" exceeds the limit "{limit}". '
        return ""

    def _write(self, place: Path, name: str, files: Files, group: int | None) -> None:
        """All files change at once, by a link (kubelet's atomic writer)."""
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
        tops = {Path(path).parts[0] for path in files}
        for top in tops:
            if not (place / top).is_symlink():
                (place / top).symlink_to(f"..data/{top}")
        for entry in place.iterdir():
            if entry.is_symlink() and not entry.name.startswith("..") and entry.name not in tops:
                entry.unlink()
        if before is not None:
            shutil.rmtree(place / before, ignore_errors=True)
        self._written[name] = files

    def _content(self, pod: Obj, volume: Obj) -> Files:
        if "configMap" in volume:
            return self._of_object(pod, volume["configMap"], "configMap", volume["configMap"]["defaultMode"])
        if "secret" in volume:
            return self._of_object(pod, volume["secret"], "secret", volume["secret"]["defaultMode"])
        if "downwardAPI" in volume:
            return downward(pod, volume["downwardAPI"], volume["downwardAPI"]["defaultMode"])
        if "projected" in volume:
            return self._projected(pod, volume["projected"])
        raise NotReady(f"volume {volume['name']}: its kind is not known here: {sorted(set(volume) - {'name'})}")

    def _projected(self, pod: Obj, projected: Obj) -> Files:
        found: Files = {}
        mode = projected["defaultMode"]
        for source in projected.get("sources") or []:
            for kind in ("configMap", "secret"):
                if kind in source:
                    found.update(self._of_object(pod, source[kind], kind, mode))
            if "downwardAPI" in source:
                found.update(downward(pod, source["downwardAPI"], mode))
            if "serviceAccountToken" in source:
                token = self._token_of(namespace_of(pod), pod["spec"].get("serviceAccountName", "default"))
                found[source["serviceAccountToken"]["path"]] = (token.encode(), mode)
        return found

    def _of_object(self, pod: Obj, source: Obj, what: str, mode: int) -> Files:
        kind = CONFIG_MAPS if what == "configMap" else SECRETS
        name = source.get("secretName") or source.get("name", "")
        obj = self._store.get(kind, namespace_of(pod), name)
        if obj is None:
            if source.get("optional"):
                return {}
            raise NotReady(f'{kind.kind.lower()} "{name}" not found')
        content = content_of(obj)
        if not source.get("items"):
            return {key: (value, mode) for key, value in content.items()}
        found: Files = {}
        for item in source["items"]:
            if item["key"] in content:
                found[item["path"]] = (content[item["key"]], item.get("mode", mode))
            elif not source.get("optional"):
                raise NotReady(
                    f"{what} references non-existent {'config' if what == 'configMap' else 'secret'} key: {item['key']}"
                )
        return found


def content_of(obj: Obj) -> dict[str, bytes]:
    """Keys and values of a ConfigMap or a Secret."""
    if obj["kind"] == "Secret":
        return {key: base64.b64decode(value) for key, value in (obj.get("data") or {}).items()}
    found = {key: value.encode() for key, value in (obj.get("data") or {}).items()}
    found.update({key: base64.b64decode(value) for key, value in (obj.get("binaryData") or {}).items()})
    return found


def downward(pod: Obj, source: Obj, mode: int) -> Files:
    """Files of the downward API."""
    found: Files = {}
    for item in source.get("items") or []:
        if "fieldRef" in item:
            text = field_value(pod, item["fieldRef"]["fieldPath"])
        else:
            reference = item["resourceFieldRef"]
            container = next(one for one in pod["spec"]["containers"] if one["name"] == reference.get("containerName"))
            part, _, resource = reference["resource"].partition(".")
            text = str((container.get("resources", {}).get(part) or {}).get(resource, "0"))
        found[item["path"]] = (text.encode(), item.get("mode", mode))
    return found


def field_value(pod: Obj, path: str) -> str:
    """What a fieldRef shows."""
    keyed = _KEYED.match(path)
    if keyed:
        values = labels_of(pod) if keyed[1] == "labels" else annotations_of(pod)
        return values.get(keyed[2], "")
    if path in ("metadata.labels", "metadata.annotations"):
        values = labels_of(pod) if path.endswith("labels") else annotations_of(pod)
        return "\n".join(f'{key}="{_escaped(value)}"' for key, value in sorted(values.items()))
    if path == "metadata.name":
        return name_of(pod)
    if path == "metadata.namespace":
        return namespace_of(pod)
    found: object = pod
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if path in ("status.podIPs", "status.hostIPs") and isinstance(found, list):
        return ",".join(one["ip"] for one in found)
    return "" if found is None else str(found)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


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
