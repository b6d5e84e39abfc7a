"""Where this machine gets its Debian packages from: mirror, keyring, apt's network settings, extra CA certificates.

Only reads. The cluster's root file system is built from the same places, because a site's mirror, proxy and CA are
the ones that work there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .command import run
from .errors import Exit, RigError

MIRROR_VARIABLE = "FFDL_TEST_MIRROR"
_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)")
_APT_KEYS = re.compile(r"Acquire::(https?|Check-|ForceIPv|Retries)")


@dataclass(frozen=True, slots=True)
class Source:
    """One `deb` source: its address, the suites it lists, and whether apt was told to trust it unsigned."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    trusted: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """What a debootstrap needs to know about the outside."""

    mirror: str
    trusted: bool
    apt_settings: str
    certificates: tuple[Path, ...]
    proxy: str | None


def parse_one_line(text: str) -> Iterator[Source]:
    """Sources of a `sources.list` in the one-line format."""
    for line in text.splitlines():
        match = _ONE_LINE.match(line.split("#", 1)[0].strip())
        if match is not None:
            trusted = "trusted=yes" in (match["options"] or "")
            yield Source(match["uri"], (match["suite"],), tuple(match["components"].split()), trusted)


def parse_deb822(text: str) -> Iterator[Source]:
    """Sources of a `.sources` file; a stanza with several URIs gives one source for each."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", plain):
        fields = _fields(stanza)
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        for uri in fields.get("uris", "").split():
            yield Source(
                uri,
                tuple(fields.get("suites", "").split()),
                tuple(fields.get("components", "").split()),
                fields.get("trusted", "no").lower() == "yes",
            )


def _fields(stanza: str) -> dict[str, str]:
    """The fields of one deb822 stanza, names in lower case, continued lines joined."""
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line[:1].isspace():
            fields[name] = f"{fields.get(name, '')} {line.strip()}"
        elif ":" in line:
            name, value = line.split(":", 1)
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields


def choose_mirror(sources: list[Source]) -> Source | None:
    """The main archive among the sources: an http(s) one with `main`, not a security or updates-only archive."""
    usable = [s for s in sources if s.uri.startswith(("http://", "https://")) and "main" in s.components]
    main = [s for s in usable if not any("security" in part for part in (s.uri, *s.suites))]
    return main[0] if main else None


def read_sources(apt: Path = Path("/etc/apt")) -> list[Source]:
    """All sources of this machine."""
    found: list[Source] = []
    one_line = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]
    for path in (p for p in one_line if p.is_file()):
        found += parse_one_line(path.read_text(errors="replace"))
    for path in sorted((apt / "sources.list.d").glob("*.sources")):
        found += parse_deb822(path.read_text(errors="replace"))
    return found


def discover() -> Origin:
    """Mirror and network settings of this machine; FFDL_TEST_MIRROR names another mirror."""
    named = os.environ.get(MIRROR_VARIABLE, "")
    source = Source(named, (), ("main",)) if named else choose_mirror(read_sources())
    if source is None:
        raise RigError(
            f"no Debian mirror in this machine's apt sources; set {MIRROR_VARIABLE} to the address of one",
            Exit.UNAVAILABLE,
        )
    settings = run(["apt-config", "dump"], check=False).stdout
    kept = [line for line in settings.splitlines() if _APT_KEYS.match(line) and not line.endswith('"";')]
    proxy = re.search(r'^Acquire::http::Proxy "([^"]+)"', settings, re.MULTILINE)
    return Origin(
        mirror=source.uri,
        trusted=source.trusted,
        apt_settings="".join(f"{line}\n" for line in kept),
        certificates=tuple(sorted(Path("/usr/local/share/ca-certificates").rglob("*.crt"))),
        proxy=proxy.group(1) if proxy else None,
    )
