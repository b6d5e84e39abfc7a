"""A cluster to try things on, as this machine's processes: ``make trial-kubernetes``.

    python -m tests.fakes.kubernetes.trial [--place DIR] [--nodes N] [--kueue]

Prints the variables that a shell needs, and serves until Ctrl-C or SIGTERM comes, or the pipe that is its standard
input ends. Its kubelets run pods as processes that see this machine's programs; every image is there but those of
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
from tests.fakes.kubernetes.rig import FakeCluster, cluster, node

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
    """Serve; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.kubernetes.trial")
    parser.add_argument("--place", metavar="DIR", help="where its files are and stay; else they go with it")
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="with 4 CPUs and a GPU each (default 2)")
    parser.add_argument("--kueue", action="store_true", help="the API of Kueue is served")
    options = parser.parse_args(arguments)
    kubelet = images()
    kubelet["memory_limits"] = True
    kubelet["images"]["missing"] = ["registry.invalid/*"]
    nodes = [node(f"node-{number}", cpu="4", memory="16Gi", gpus=1) for number in range(1, options.nodes + 1)]
    with contextlib.ExitStack() as stack:
        place = Path(options.place or stack.enter_context(tempfile.TemporaryDirectory(prefix="ffdl-trial-"))).resolve()
        k8s = stack.enter_context(cluster(place, nodes=nodes, kubelet=kubelet, kueue=options.kueue))
        variables = configure(place, k8s)
        stack.callback(_stop_daemon, variables)
        told = variables | proof_variables()
        with contextlib.suppress(KeyboardInterrupt):
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            print("".join(f"export {name}={value}\n" for name, value in told.items()), end="", flush=True)
            _until_told()
    return 0


def _until_told() -> None:
    """For ever, or until a pipe ends. A terminal is not read: who does that in the background is stopped."""
    if not stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        while True:
            signal.pause()
    sys.stdin.read()


def configure(place: Path, k8s: FakeCluster) -> dict[str, str]:
    """Write a configuration that fits; the variables with which ffdl and kubectl find the cluster."""
    config = place / "config.toml"
    config.write_text(
        CONFIG.format(image=IMAGE, kubeconfig=k8s.kubeconfig, controller=CONTROLLER_IMAGE, python=sys.executable)
    )
    return {"KUBECONFIG": str(k8s.kubeconfig), "FFDL_CONFIG": str(config), "FFDL_STATE_DIR": str(place / "state")}


def proof_variables() -> dict[str, str]:
    """What `make proof-kubernetes` is told of this cluster."""
    told = {
        "CONTROLLER_IMAGE": CONTROLLER_IMAGE,
        "LEARNER_IMAGE": IMAGE,
        "PYTHON": sys.executable,
        "CLAIM_CLASS": "any",
    }
    return {f"FFDL_PROOF_{name}": value for name, value in told.items()}


def _stop_daemon(variables: dict[str, str]) -> None:
    """The one that a submission has started, where one did."""
    ffdl = Path(sys.executable).with_name("ffdl")
    subprocess.run([ffdl, "daemon", "stop"], env={**os.environ, **variables}, capture_output=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
