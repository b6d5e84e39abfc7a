"""`make proof-site`: three users of the real cluster submit through hub, tokens and munge, under faults.

    python -m tests.proof.site [--kills N] [--break roles|audit|twice|quota|incident|namespace|fairness]

`--kills` kills hub, spawner and daemons N times at random moments while the users work. Without it, two of the users
share a quota, and an operator gets reports; two tenants without accounts use a fake Kubernetes; and greedy tenants
compete with regular ones in simulated time. Results, owners, lists, Slurm's accounting, the objects of the cluster, the
quotas, the reports and the audit are compared with values that are computed here. Prints a line for each part. Exit
status 1 if something differs; the differences are on standard error.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.fairness import judged, through_fair_window, through_one_queue
from tests.cluster.images import provide_image
from tests.cluster.rig import Cluster
from tests.cluster.rig.rootfs import USERS
from tests.cluster.site_mode import AUDIT, running_site
from tests.proof.site.kubernetes import run_tenants
from tests.proof.site.scene import OPERATOR, Scene

BREAKS = ("roles", "audit", "twice", "quota", "incident", "namespace", "fairness")
LONGEST_WAIT_S, LEAST_JAIN_INDEX = 2.0, 0.95


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proof on the cluster that is up, or on a new one."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.site", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--break", dest="broken", choices=list(BREAKS), help="Introduce this fault; the proof must exit with status 1."
    )
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="Kill programs at N random moments.")
    options = parser.parse_args(arguments)
    broken = options.broken or ""
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", file=sys.stderr, flush=True)

    with Cluster.session() as cluster, tempfile.TemporaryDirectory(prefix="ffdl-proof-") as place:
        provide_image(cluster, "custom")
        operators = (*USERS, OPERATOR) if broken == "roles" else (OPERATOR,)
        audit = "" if broken == "audit" else AUDIT
        with running_site(cluster, Path(place), operators=operators, audit=audit) as site:
            scene = Scene(cluster, site, broken, options.kills, say)
            try:
                found = scene.run()
            finally:
                scene.close()
    troubles, lines = list(found.troubles()), [found.report()]
    if not options.kills:
        say("tenants on Kubernetes")
        on_kubernetes = run_tenants(broken)
        troubles += on_kubernetes.troubles()
        lines.append(on_kubernetes.report())
        waits, index = judged(through_one_queue() if broken == "fairness" else through_fair_window())
        if max(waits) > LONGEST_WAIT_S or index < LEAST_JAIN_INDEX:
            troubles.append(f"a job of a regular tenant waited {max(waits):.2f} s, and the Jain index is {index:.3f}")
        lines.append(f"jobs of regular tenants waited {max(waits):.2f} s at most; Jain index {index:.3f}")
    for trouble in troubles:
        print(trouble, file=sys.stderr)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    print("\n".join(lines), flush=True)
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
