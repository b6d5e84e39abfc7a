"""Reads the site's values. render.py fills them in."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Sequence

from . import values
from .commands import Trouble

_CURE = "; correct the site's values, render them and install again (docs/network.md, Values)"


class Settings(NamedTuple):
    """The site's values. values.env explains them."""

    run: Path
    mark: str
    prefix: str  # the first two numbers of learners' addresses
    slots: int
    mechanism: str  # one of values.MECHANISMS
    udp_port: int
    source_ports: tuple[int, int]  # first and last
    wireguard_program: str
    wireguard_ports: tuple[int, int]  # first and last
    secret: Path
    groups: str
    egress_to: str  # networks, separated by commas
    egress_prefix: str
    apptainer_conf: Path
    starters: tuple[str, ...]  # patterns
    slurm_etc: Path
    command_timeout_s: float

    def slot(self, number: int) -> Path:
        """Return the directory of a slot."""
        return self.run / str(number)

    def namespace(self, number: int) -> Path:
        """Return the path of the slot's namespace, which learners join. apptainer.conf has exactly this text."""
        return self.slot(number) / "net"

    def job(self, job_id: int) -> Path:
        """Return the directory with the files of a job."""
        return self.run / f"job-{job_id}"


_SITE = {
    "SLURM_ETC": "@SLURM_ETC@",
    "FFDL_RUN": "@FFDL_RUN@",
    "FFDL_LIBEXEC": "@FFDL_LIBEXEC@",
    "JOB_MARK": "@JOB_MARK@",
    "JOB_MARK_SOURCE": "@JOB_MARK_SOURCE@",
    "NETWORK_PREFIX": "@NETWORK_PREFIX@",
    "NETWORK_SLOTS": "@NETWORK_SLOTS@",
    "NETWORK_MECHANISM": "@NETWORK_MECHANISM@",
    "NETWORK_UDP_PORT": "@NETWORK_UDP_PORT@",
    "NETWORK_SOURCE_PORTS": "@NETWORK_SOURCE_PORTS@",
    "NETWORK_WIREGUARD_PROGRAM": "@NETWORK_WIREGUARD_PROGRAM@",
    "NETWORK_WIREGUARD_PORTS": "@NETWORK_WIREGUARD_PORTS@",
    "NETWORK_SECRET": "@NETWORK_SECRET@",
    "NETWORK_GROUPS": "@NETWORK_GROUPS@",
    "NETWORK_EGRESS_TO": "@NETWORK_EGRESS_TO@",
    "NETWORK_EGRESS_PREFIX": "@NETWORK_EGRESS_PREFIX@",
    "NETWORK_COMMAND_TIMEOUT_S": "@NETWORK_COMMAND_TIMEOUT_S@",
    "NETWORK_TIMEOUT_S": "@NETWORK_TIMEOUT_S@",
    "PROLOG_EPILOG_TIMEOUT_S": "@PROLOG_EPILOG_TIMEOUT_S@",
    "APPTAINER_CONF": "@APPTAINER_CONF@",
    "APPTAINER_STARTERS": "@APPTAINER_STARTERS@",
}


class WrongValues(Trouble):
    """Invalid values. `run` is FFDL_RUN if that value is valid."""

    def __init__(self, wrong: Sequence[values.Wrong]) -> None:
        super().__init__("; ".join(_with_place(one) for one in wrong) + _CURE)
        self.run = None if "FFDL_RUN" in {one.name for one in wrong} else Path(_SITE["FFDL_RUN"])


def load() -> Settings:
    """Return the values of this site. Raises WrongValues with all invalid ones."""
    wrong = values.wrong_in(_SITE)
    if wrong:
        raise WrongValues(wrong)
    return Settings(
        run=Path(_SITE["FFDL_RUN"]),
        mark=_SITE["JOB_MARK"],
        prefix=_SITE["NETWORK_PREFIX"],
        slots=int(_SITE["NETWORK_SLOTS"]),
        mechanism=_SITE["NETWORK_MECHANISM"],
        udp_port=int(_SITE["NETWORK_UDP_PORT"]),
        source_ports=values.ports_of(_SITE["NETWORK_SOURCE_PORTS"]),
        wireguard_program=_SITE["NETWORK_WIREGUARD_PROGRAM"],
        wireguard_ports=values.ports_of(_SITE["NETWORK_WIREGUARD_PORTS"]),
        secret=Path(_SITE["NETWORK_SECRET"]),
        groups=_SITE["NETWORK_GROUPS"],
        egress_to=_SITE["NETWORK_EGRESS_TO"],
        egress_prefix=_SITE["NETWORK_EGRESS_PREFIX"],
        apptainer_conf=Path(_SITE["APPTAINER_CONF"]),
        starters=tuple(_SITE["APPTAINER_STARTERS"].split(":")),
        slurm_etc=Path(_SITE["SLURM_ETC"]),
        command_timeout_s=float(_SITE["NETWORK_COMMAND_TIMEOUT_S"]),
    )


def _with_place(wrong: values.Wrong) -> str:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    numbers = [number for number, line in enumerate(lines, start=1) if line.startswith(f'    "{wrong.name}": ')]
    return f"{__file__}:{numbers[0]}: {wrong.text}"
