"""The site's values, filled in by render.py."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Settings(NamedTuple):
    """See values.env for what each means."""

    run: Path
    mark: str
    prefix: str  # the first two numbers of learners' addresses
    slots: int
    udp_port: int
    source_ports: tuple[int, int]  # first and last
    groups: str
    egress_to: str  # networks, with commas between
    egress_prefix: str
    apptainer_conf: Path
    starters: tuple[str, ...]  # patterns
    command_timeout_s: float

    def slot(self, number: int) -> Path:
        """The directory of a slot."""
        return self.run / str(number)

    def namespace(self, number: int) -> Path:
        """What a learner of the slot's job is started with; the exact text stands in apptainer.conf."""
        return self.slot(number) / "net"

    def job(self, job_id: int) -> Path:
        """What is known of a job."""
        return self.run / f"job-{job_id}"


def load() -> Settings:
    """The values of this site. ValueError: one is not what it should be."""
    first, last = _range("@NETWORK_SOURCE_PORTS@")
    if not 0 < first < last < 1024:
        raise ValueError("NETWORK_SOURCE_PORTS of values.env must be two ports below 1024, e.g. 600-999")
    udp_port = int("@NETWORK_UDP_PORT@")
    if not 0 < udp_port < 1024 or first <= udp_port <= last:
        raise ValueError("NETWORK_UDP_PORT of values.env must be below 1024 and not in NETWORK_SOURCE_PORTS, e.g. 299")
    prefix, egress_prefix = "@NETWORK_PREFIX@", "@NETWORK_EGRESS_PREFIX@"
    for name, text in (("NETWORK_PREFIX", prefix), ("NETWORK_EGRESS_PREFIX", egress_prefix)):
        numbers = text.split(".")
        if len(numbers) != 2 or not all(word.isdigit() and int(word) < 256 for word in numbers):
            raise ValueError(f"{name} of values.env must be the first two numbers of an address, e.g. 10.200")
    if prefix == egress_prefix:
        raise ValueError("NETWORK_PREFIX and NETWORK_EGRESS_PREFIX of values.env must differ")
    return Settings(
        run=Path("@FFDL_RUN@"),
        mark="@JOB_MARK@",
        prefix=prefix,
        slots=int("@NETWORK_SLOTS@"),
        udp_port=udp_port,
        source_ports=(first, last),
        groups="@NETWORK_GROUPS@",
        egress_to="@NETWORK_EGRESS_TO@",
        egress_prefix=egress_prefix,
        apptainer_conf=Path("@APPTAINER_CONF@"),
        starters=_paths("@APPTAINER_STARTERS@"),
        command_timeout_s=float("@NETWORK_COMMAND_TIMEOUT_S@"),
    )


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last)


def _paths(text: str) -> tuple[str, ...]:
    return tuple(text.split(":"))
