"""Process 1 of a node: reaps what daemons leave behind. Runs with the node's own python3, 3.9 or newer.

It starts nothing. Daemons are started from outside, detach themselves and become its children. It has no other way
out than SIGKILL from outside, which ends the whole node, as a power cut would.
"""

import os
import signal


def main() -> None:
    """Wait for children for ever."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            pass
        signal.sigwait({signal.SIGCHLD})


if __name__ == "__main__":
    main()
