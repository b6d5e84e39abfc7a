"""Wall time of whole processes: time_commands.py REPEAT '{"name": [argv...], ...}'.

The commands take turns, so that a busy moment of the machine meets all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence


def main(repeat: int, commands: dict[str, list[str]]) -> None:
    """Print {"name": [seconds, ...]}; ends with 1 and the command's complaint when one fails."""
    print(json.dumps(time_in_turns(repeat, commands)))


def time_in_turns(
    repeat: int, commands: Mapping[str, Sequence[str]], environ: Mapping[str, str] | None = None
) -> dict[str, list[float]]:
    """Seconds of each run of each command, by its name. Ends the program where one fails."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeat):
        for name, argv in commands.items():
            began = time.perf_counter()
            done = subprocess.run(
                argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            taken[name].append(time.perf_counter() - began)
            if done.returncode != 0:
                sys.exit(f"{argv} ended with {done.returncode}: {done.stderr[-2000:]}")
    return taken


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
