"""Runs on the login node as the user: prints when each state of each job is first visible to a client, one JSON a line.

    python poller.py INTERVAL_S ID...

Ends once all jobs have ended. `seen_at` is seconds since the epoch, after the daemon's answer arrived.
"""

from __future__ import annotations

import json
import sys
import time

from ffdl_batch import Client
from ffdl_batch.client.api import JobFilter, is_ended


def main(interval_s: float, wanted: frozenset[str]) -> None:
    """Poll until the last job has ended."""
    seen: set[tuple[str, str]] = set()
    ended: set[str] = set()
    with Client(start=False) as client:
        while ended < wanted:
            began = time.monotonic()
            jobs = [job for job in client.list(JobFilter(limit=9999)) if job.id in wanted]
            now = time.time()
            for job in jobs:
                for state in {*job.timestamps, job.state}:
                    if (job.id, state) not in seen:
                        seen.add((job.id, state))
                        print(json.dumps({"id": job.id, "state": state, "seen_at": now}), flush=True)
            ended = {job.id for job in jobs if is_ended(job)}
            time.sleep(max(0.0, began + interval_s - time.monotonic()))


if __name__ == "__main__":
    main(float(sys.argv[1]), frozenset(sys.argv[2:]))
