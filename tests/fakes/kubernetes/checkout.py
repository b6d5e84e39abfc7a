"""Images of the tests' cluster that have this checkout, and the interpreter that runs this program."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

from tests.fakes.kubernetes.rig import ROOT

IMAGE, CONTROLLER_IMAGE = "registry.example.com/learner:1", "registry.example.com/controller:1"


def images() -> dict[str, Any]:
    """Return the knobs of a kubelet that has them."""
    python = {sys.prefix, sys.base_prefix, sysconfig.get_path("purelib"), str(Path(sys.executable).resolve().parent)}
    paths = {str(ROOT), *(path for path in python if not path.startswith(("/usr", "/opt", "/bin", "/lib")))}
    outer = [one for one in sorted(paths) if not any(one != other and one.startswith(f"{other}/") for other in paths)]
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    known = {CONTROLLER_IMAGE: {"user": 1000, "group": 1000, "env": env}}
    return {"image_paths": outer, "images": {"known": known}, "probe_s": 0.1}
