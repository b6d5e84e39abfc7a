"""What this machine must offer before anything is built: root, Debian's tools, namespaces, cgroups.

Each thing that is missing is one sentence (RigError), never a stack trace.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .command import bare_environment, proxy_environment, run, tail
from .console import step
from .errors import Exit, RigError

CACHE_VARIABLE = "FFDL_TEST_CACHE"
CGROUP_ROOT = Path("/sys/fs/cgroup")
# Controllers that Slurm's cgroup/v1 plugin uses in this cluster.
CGROUP_V1 = ("cpuacct", "cpuset", "devices", "freezer", "memory")
# Program looked for -> Debian package that has it.
_TOOLS = {
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setsid": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "ssh-keygen": "openssh-client",
}


def cache_dir() -> Path:
    """Where builds are kept between runs: FFDL_TEST_CACHE, else the XDG cache directory. Never the checkout."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).resolve()
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "ffdl-batch-tests"


def require_root() -> None:
    """Namespaces with device nodes and a setuid Apptainer need real root."""
    if os.geteuid() != 0:
        raise RigError(
            "the test cluster needs root (namespaces, device nodes, cgroups); run it with sudo or in a VM",
            Exit.UNAVAILABLE,
        )


def require_tools(also: str = "") -> None:
    """Install the host programs that are missing, by apt; `also` is one more, named as its package is."""
    wanted = {**_TOOLS, also: also} if also else _TOOLS
    missing = sorted({package for tool, package in wanted.items() if shutil.which(tool) is None})
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise RigError(
            f"this machine has no apt-get to install {', '.join(missing)}; use a Debian machine", Exit.UNAVAILABLE
        )
    env = {**bare_environment(**proxy_environment()), "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    with step(f"host packages: {' '.join(missing)}"):
        if run(install, env=env, timeout_s=300, check=False).returncode == 0:
            return
        run(["apt-get", "update"], env=env, timeout_s=300, check=False)
        second = run(install, env=env, timeout_s=300, check=False)
    if second.returncode != 0:
        raise RigError(f"apt-get could not install {', '.join(missing)}: {tail(second.stderr)}", Exit.UNAVAILABLE)


def require_kernel() -> None:
    """The kernel features that a node is made of."""
    if "overlay" not in Path("/proc/filesystems").read_text():
        run(["modprobe", "overlay"], check=False)
    if "overlay" not in Path("/proc/filesystems").read_text():
        raise RigError("the kernel has no overlay file system; the nodes' root file systems need it", Exit.UNAVAILABLE)
    probe = run(["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "true"], check=False)
    if probe.returncode != 0:
        raise RigError(f"this machine does not allow new namespaces: {probe.stderr.strip()}", Exit.UNAVAILABLE)


def cgroup_v1_available() -> bool:
    """Whether Slurm can confine memory and devices here. The rig knows cgroup v1 only.

    Elsewhere the cluster still schedules and hands out GPUs, but no job is held to its memory or its devices.
    """
    return all((CGROUP_ROOT / controller / "release_agent").exists() for controller in CGROUP_V1)
