"""The prober's verbs.

try             JSON list of shots on standard input -> one JSON line each
listen FILE     answer on the ports of the configuration FILE until standard input ends
learner FILE    the same in a learner, with orders and answers in $CHECKPOINT_DIR
find NAME       the numbers of the processes of this name
target NAME     a process to be found, signalled and traced
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .listening import learner, listen
from .node import find, target
from .shots import attempt_all


def main(argv: Sequence[str]) -> None:
    """Do what the first word says."""
    verb, *rest = argv
    if verb == "try":
        for answer in attempt_all(json.load(sys.stdin)):
            print(json.dumps(answer), flush=True)
    elif verb == "find":
        print(json.dumps(find(rest[0])))
    elif verb == "target":
        target(rest[0])
    elif verb == "learner":
        learner(json.loads(Path(rest[0]).read_text()))
    elif verb == "listen":
        config = json.loads(Path(rest[0]).read_text())
        listen(config, config["label"], Path(config["journal"]))
        print("listening", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
