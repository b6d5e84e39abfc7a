#!/usr/bin/env python3
"""Fill the placeholders of the Slurm fragments in this folder with a site's values.

    render.py --values values.env [--values site.env] [--overlay slurm-22.05] --out DIR

The first values file names every value; the overlay of a Slurm version comes next; further files win over both.
Standard library and Python 3.9 only, because it runs on a site's administration host. It writes files below
--out and nothing else: it never restarts a daemon and never touches /etc by itself.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Mapping

EX_CONFIG = 78  # sysexits.h: a configuration error
HERE = Path(__file__).resolve().parent
FRAGMENTS = (
    *("slurm.conf.d", "gres.conf", "cgroup.conf", "prolog.d", "epilog.d", "libexec", "systemd", "pam.d", "cron"),
    *("sysusers.d", "modulefiles", "ffdl"),
)
sys.dont_write_bytecode = True  # this folder stays as it is
sys.path.insert(0, str(HERE / "libexec"))

from ffdl_health import values as health  # noqa: E402
from ffdl_network import values as network  # noqa: E402

RULES = {**network.RULES, **health.RULES}

PLACEHOLDER = re.compile(r"@([A-Z][A-Z0-9_]*)@")
ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)")
UNSET = "?"


class ConfigError(Exception):
    """Mistakes in values files or a fragment, a line each, which begins with `file:line:`."""


@dataclass(frozen=True)
class Value:
    """One value and the place that set it last, so that a message can point there."""

    text: str
    where: str


def read_values(path: Path) -> dict[str, Value]:
    """Parse `NAME=value` lines; `#` begins a comment line. The last of two equal names in one file is refused."""
    values: dict[str, Value] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}:0: cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        where = f"{path}:{number}"
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = ASSIGNMENT.fullmatch(stripped)
        if match is None:
            raise ConfigError(f"{where}: expected NAME=value with a name in capitals, found {stripped!r}")
        name, text = match.groups()
        if name in values:
            raise ConfigError(f"{where}: {name} is set twice, first at {values[name].where}")
        values[name] = Value(text.strip(), where)
    return values


def merge(base: Mapping[str, Value], layers: list[Mapping[str, Value]]) -> dict[str, Value]:
    """Lay the later files over the first one. A name that the first does not list is taken for a typing mistake."""
    merged = dict(base)
    for layer in layers:
        for name, value in layer.items():
            if name not in base:
                raise ConfigError(f"{value.where}: {name} is not a known value")
            merged[name] = value
    return merged


def fill(text: str, values: Mapping[str, Value], where: str, seen: tuple[str, ...] = ()) -> str:
    """Replace every placeholder of one line. `\\n` in a value becomes a line break (for GRES_LINES)."""

    def value_of(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in values:
            raise ConfigError(f"{where}: unknown placeholder @{name}@")
        if name in seen:
            raise ConfigError(f"{values[name].where}: {name} refers to itself")
        if values[name].text == UNSET:
            raise ConfigError(f"{where}: {name} has no value yet; set it in a --values file ({values[name].where})")
        return fill(values[name].text, values, values[name].where, (*seen, name)).replace("\\n", "\n")

    return PLACEHOLDER.sub(value_of, text)


def check(values: Mapping[str, Value]) -> None:
    """Refuse values that the root programs cannot work with, all of them at once: on a node they would end jobs."""
    filled = {name: fill(f"@{name}@", values, values[name].where) for name in RULES if name in values}
    missing = RULES.keys() - filled.keys()
    if missing:
        raise ConfigError(f"values.env:0: {', '.join(sorted(missing))} is not there; is it of an earlier release?")
    wrong = [*network.wrong_in(filled), *health.wrong_in(filled)]
    if wrong:
        raise ConfigError("\n".join(f"{values[one.name].where}: {one.text}" for one in wrong))


def fragments(root: Path) -> Iterator[Path]:
    """Every fragment file below `root`, in a stable order."""
    for name in FRAGMENTS:
        entry = root / name
        if not entry.is_dir():
            yield entry
            continue
        # While another process writes bytecode, files with temporary names come and go there.
        yield from sorted(p for p in entry.rglob("*") if "__pycache__" not in p.parts and p.is_file())


def render(root: Path, values: Mapping[str, Value]) -> dict[Path, str]:
    """All fragments filled in, by path relative to `root`. Nothing is written before all of them are right."""
    rendered: dict[Path, str] = {}
    for path in fragments(root):
        lines = path.read_text(encoding="utf-8").splitlines()
        filled = [fill(line, values, f"{path}:{number}") for number, line in enumerate(lines, start=1)]
        rendered[path.relative_to(root)] = "\n".join(filled) + "\n"
    return rendered


def write(root: Path, out: Path, rendered: Mapping[Path, str]) -> None:
    """Write each file with the mode of its fragment, because prolog and epilog must be executable."""
    for relative, text in rendered.items():
        target = out / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        target.chmod(0o755 if (root / relative).stat().st_mode & 0o100 else 0o644)


def overlay_path(root: Path, name: str) -> Path:
    """The file of a named overlay; the message lists those that exist."""
    path = root / "overlays" / f"{name}.env"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in (root / "overlays").glob("*.env")))
        raise ConfigError(f"{path}:0: there is no overlay {name}; known: {known}")
    return path


def main(argv: list[str] | None = None) -> int:
    """Command line; 0 or 78."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", action="append", type=Path, required=True, metavar="FILE")
    parser.add_argument("--overlay", metavar="NAME", help="differences of a Slurm version, e.g. slurm-22.05")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    options = parser.parse_args(argv)
    try:
        files = [*([overlay_path(HERE, options.overlay)] if options.overlay else []), *options.values[1:]]
        values = merge(read_values(options.values[0]), [read_values(path) for path in files])
        rendered = render(HERE, values)
        check(values)
        write(HERE, options.out, rendered)
    except ConfigError as error:
        for line in str(error).splitlines():
            print(f"render.py: {line}", file=sys.stderr)
        return EX_CONFIG
    except OSError as error:
        print(f"render.py: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return EX_CONFIG
    print(f"{len(rendered)} files written below {options.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
