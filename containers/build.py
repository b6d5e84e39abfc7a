#!/usr/bin/env python3
"""Builds learner images from the definition files beside it, by ``apptainer build``.

    build.py [--apptainer PROGRAM] [--out DIR] [--mirror URL] [--suite NAME] [--mksquashfs-args TEXT] [--in-setup]
             [--force] [--list] [NAME ...]

Needs Apptainer >= 1.2 (templates in definitions), debootstrap, root and a Debian mirror; no container registry. The
mirror is the one that this machine's apt uses. An image whose recipe did not change is not built again:
``<name>.sif.recipe`` beside it holds the recipe's hash. Standard library alone, so that it runs on a bare node too.
Exit status: 0 built or up to date, 1 a build failed, 2 usage, 69 a program is missing.

Apptainer's root runs %post and %test with every capability that the kernel knows, and fails where root does not have
them all (virtual machines and containers without CAP_SYS_RESOURCE: "Requesting capability set ... while permitted
..."; seen with 1.4.5), or where it is itself in a chroot. There the same sections run by chroot from %setup instead,
which needs no more than debootstrap does; --in-setup asks for that way where it is not chosen by itself.
"""

# ruff: noqa: T201 - this is a command line program
from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass  # noqa: TID251 - the standard library alone
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEFAULT_IMAGES = ("custom", "pytorch")
DEFAULT_SUITE = "trixie"
_STATUS = re.compile(r"#\s*ffdl-image:\s*(?P<status>built|unbuilt)\b\s*(?:\((?P<reason>.*)\))?")
_SOURCE_LINE = re.compile(r"deb\s+(?:\[[^\]]*\]\s+)?(?P<uri>https?://\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)")


class BuildError(Exception):
    """A build that cannot go on; the text says why and what to do, `status` is the exit status."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Definition:
    """One definition file. `reason` says why it is not built here ("" = it is)."""

    name: str
    path: Path
    reason: str

    @classmethod
    def read(cls, path: Path) -> Definition:
        """The definition in `path`; its first line must be the status mark."""
        first = path.read_text(encoding="utf-8").split("\n", 1)[0]
        match = _STATUS.match(first)
        if match is None:
            raise BuildError(f"{path}: the first line must be '# ffdl-image: built' or '# ffdl-image: unbuilt (why)'")
        unbuilt = match["status"] == "unbuilt"
        return cls(path.stem, path, (match["reason"] or "no reason given") if unbuilt else "")

    def recipe(self, suite: str, mirror: str) -> str:
        """Hash of all that decides what the image holds."""
        text = "\0".join((self.path.read_text(encoding="utf-8"), suite, mirror))
        return hashlib.sha256(text.encode()).hexdigest()


def main(arguments: list[str] | None = None) -> int:
    """Build what is named; see the module's text."""
    options = read_options(arguments)
    try:
        definitions = {d.name: d for d in (Definition.read(p) for p in sorted(HERE.glob("*.def")))}
        if options.list:
            for definition in definitions.values():
                print(f"{definition.name:14} {'unbuilt: ' + definition.reason if definition.reason else 'built'}")
            return 0
        chosen = [choose(definitions, name) for name in options.names or DEFAULT_IMAGES]
        mirror = options.mirror or machine_mirror(Path("/etc/apt"))
        if not mirror:
            raise BuildError("this machine's apt names no Debian mirror; give one: --mirror URL", 2)
        out = options.out.resolve()
        out.mkdir(parents=True, exist_ok=True)
        in_setup = options.in_setup or not has_all_capabilities()
        builder = Builder(out, options.apptainer, options.suite, mirror, in_setup, options.mksquashfs_args)
        for definition in chosen:
            builder.build(definition, force=options.force)
    except BuildError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return error.status
    except OSError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    return 0


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build learner images without a container registry.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(DEFAULT_IMAGES)}")
    parser.add_argument("--apptainer", default="apptainer", help="the apptainer program")
    parser.add_argument("--out", type=Path, default=Path("build/images"), help="where <name>.sif goes")
    parser.add_argument("--mirror", default="", help="Debian mirror (default: that of this machine's apt)")
    parser.add_argument("--suite", default=DEFAULT_SUITE, help=f"Debian suite of the images (default {DEFAULT_SUITE})")
    parser.add_argument(
        "--mksquashfs-args",
        default="",
        metavar="TEXT",
        help="passed on by apptainer >= 1.4; with '-Xcompression-level 1' packing is much faster, the image larger",
    )
    parser.add_argument("--in-setup", action="store_true", help="run %%post and %%test by chroot, not by Apptainer")
    parser.add_argument("--force", action="store_true", help="build again even when up to date")
    parser.add_argument("--list", action="store_true", help="say which images are built here and which are not")
    return parser.parse_args(arguments)


def choose(definitions: dict[str, Definition], name: str) -> Definition:
    """The definition `name`; an unknown or unbuilt one is an error that says what to do."""
    definition = definitions.get(name)
    if definition is None:
        raise BuildError(f"there is no containers/{name}.def; known are {', '.join(definitions)}", 2)
    if definition.reason:
        raise BuildError(f"{name} is not built here: {definition.reason}; its header shows the apptainer command", 2)
    return definition


def machine_mirror(apt: Path) -> str:
    """The main Debian archive that apt uses on this machine, "" where there is none."""
    found: list[tuple[str, str, str]] = []
    for path in sorted([apt / "sources.list", *(apt / "sources.list.d").glob("*.list")]):
        if path.is_file():
            lines = (line.split("#", 1)[0].strip() for line in path.read_text(errors="replace").splitlines())
            found += [(m["uri"], m["suite"], m["components"]) for m in map(_SOURCE_LINE.match, lines) if m]
    for path in sorted((apt / "sources.list.d").glob("*.sources")):
        found += parse_deb822(path.read_text(errors="replace"))
    for uri, suites, components in found:
        is_main = "main" in components.split() and "security" not in f"{uri} {suites}"
        if is_main and uri.rstrip("/").endswith("debian"):
            return uri
    return ""


def parse_deb822(text: str) -> list[tuple[str, str, str]]:
    """(address, suites, components) of the enabled binary sources of a ``.sources`` file."""
    found = []
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", plain):
        fields = {k.lower(): v.strip() for k, v in re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.MULTILINE)}
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").lower() != "no":
            found += [
                (uri, fields.get("suites", ""), fields.get("components", ""))
                for uri in fields.get("uris", "").split()
                if uri.startswith(("http://", "https://"))
            ]
    return found


@dataclass(frozen=True)
class Builder:
    """Where images go and by what they are made. `in_setup`: see :func:`move_to_setup`; `packing`: what apptainer
    passes on to mksquashfs."""

    out: Path
    apptainer: str
    suite: str
    mirror: str
    in_setup: bool
    packing: str = ""

    def build(self, definition: Definition, *, force: bool) -> None:
        """One image, unless it is there and its recipe is the same. Whole or not at all."""
        target = self.out / f"{definition.name}.sif"
        mark = self.out / f"{definition.name}.sif.recipe"
        recipe = definition.recipe(self.suite, self.mirror)
        if not force and target.is_file() and mark.is_file() and mark.read_text().strip() == recipe:
            print(f"{target} is up to date", flush=True)
            return
        require_programs(self.apptainer)
        started = time.monotonic()
        unfinished = self.out / f".{definition.name}.building.sif"
        self._run_apptainer(definition, unfinished)
        mark.unlink(missing_ok=True)
        unfinished.replace(target)
        mark.write_text(f"{recipe}\n")
        size = target.stat().st_size / 1024**2
        print(f"{target}: built in {time.monotonic() - started:.0f} s, {size:.0f} MiB", flush=True)

    def _run_apptainer(self, definition: Definition, unfinished: Path) -> None:
        log = self.out / f"{definition.name}.log"
        argv = [self.apptainer, "build", "--force"]
        argv += ["--build-arg", f"SUITE={self.suite}", "--build-arg", f"MIRROR={self.mirror}"]
        if self.packing:
            argv += ["--mksquashfs-args", self.packing]
        with tempfile.TemporaryDirectory(prefix="ffdl-image-") as folder, log.open("wb") as output:
            source = definition.path
            if self.in_setup:
                argv.append("--notest")
                source = Path(folder) / source.name
                source.write_text(move_to_setup(definition.path.read_text(encoding="utf-8")), encoding="utf-8")
            argv += [str(unfinished), str(source)]
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
        if done.returncode != 0 or not unfinished.is_file():
            unfinished.unlink(missing_ok=True)
            last = " | ".join(log.read_text(errors="replace").strip().splitlines()[-4:])
            raise BuildError(
                f"apptainer could not build {definition.name} (exit status {done.returncode}); is the Debian mirror "
                f"{self.mirror} reachable? The whole log is in {log}; it ends with: {last}"
            )


def has_all_capabilities() -> bool:
    """Whether this process may have every capability that the kernel knows."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    bounding = re.search(r"^CapBnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="ascii"))
    return bounding is not None and int(bounding[1], 16) == (1 << (last + 1)) - 1


def move_to_setup(text: str) -> str:
    """The definition with the commands of %post and %test in %setup, run in the new root file system by chroot."""
    sections = re.split(r"^(?=%)", text, flags=re.MULTILINE)
    bodies = {}
    for section in sections:
        name, _, body = section.partition("\n")
        if name.strip() in ("%post", "%test"):
            bodies[name.strip()] = body
    kept = [s for s in sections if s.partition("\n")[0].strip() not in bodies]
    inside = "".join(bodies[name] for name in ("%post", "%test") if name in bodies)
    setup = f"""%setup
cat >"$APPTAINER_ROOTFS/post.sh" <<'END_OF_POST'
{inside.rstrip()}
END_OF_POST
# In a chroot the root is no mount and cannot be made private; then the surroundings decide, and the trap cleans up.
unshare --mount --propagation unchanged sh -euc '
mount --make-rprivate / 2>/dev/null || :
trap "umount $0/proc $0/etc/resolv.conf $0/etc/hosts 2>/dev/null || :" EXIT
mount -t proc proc "$0/proc"
for file in /etc/resolv.conf /etc/hosts; do
    touch "$0$file"
    [ ! -e "$file" ] || mount --bind "$file" "$0$file"
done
chroot "$0" /bin/sh -eu /post.sh' "$APPTAINER_ROOTFS"
rm "$APPTAINER_ROOTFS/post.sh"
"""
    return "".join([*kept, "\n", setup])


def require_programs(apptainer: str) -> None:
    """Name what is missing before a long build finds out."""
    for program, package in ((apptainer, "apptainer"), ("debootstrap", "debootstrap")):
        if shutil.which(program) is None:
            raise BuildError(f"{program} is not installed; install the package {package}", 69)


if __name__ == "__main__":
    sys.exit(main())
