"""Several processes of one command at once: together.py COUNT ARGV...

Prints the seconds from the common start to the end of each process as a JSON list, in ascending order.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence

LOOK_S = 0.02


def main(count: int, argv: Sequence[str]) -> None:
    """Start all and wait. Exit with the complaint of the first process that fails."""
    began = time.perf_counter()
    running = [
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    taken: list[float] = []
    while running:
        for process in [one for one in running if one.poll() is not None]:
            taken.append(time.perf_counter() - began)
            running.remove(process)
            _, complaint = process.communicate()
            if process.returncode != 0:
                for other in running:
                    other.kill()
                sys.exit(f"{argv} exited with status {process.returncode}: {complaint[-2000:]}")
        time.sleep(LOOK_S)
    print(json.dumps(taken))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
