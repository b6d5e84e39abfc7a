"""A cluster to try things on, as this machine's processes: ``make trial-kubernetes``.

    python -m tests.fakes.kubernetes.trial [--place DIR] [--nodes N] [--kueue]

Prints the variables that a shell needs, and serves until Ctrl-C or SIGTERM comes, or the pipe that is its standard
input ends. Its kubelets run pods as processes that see this machine's programs; every image exists but those of
registry.invalid. kubectl works, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fakes.kubernetes.checkout import CONTROLLER_IMAGE, IMAGE, images
from tests.fakes.kubernetes.rig import cluster, node

CONFIG = """\
[frameworks.custom.oci]
python-numpy = "{image}"

[backend]
default = "kubernetes"

[backend.kubernetes]
kubeconfig = "{kubeconfig}"
controller_image = "{controller}"
python = "{python}"
run_as_user = 1000
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.kubernetes.trial")
    parser.add_argument("--place", metavar="DIR", help="directory to keep its files in (default: none are kept)")
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="with 4 CPUs and a GPU each (default 2)")
    parser.add_argument("--kueue", action="store_true", help="serve the API of Kueue")
    options = parser.parse_args(arguments)
    kubelet = images() | {"memory_limits": True}
    kubelet["images"]["missing"] = ["registry.invalid/*"]
    nodes = [node(f"node-{number}", cpu="4", memory="16Gi", gpus=1) for number in range(1, options.nodes + 1)]
    with contextlib.ExitStack() as stack:
        place = Path(options.place or stack.enter_context(tempfile.TemporaryDirectory(prefix="ffdl-trial-"))).resolve()
        k8s = stack.enter_context(cluster(place, nodes=nodes, kubelet=kubelet, kueue=options.kueue))
        names = {"image": IMAGE, "kubeconfig": k8s.kubeconfig, "controller": CONTROLLER_IMAGE, "python": sys.executable}
        config = place / "config.toml"
        config.write_text(CONFIG.format(**names))
        variables = {
            "KUBECONFIG": str(k8s.kubeconfig), "FFDL_CONFIG": str(config), "FFDL_STATE_DIR": str(place / "state"),
        }  # fmt: skip
        stack.callback(_stop_daemon, variables)
        for_proof = {
            "FFDL_PROOF_CONTROLLER_IMAGE": CONTROLLER_IMAGE, "FFDL_PROOF_LEARNER_IMAGE": IMAGE,
            "FFDL_PROOF_PYTHON": sys.executable, "FFDL_PROOF_CLAIM_CLASS": "any",
        }  # fmt: skip
        lines = [f"export {name}={value}\n" for name, value in (variables | for_proof).items()]
        with contextlib.suppress(KeyboardInterrupt):
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            print("".join(lines), end="", flush=True)
            # A terminal is not read: a process that does that in the background is stopped.
            while not stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
                signal.pause()
            sys.stdin.read()
    return 0


def _stop_daemon(variables: dict[str, str]) -> None:
    """Stop the daemon that a submission has started, if one did."""
    ffdl = Path(sys.executable).with_name("ffdl")
    subprocess.run([ffdl, "daemon", "stop"], env={**os.environ, **variables}, capture_output=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
