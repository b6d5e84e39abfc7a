"""Run a daemon with a fault in its scaler, which the proof of elastic jobs must find.

    python -m tests.proof.elastic.broken_daemon hysteresis|objective

The fault is injected into this process only: the product has no switch for it.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

from ffdl_batch.daemon.main import main as daemon
from ffdl_batch.elastic.policy import Objective, Rules
from ffdl_batch.services.elastic import scaler

BREAKS = {
    "hysteresis": Rules(Objective.COMPLETION, horizon_s=None),
    "objective": Rules(Objective.THROUGHPUT),
}
"""Two faults: changes of size are free, and throughput is maximised instead of completion time minimised."""


def main(broken: str) -> int:
    """Run the daemon with other rules."""
    with patch.object(scaler, "Rules", lambda *_: BREAKS[broken]):
        return daemon(["--personal"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
