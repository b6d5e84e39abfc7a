"""Search lines for a regular expression, in a process of its own, because only a signal ends an endless search.

Argument: the seconds of CPU time that the search of a text may take. If one takes longer, the process ends.
Standard input: the length of the pattern and whether case matters, the pattern; then texts, each after its length.
Standard output: one byte (0 or 1) for each line of a text. It is run as a file and imports only the standard library.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import struct
import sys

MOST_MEMORY = 1 << 30
HEAD, SIZE = struct.Struct("!I?"), struct.Struct("!I")


def main() -> None:
    """Search until standard input ends."""
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_s = float(sys.argv[1])
    source, target = sys.stdin.buffer, sys.stdout.buffer
    length, ignore_case = HEAD.unpack(source.read(HEAD.size))
    pattern = source.read(length).decode("utf-8", "surrogatepass")
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    search = re.compile(pattern, re.IGNORECASE if ignore_case else 0).search
    while head := source.read(SIZE.size):
        text = source.read(SIZE.unpack(head)[0]).decode("utf-8", "surrogatepass")
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        target.write(bytes(search(line) is not None for line in text.split("\n")))
        signal.setitimer(signal.ITIMER_PROF, 0)
        target.flush()


if __name__ == "__main__":
    main()
