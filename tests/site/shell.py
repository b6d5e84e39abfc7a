"""Commands of users of a site."""

from __future__ import annotations

import subprocess
import sys

from tests.site.rig import Host
from tests.slow_machine import without_waits

FFDL = "from ffdl_batch.cli.main import main; main()"
FFDL_ADMIN = "from ffdl_batch.admin.main import main; main()"


class Shell:
    """A user on the host, or on a machine that shares nothing with it (`is_near` false)."""

    def __init__(self, host: Host, uid: int, *, is_near: bool = True) -> None:
        self.host, self.uid = host, uid
        self.home = host.place / "home" / f"{uid}-{'near' if is_near else 'far'}"
        self.home.mkdir(exist_ok=True)
        subprocess.run(["chown", str(uid), str(self.home)], check=True)
        near = {"FFDL_SITE_RUN": host.place / "run", "FFDL_HUB_SOCKET": host.place / "hub/hub.sock"}
        far = dict.fromkeys(near, self.home / "none")
        self.env = {"PATH": "/usr/bin:/bin", "HOME": self.home, **(near if is_near else far)}

    def ffdl(self, *words: str, text: str = "", program: str = FFDL) -> subprocess.CompletedProcess[str]:
        named = [f"{name}={value}" for name, value in self.env.items()]
        argv = ["env", "-i", *named, sys.executable, "-I", "-c", program, *words]
        done = subprocess.run(
            self.host.inside(argv, self.uid), input=text, capture_output=True, text=True, timeout=300, cwd="/",
            check=False,
        )  # fmt: skip
        done.stderr = without_waits(done.stderr)
        return done
