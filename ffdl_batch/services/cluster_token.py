"""Print a token of the cluster for the daemon of a tenant, as a credential plugin of its kubeconfig (kubernetes.io,
"Authenticating", "client-go credential plugins").

    python -I -m ffdl_batch.services.cluster_token

The hub identifies the daemon by its uid. The token is never written to a file or an environment variable.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.services.hub import HubRefused, HubUnavailable, hub_of


def main() -> int:
    """Run the command; return its exit status."""
    hub = hub_of(os.environ)
    try:
        if hub is None:
            raise HubUnavailable("FFDL_HUB_UID is not set; only a daemon started by the spawner can run this plugin")
        token, expires_at = hub.cluster_token()
    except (HubUnavailable, HubRefused) as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command line program
        return ExitCode.UNAVAILABLE
    status = {"token": token, "expirationTimestamp": datetime.fromtimestamp(expires_at, UTC).isoformat()}
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    print(json.dumps(answer))  # noqa: T201
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
