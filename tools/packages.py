"""The Debian packages that tests need (debian-packages.txt), installed where that can be done.

`make test` runs this program while the virtual environment is made, and installs then what it could not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools.processes import say
from tools.tally import Tally, refuse

PACKAGES = Path(__file__).resolve().parent / "debian-packages.txt"


def install_packages(wanted: Sequence[str] = ()) -> Tally:
    """Install these Debian packages, by default those that tests need; what cannot be installed is named."""
    wanted = wanted or [line.split("#", 1)[0].strip() for line in PACKAGES.read_text(encoding="utf-8").splitlines()]
    if shutil.which("dpkg-query") is None or shutil.which("apt-get") is None:
        return refuse(
            f"not a Debian machine; install what matches these packages yourself: {' '.join(filter(None, wanted))}"
        )
    missing = [name for name in wanted if name and not is_installed(name)]
    if not missing:
        return Tally()
    if os.geteuid() != 0:
        return refuse(f"not root, so these Debian packages were not installed: {' '.join(missing)}")
    say(f"installing {' '.join(missing)}")
    # RUNLEVEL=1 keeps packages from starting their services.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    done = quiet(install, env)
    if done.returncode != 0:
        quiet(["apt-get", "update", "-qq"], env)
        done = quiet(install, env)
    if done.returncode == 0:
        return Tally()
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    sentence = f"apt-get could not install {' '.join(missing)}; is the Debian mirror reachable? ({last})"
    return Tally(failed=1, troubles=[sentence])


def is_installed(package: str) -> bool:
    """Whether dpkg has it, configured."""
    done = quiet(["dpkg-query", "-W", "-f", "${db:Status-Status}", package], dict(os.environ))
    return done.stdout.strip() == "installed"


def quiet(argv: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run and keep the output."""
    return subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


if __name__ == "__main__":
    install_packages()
