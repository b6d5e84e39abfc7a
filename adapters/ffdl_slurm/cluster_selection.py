"""Compares the cluster that a submitter's shell chooses with that of this daemon's commands. Reads links only."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

_CONF, _CLUSTERS = "SLURM_CONF", "SLURM_CLUSTERS"
_APART = "for a daemon of its own, set FFDL_STATE_DIR to another directory"


def compare_cluster(shell: Mapping[str, str], own: Mapping[str, str]) -> tuple[str, str]:
    """Return why the variables of `shell` choose another cluster than `own`, and what to do; "" twice if they do not.

    Both decide as for sbatch(1). A shell without SLURM_CONF, such as cron's, uses that of the daemon. Without
    SLURM_CLUSTERS it chooses the cluster of the configuration file.
    """
    clusters = shell.get(_CLUSTERS, "")
    if "," in clusters or clusters == "all":
        return f"{_CLUSTERS}={clusters!r} names several clusters, and a daemon submits to one", f"unset {_CLUSTERS}"
    if clusters != own.get(_CLUSTERS, ""):
        return _differs(_CLUSTERS, clusters, own)
    conf, ours = shell.get(_CONF, ""), own.get(_CONF, "")
    if conf and (not ours or os.path.realpath(conf) != os.path.realpath(ours)):
        return _differs(_CONF, conf, own)
    return "", ""


def _differs(name: str, value: str, own: Mapping[str, str]) -> tuple[str, str]:
    ours = own.get(name, "")
    same = f"export {name}={shlex.quote(ours)}" if ours else f"unset {name}"
    return (
        f"{name} is {_shown(value)} in this shell and {_shown(ours)} for the running daemon, so the job would run on "
        "another cluster",
        f"to submit to the cluster of the daemon, run: {same}; {_APART}; if none of your jobs is unfinished, run: "
        "ffdl daemon restart",
    )


def _shown(value: str) -> str:
    return repr(value) if value else "not set"
