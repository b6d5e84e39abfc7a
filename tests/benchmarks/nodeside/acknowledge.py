"""Durable acknowledgement: acknowledge.py COUNT MANIFEST MODEL, one request after the other over one connection.

Prints the seconds of each request; the deployer hands the accepted jobs (held) to Slurm meanwhile, as in real life.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from ffdl_batch import Client
from ffdl_batch.client.submissions.manifest_source import read_manifest
from ffdl_batch.client.submissions.submission_builder import Wanted, build_submission


def main(count: int, manifest: str, model: str) -> None:
    """Send `count` submissions singly, and print."""
    with Client(start=False) as client:
        print(json.dumps(acknowledge(client, count, manifest, model)))


def acknowledge(client: Client, count: int, manifest: str, model: str) -> list[float]:
    """Seconds of each of `count` submissions. Ends the program where one is refused."""
    text, taken = read_manifest(Path(manifest)), []
    digest = client.upload(model)
    for _ in range(count):
        submission = build_submission(text, digest, Wanted({"hold": ""}))
        began = time.perf_counter()
        (result,) = client.send([submission])
        taken.append(time.perf_counter() - began)
        if result.problem is not None:
            sys.exit(f"refused: {result.problem.message}")
    return taken


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
