"""The next call of a client: prints when it was answered (seconds since the epoch). It starts the daemon."""

from __future__ import annotations

import time

from ffdl_batch import Client


def main() -> None:
    """Ask for the jobs, as `ffdl list` does."""
    with Client() as client:
        client.list()
    print(time.time())


if __name__ == "__main__":
    main()
