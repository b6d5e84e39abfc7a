"""Command line of the test cluster: python3 -m tests.cluster.rig build|up|down|status|run|shell."""

from __future__ import annotations

import argparse
import subprocess
import sys

from . import builder, record
from .access import enter_argv
from .cluster import CHECKOUT, Cluster, ClusterOptions
from .console import say, step
from .errors import Exit, RigError
from .python_layers import SOURCE
from .rootfs import USERS
from .suites import SUITES
from .topology import NODES

_WAY_IN = f"""\
get in:     sudo {sys.executable} -m tests.cluster.rig --id NAME shell ctl --user alice
users:      {", ".join(USERS)}, root
run one:    sudo {sys.executable} -m tests.cluster.rig --id NAME run ctl --user alice -- ffdl list
end it:     sudo make cluster-down CLUSTER="--id NAME"
images:     make images leaves them in build/images; there: export FFDL_IMAGES_DIRS={SOURCE}/build/images
"""


_ID_HELP = f"Cluster id (default: {record.DEFAULT_ID}, or the one that is up)."


def main(argv: list[str] | None = None) -> int:
    """Run one command; a RigError is one sentence and its own exit status."""
    words = sys.argv[1:] if argv is None else argv
    command: list[str] = []
    if "--" in words:  # argparse would take the options of the program for ours
        split = words.index("--")
        words, command = words[:split], words[split + 1 :]
    options = _parser().parse_args(words)
    try:
        return _COMMANDS[options.command](options, command)
    except RigError as error:
        print(f"rig: {error}", file=sys.stderr)
        return int(error.status)


def _build(options: argparse.Namespace, _command: list[str]) -> int:
    with step("build"):
        built = builder.build(options.suite, CHECKOUT, fresh=options.fresh)
    for layer in built.layers:
        size = subprocess.run(["du", "-sh", "--one-file-system", layer], capture_output=True, text=True, check=False)
        print(size.stdout.strip())
    print(f"slurm {built.slurm_version}, python {'.'.join(map(str, built.python))}")
    return 0


def _up(options: argparse.Namespace, _command: list[str]) -> int:
    name = options.id or record.DEFAULT_ID
    found = record.read(name)
    if found is not None and found.complete and not found.abandoned():
        if found.blueprint.suite != options.suite:
            raise RigError(
                f"{found.describe()} is up with suite {found.blueprint.suite}, not {options.suite}; "
                "end it, or name another one: python3 -m tests.cluster.rig --id NAME up ...",
                Exit.TEMPORARY,
            )
        say(f"{found.describe()} is already up")
        cluster = Cluster.attach(name)
    else:
        with step("up"):
            cluster = Cluster.up(
                ClusterOptions(
                    cluster_id=name,
                    suite=options.suite,
                    accounting=not options.no_accounting,
                    keep=True,
                    values=dict(pair.split("=", 1) for pair in options.value),
                )
            )
    print(", ".join(f"{name} {version}" for name, version in cluster.versions().items()))
    print(cluster.run("ctl", ["sinfo", "--format=%P %D %t %c %m %G %N %l"]).stdout, end="")
    print(_WAY_IN.replace("--id NAME", f"--id {name}"), end="")
    return 0


def _down(options: argparse.Namespace, _command: list[str]) -> int:
    name = _meant(options)
    found = record.read(name)
    if found is None:
        say(f"cluster {name!r} is not up")
        return 0
    with step("down"):
        Cluster(found.cluster_id, found.state_dir, found.blueprint).down()
    return 0


def _status(options: argparse.Namespace, _command: list[str]) -> int:
    for found in record.all_records():
        state = "abandoned" if found.abandoned() else "up" if found.complete else "starting"
        print(f"{found.describe()}: {state}, {found.state_dir}")
        cluster = Cluster(found.cluster_id, found.state_dir, found.blueprint)
        for spec in NODES:
            init = cluster.factory.init_of(spec.name)
            print(f"  {spec.name:7} {spec.address:12} {f'process 1 is {init.pid}' if init else 'off'}")
    return 0


def _run(options: argparse.Namespace, command: list[str]) -> int:
    if not command:
        raise RigError("say what to run after --")
    cluster = Cluster.attach(_meant(options))
    argv = enter_argv(cluster.init(options.node).pid, command, user=options.user)
    return subprocess.run(argv, check=False).returncode


def _meant(options: argparse.Namespace) -> str:
    return options.id or record.only_one(record.all_records())


def _shell(options: argparse.Namespace, _command: list[str]) -> int:
    return _run(options, ["env", "TERM=xterm", "bash", "-l"])


_COMMANDS = {"build": _build, "up": _up, "down": _down, "status": _status, "run": _run, "shell": _shell}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m tests.cluster.rig", description=__doc__)
    parser.add_argument("--id", help=_ID_HELP)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("build", "up"):
        command = commands.add_parser(name)
        command.add_argument(
            "--suite",
            default=ClusterOptions().suite,
            help=f"Debian suite: {', '.join(SUITES)} (default: FFDL_TEST_SUITE or sid)",
        )
    commands.choices["build"].add_argument("--fresh", action="store_true", help="build the root file system again")
    commands.choices["up"].add_argument("--no-accounting", action="store_true")
    commands.choices["up"].add_argument(
        "--value", action="append", default=[], metavar="NAME=VALUE", help="override a name of slurm-configs/values.env"
    )
    commands.add_parser("down")
    commands.add_parser("status")
    for name in ("run", "shell"):
        command = commands.add_parser(name)
        command.add_argument("node", choices=[spec.name for spec in NODES])
        command.add_argument("--user", default="root")
    for name in ("up", "down", "run", "shell"):  # no default, because it would replace the value before the command
        commands.choices[name].add_argument("--id", default=argparse.SUPPRESS, help=_ID_HELP)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
