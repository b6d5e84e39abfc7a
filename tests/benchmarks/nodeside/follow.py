"""A client that sees a job change: follow.py JOB. One line of JSON for each change, until the job has ended.

{"at": when it was seen here (seconds since the epoch), "state": ..., "attempt": ...}. Starts the daemon if need be.
"""

from __future__ import annotations

import json
import sys
import time

from ffdl_batch import Client


def main(job_id: str) -> None:
    """Follow it."""
    with Client() as client:
        for event in client.events(job_id, follow=True):
            print(json.dumps({"at": time.time(), "state": event.state, "attempt": event.attempt}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
