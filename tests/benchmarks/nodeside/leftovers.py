"""What jobs have on this node: leftovers.py [DIRECTORY]. Prints {kind: [names]}; needs root.

It knows nothing of what should be there: who asks compares a count with one from before. DIRECTORY is FFDL_RUN of the
site's values. Namespaces are looked for where `ip netns` has no names: behind processes and behind mounts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_NAMESPACE = re.compile(r"net:\[\d+\]")


def main(directory: str) -> None:
    """Count, and print."""
    print(json.dumps(count(Path(directory))))


def count(directory: Path) -> dict[str, list[str]]:
    """The names of everything, by its kind."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    spaces = {**namespaces_of_processes(Path("/proc")), **namespaces_of_mounts(mounts)}
    spaces.pop(str(Path("/proc/self/ns/net").readlink()), None)
    entrances: list[tuple[str, Sequence[str]]] = [("", ())]
    entrances += [(f"{name} ", ("nsenter", f"--net={path}")) for name, path in spaces.items()]
    links, addresses = [], []
    for space, enter in entrances:
        try:
            links += [space + one for one in links_of(_print(*enter, "ip", "-o", "link", "show"))]
            addresses += [space + one for one in addresses_of(_print(*enter, "ip", "-o", "address", "show"))]
        except subprocess.CalledProcessError:
            if not enter:
                raise
            # It has just gone. One that stays is counted itself.
    found: dict[str, Sequence[str]] = {
        "namespaces": [*spaces],
        "devices": links,
        "addresses": addresses,
        "mounts": mounts_below(mounts, directory),
        "slots": [path.name for path in directory.glob("[0-9]*")],
        "claims": [path.name for path in directory.glob("slots/*")],
        "jobs' directories": [path.name for path in directory.glob("job-*")],
        "filter tables": tables_of(_print("nft", "list", "tables")),
        "UDP sockets": sockets_of(Path("/proc/self/net/udp").read_text(encoding="utf-8")),
        "processes": list(_processes(Path("/proc"))),
    }
    return {kind: sorted(names) for kind, names in found.items()}


def namespaces_of_processes(proc: Path) -> dict[str, str]:
    """Network namespaces that a process is in, and where each can be entered."""
    found = {}
    for path in proc.glob("[0-9]*/ns/net"):
        try:
            found[str(path.readlink())] = str(path)
        except OSError:  # it has ended
            continue
    return found


def namespaces_of_mounts(mountinfo: str) -> dict[str, str]:
    """Network namespaces that a mount holds (mountinfo, proc(5): the fourth field is the root, the fifth the place)."""
    fields = (line.split() for line in mountinfo.splitlines())
    return {one[3]: one[4] for one in fields if _NAMESPACE.fullmatch(one[3])}


def mounts_below(mountinfo: str, directory: Path) -> list[str]:
    """The places of mounts below a directory."""
    places = (line.split()[4] for line in mountinfo.splitlines())
    return [place for place in places if place.startswith(f"{directory}/")]


def links_of(printed: str) -> list[str]:
    """Names of devices as ``ip -o link`` prints them, the loopback left out, which every namespace has."""
    names = (line.split()[1].rstrip(":").partition("@")[0] for line in printed.splitlines())
    return [name for name in names if name != "lo"]


def addresses_of(printed: str) -> list[str]:
    """Addresses as ``ip -o address`` prints them, the loopback's left out."""
    fields = (line.split() for line in printed.splitlines())
    return [f"{one[1]} {one[3]}" for one in fields if one[1] != "lo"]


def tables_of(printed: str) -> list[str]:
    """Tables as ``nft list tables`` prints them."""
    return [line.removeprefix("table ").strip() for line in printed.splitlines()]


def sockets_of(text: str) -> list[str]:
    """Local ends of the sockets in /proc/net/udp; a VXLAN device's is there, wherever the device is."""
    return [line.split()[1] for line in text.splitlines()[1:]]


def _processes(proc: Path) -> Iterator[str]:
    """Number, name and start of each, but of this one and those that it comes from."""
    stats = dict(_stats(proc))
    own, parent = set(), os.getpid()
    while parent in stats:
        own.add(parent)
        parent = int(stats[parent][2])
    yield from (f"{pid} {stat[0]} {stat[20]}" for pid, stat in stats.items() if pid not in own)


def _stats(proc: Path) -> Iterator[tuple[int, Sequence[str]]]:
    """Name and further fields of /proc/<pid>/stat (proc(5)); the name may have blanks and brackets."""
    for path in proc.glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:
            continue
        number, _, name = head.partition(" (")
        yield int(number), [name, *rest.split()]


def _print(*argv: str) -> str:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, timeout=20).stdout


if __name__ == "__main__":
    main(*sys.argv[1:] or ["/run/ffdl"])
