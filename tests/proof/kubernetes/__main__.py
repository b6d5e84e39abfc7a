"""`make proof-kubernetes`: jobs, refusals and ends on the cluster that KUBECONFIG names.

    python -m tests.proof.kubernetes [--controller-image NAME] [--learner-image NAME] [--only TEXT,...] [--break WHAT]

Prints a line for each point as it is known. Exit status 1 when a point failed, or nothing passed. All that it makes
lies in a namespace of its own, which it deletes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ffdl_kubernetes.settings import KubernetesSettings
from tests.proof.kubernetes.desk import Desk
from tests.proof.kubernetes.points import END, POINTS, TENANT, a_tenant, nothing_left
from tests.proof.kubernetes.room import Room
from tests.proof.kubernetes.values import (
    BREAKS,
    MISSING_IMAGE,
    Failed,
    Impossible,
    Options,
    Result,
    Word,
    holds,
    summary,
)

VARIABLES = "FFDL_PROOF_"
Tell = Callable[[Result], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proof; 130 where somebody interrupts it. What it made is deleted by then, unless that was interrupted."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("proof-kubernetes: interrupted", file=sys.stderr)
        return 130


def _run(arguments: Sequence[str] | None) -> int:
    options, only, strict = _read(arguments, os.environ)
    named = os.environ.get("KUBECONFIG", "")
    if not Path(named).is_file():
        what = f"KUBECONFIG names {named}, which is not a file" if named else "KUBECONFIG is not set"
        print(f"proof-kubernetes: {what}; it names the cluster that the proof runs on", file=sys.stderr)
        return 1

    results: list[Result] = []

    def tell(result: Result) -> None:
        results.append(result)
        print(result.line(), flush=True)

    prove(Room(options.patience_s, debugging=options.debugging), options, only, tell)
    print(summary(results), flush=True)
    return 0 if holds(results, strict=strict) else 1


def prove(room: Room, options: Options, only: Sequence[str], tell: Tell) -> None:
    """Try all points, or those whose name has a text of `only`; the first and the last are always tried."""
    points = {name: point for name, point in POINTS.items() if not only or any(text in name for text in only)}
    try:
        first = try_point(TENANT, lambda: a_tenant(room, options.broken))
        tell(first)
        if first.word is not Word.PASSED:
            _leave_out(points, "there is no tenant", tell)
            return
        with tempfile.TemporaryDirectory(prefix="ffdl-proof-") as base:
            try:
                desk = Desk(room, options, Path(base)).__enter__()
            except Exception as error:  # noqa: BLE001 - told with each point
                _leave_out(points, f"there is no daemon: {error}", tell)
                return
            try:
                for name, point in points.items():
                    tell(try_point(name, partial(point, desk)))
                room.empty()
            finally:
                desk.__exit__(None, None, None)
    finally:
        tell(try_point(END, lambda: nothing_left(room)))
        room.admin.close()


def try_point(name: str, point: Callable[[], str]) -> Result:
    """What came of it, and how long it took."""
    began = time.monotonic()
    try:
        word, text = Word.PASSED, point()
    except Impossible as error:
        word, text = Word.IMPOSSIBLE, str(error)
    except Failed as error:
        word, text = Word.FAILED, str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the point did not pass, and the others are tried
        word, text = Word.FAILED, f"{type(error).__name__}: {error}"
    return Result(name, word, " ".join(text.split()), time.monotonic() - began)


def _leave_out(points: Mapping[str, object], why: str, tell: Tell) -> None:
    for name in points:
        tell(Result(name, Word.FAILED, f"not tried: {why}", 0.0))


def _read(arguments: Sequence[str] | None, environ: Mapping[str, str]) -> tuple[Options, list[str], bool]:
    usual = KubernetesSettings()
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof.kubernetes", description=__doc__.partition("\n")[0],
        epilog=f"Each of the first eight can be given as a variable, too: {VARIABLES}CONTROLLER_IMAGE and so on.",
    )  # fmt: skip

    def add(name: str, default: str, help_text: str) -> None:
        known = environ.get(VARIABLES + name.upper().replace("-", "_"), default)
        parser.add_argument(f"--{name}", default=known, metavar="NAME", help=f"{help_text} (now {known or 'not set'})")

    add("controller-image", usual.controller_image, "image of containers/Dockerfile")
    add("learner-image", "", "image of learners, with /bin/sh and python3; not set: the controller's")
    add("pull-policy", usual.image_pull_policy, "IfNotPresent, Never or Always")
    add("python", usual.python, "the interpreter in the controller's image")
    add("uid", "1000", "uid and gid of pods")
    add("store", "", "address of this machine at which pods reach the store that the proof serves; not set: a node's")
    add("claim-class", "", "StorageClass of a claim, for the point that needs one")
    add("patience", "180", "seconds that anything is waited for")
    parser.add_argument("--only", default="", metavar="TEXT,...", help=f"points with it: {', '.join(POINTS)}")
    parser.add_argument("--debugging", action="store_true", help="the tenant may run commands in its pods")
    parser.add_argument("--strict", action="store_true", help="what is not possible here is a failure")
    parser.add_argument("--break", dest="broken", choices=BREAKS, default="", help="break it first: must end with 1")
    found = parser.parse_args(arguments)
    try:
        uid, patience_s = int(found.uid), float(found.patience)
    except ValueError:
        parser.error("--uid and --patience are numbers")
    options = Options(
        found.controller_image, found.learner_image or found.controller_image, found.pull_policy, found.python,
        uid, patience_s, store=found.store, claim_class=found.claim_class, broken=found.broken,
        debugging=found.debugging,
    )  # fmt: skip
    if options.broken == "image":
        options = replace(options, controller_image=MISSING_IMAGE)
    only = [text for text in found.only.split(",") if text]
    if only and not any(text in name for text in only for name in POINTS):
        parser.error(f"--only {found.only}: no point has it in its name")
    return options, only, found.strict


if __name__ == "__main__":
    sys.exit(main())
