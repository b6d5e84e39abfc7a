"""Builds what a site installs, in dist/: the source archive, the wheel, a Debian package and an RPM.

    make_packages.py                         all of them, from this checkout; needs the project's virtual environment
    make_packages.py tree ROOT [NAME=VALUE]  only the files of a package, below ROOT, with values of slurm-configs

The packages contain a virtual environment with the locked versions of all libraries, made by the interpreter that they
will run with, and the systemd units that need no value of the site. `tree` needs only the standard library.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.packages import install_packages
from tools.processes import ROOT, say

DIST, BUILD = ROOT / "dist", ROOT / "build" / "packages"
VENV = "opt/ffdl/venv"
"""The directory of FFDL_BIN in slurm-configs/values.env."""
COMMANDS = ("ffdl", "ffdl-submit", "ffdl-submitd", "ffdl-admin", "ffdl-hub")
PLACES = {
    "systemd/ffdl-hub.service": "usr/lib/systemd/system",
    "systemd/ffdl-hub.socket": "usr/lib/systemd/system",
    "systemd/ffdl-spawner.service": "usr/lib/systemd/system",
    "systemd/ffdl-users.slice": "usr/lib/systemd/system",
    "systemd/ffdl-users-.slice.d/10-ffdl.conf": "usr/lib/systemd/system/ffdl-users-.slice.d",
    "systemd/ffdl-tenant-.service.d/10-ffdl.conf": "usr/lib/systemd/system/ffdl-tenant-.service.d",
    "systemd/ffdl-submitd.service": "usr/lib/systemd/user",
    "sysusers.d/ffdl.conf": "usr/lib/sysusers.d",
    "pam.d/ffdl-user": "etc/pam.d",
}
"""Rendered files of slurm-configs that are the same at all sites. A site renders the others."""
LEFT_OUT = ("contourpy", "cycler", "fonttools", "kiwisolver", "matplotlib", "pillow", "pyarrow", "pyparsing")
"""Libraries of the extras plots and parquet alone, which are large and which no service needs."""
SYSTEM_PYTHON = "/usr/bin/python3"
NEEDED = ("python3-venv", "rpm")
"""Debian packages that building needs."""


def main() -> int:
    """Build the packages, or the tree of one."""
    if sys.argv[1:2] == ["tree"]:
        make_tree(Path(sys.argv[2]).absolute(), sys.argv[3:])
        return 0
    if troubles := install_packages(NEEDED).troubles:
        sys.exit(troubles[0])
    for place in (DIST, BUILD):
        shutil.rmtree(place, ignore_errors=True)
    archive = make_archives()
    source = unpack(archive)
    make_debian_package(source)
    make_rpm(archive)
    for path in sorted(DIST.iterdir()):
        say(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e6:.1f} MB")
    return 0


def make_archives() -> Path:
    """Build the man pages, the source archive with them, and the wheel from the archive; return the archive."""
    say("man pages, source archive, wheel")
    doctrees, pages = "docs/_build/doctrees-man", "docs/_build/man"
    run(sys.executable, "-m", "sphinx", "-q", "-W", "-b", "man", "-d", doctrees, "docs", pages)
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(DIST))
    (archive,) = DIST.glob("*.tar.gz")
    run(sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "--no-build-isolation", "-w", str(DIST), str(archive))
    return archive


def unpack(archive: Path) -> Path:
    """The directory of the unpacked source archive."""
    shutil.unpack_archive(archive, BUILD)
    return BUILD / archive.name.removesuffix(".tar.gz")


def make_debian_package(source: Path) -> None:
    """Build the package for this machine's release of Debian: it needs the release's version of Python."""
    say("Debian package")
    root = BUILD / "deb"
    run(SYSTEM_PYTHON, "-m", "tools.make_packages", "tree", str(root), cwd=source)
    python = output(SYSTEM_PYTHON, "-c", "import sys; print(*sys.version_info[:2], sep='.')")
    major, minor = map(int, python.split("."))
    values = {
        "version": source.name.removeprefix("ffdl_batch-"),
        "architecture": output("dpkg", "--print-architecture"),
        "python": f"python3 (>= {python}), python3 (<< {major}.{minor + 1})",
        "size": output("du", "-sk", str(root)).split()[0],
    }
    control = root / "DEBIAN"
    shutil.copytree(source / "packaging" / "deb", control)
    text = (control / "control").read_text(encoding="utf-8").format(**values)
    (control / "control").write_text(text, encoding="utf-8")
    (control / "conffiles").write_text("/etc/pam.d/ffdl-user\n", encoding="utf-8")
    sums = "find etc opt usr -type f -print0 | sort -z | xargs -0 md5sum > DEBIAN/md5sums"
    run("sh", "-c", sums, cwd=root)
    name = "ffdl-batch_{version}_{architecture}.deb".format(**values)
    run("dpkg-deb", "--root-owner-group", "--build", str(root), str(DIST / name))


def make_rpm(archive: Path) -> None:
    """Build the RPM. It fits the Python of other systems only if they have the same version."""
    say("RPM")
    values = {
        "python": str(Path(SYSTEM_PYTHON).resolve()),
        "_topdir": str(BUILD / "rpm"),
        "_rpmdir": str(DIST),
        "_rpmfilename": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
    }
    defined = [word for name, value in values.items() for word in ("--define", f"{name} {value}")]
    run("rpmbuild", "-tb", "--nodeps", "--quiet", *defined, str(archive))


def make_tree(root: Path, values: list[str]) -> None:
    """Write the files of a package below `root`. This interpreter will run the programs."""
    venv = root / VENV
    run(sys.executable, "-m", "venv", str(venv))
    pip = (str(venv / "bin/pip"), "--quiet", "--disable-pip-version-check", "--no-input", "install", "--no-compile")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as chosen:
        chosen.write("\n".join(one for one in locked_requirements() if one.split("==")[0] not in LEFT_OUT))
        chosen.flush()
        run(*pip, "--require-hashes", "-r", chosen.name)
    run(*pip, "--no-deps", "--no-build-isolation", str(ROOT))
    for path in (venv / "pyvenv.cfg", *(venv / "bin").iterdir()):
        if not path.is_symlink():
            path.write_bytes(path.read_bytes().replace(os.fsencode(root), b""))
    # With bytecode in the package, nothing is written beside it later. Its check by date would fail after some copies.
    compiled = ("-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/")
    run(str(venv / "bin/python"), *compiled, str(venv / "lib"))
    for name in COMMANDS:
        link(root / "usr/bin" / name, f"../../{VENV}/bin/{name}")
    link(root / "usr/share/ffdl-batch", f"../../{VENV}/share/ffdl-batch")
    for page in (venv / "share/man/man1").glob("ffdl*.1"):
        compressed = root / "usr/share/man/man1" / f"{page.name}.gz"
        compressed.parent.mkdir(parents=True, exist_ok=True)
        compressed.write_bytes(gzip.compress(page.read_bytes(), mtime=0))
    (root / "usr/share/doc/ffdl-batch").mkdir(parents=True)
    shutil.copy(ROOT / "LICENSE", root / "usr/share/doc/ffdl-batch/copyright")
    (root / "etc/ffdl").mkdir(parents=True)
    place_rendered_files(root, values)


def locked_requirements() -> list[str]:
    """The entries of the lock file."""
    return re.split(r"\n(?=[a-z])", (ROOT / "requirements-extras.txt").read_text(encoding="utf-8"))


def place_rendered_files(root: Path, values: list[str]) -> None:
    """Render slurm-configs with these values, and copy the files of PLACES."""
    configs = ROOT / "slurm-configs"
    with tempfile.TemporaryDirectory() as place:
        site, rendered = Path(place, "site.env"), Path(place, "rendered")
        site.write_text("\n".join(["ACCOUNTING_STORAGE_HOST=unused", *values, ""]), encoding="utf-8")
        files = ("--values", str(configs / "values.env"), "--values", str(site))
        output(sys.executable, str(configs / "render.py"), *files, "--out", str(rendered))
        for name, target in PLACES.items():
            (root / target).mkdir(parents=True, exist_ok=True)
            shutil.copy(rendered / name, root / target)


def link(path: Path, target: str) -> None:
    """Make a symbolic link, and its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def run(*argv: str, cwd: Path = ROOT) -> None:
    """Run a command; its failure ends this program, without a traceback below the command's own message."""
    if status := subprocess.call(argv, cwd=cwd):
        sys.exit(f"make_packages: {shlex.join(argv)} exited with status {status}")


def output(*argv: str) -> str:
    """What a command prints."""
    return subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
