"""``ffdl``: one word, one verb. Each verb's module is imported when it is used, so that all of them start fast."""

from __future__ import annotations

from typing import NoReturn

import click

from ffdl_batch.cli.connection import host_option
from ffdl_batch.cli.exit_handling import run
from ffdl_batch.lazy_group import LazyGroup

VERBS: dict[str, tuple[str, str]] = {
    "submit": ("submit:submit", "Submit manifests with their model."),
    "list": ("job_list:list_jobs", "List jobs, newest first."),
    "show": ("show:show", "Everything about a job."),
    "logs": ("logs:logs", "The learners' output."),
    "loglines": ("logs:loglines", "The learners' output by number, as FfDL prints it."),
    "metrics": ("metrics:metrics", "What jobs measured, as a table or curves."),
    "emetrics": ("emetrics:emetrics", "A learner's metrics by record, as FfDL prints them."),
    "why": ("why:why", "Why a job waits, and what would start sooner."),
    "events": ("show:events", "The changes of a job's state."),
    "download": ("download:download", "What a job left: results, model, logs, checkpoint."),
    "wait": ("job_control:wait", "Wait until jobs have ended."),
    "halt": ("job_control:halt", "Have jobs write a checkpoint and end."),
    "resume": ("job_control:resume", "Go on with jobs that were halted, or failed."),
    "drill": ("drill.command:drill", "Play an interruption and report the checkpoint."),
    "cancel": ("job_control:cancel", "End jobs."),
    "data": ("data:data", "Bring files to a store and back."),
    "secret": ("secret:secret", "Named secrets: set, list, rm."),
    "exec": ("exec_shell:exec_", "Run a command inside a running learner."),
    "shell": ("exec_shell:shell", "A shell inside a running learner."),
    "top": ("top_stack:top", "The processes of running learners."),
    "stack": ("top_stack:stack", "Where a learner hangs: its Python stacks."),
    "report": ("report:report", "Reports: what failed, who used what."),
    "validate": ("manifest:validate", "Check manifests; needs no daemon."),
    "plan": ("plan:plan", "What a submission would send."),
    "schema": ("manifest:schema", "The manifest's JSON Schema."),
    "convert": ("convert.command:convert", "Make a manifest of an sbatch script."),
    "init": ("manifest:init", "Write a manifest and a model that run as they are."),
    "cache": ("cache:cache", "What this node's cache holds: list, rm, verify."),
    "config": ("config:config", "The configuration, and where each value came from."),
    "setup": ("setup:setup", "Install ffdl on a host, over SSH."),
    "daemon": ("daemon:daemon", "Your daemon: status, stop, restart, metrics."),
    "completion": ("program:completion", "Completion for bash, zsh or fish."),
    "version": ("program:version", "The version of this program."),
}
REMOTE_COMMANDS = ("exec", "shell", "top", "stack", "cache", "config", "daemon")
"""Verbs that are about the machine on which they are given: with a host they run there."""
_STAYS = ("daemon", "relay")
ALIASES = {
    "train": "submit",
    "ls": "list",
    "ps": "list",
    "status": "show",
    "describe": "show",
    "delete": "cancel",
}


class Verbs(LazyGroup):
    """The verbs, their aliases, and those that run on the host."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb that has this name or alias; None if there is no such verb."""
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; a misspelt verb gets the nearest."""
        if args and self.get_command(ctx, args[0]) is None:
            from difflib import get_close_matches

            near = get_close_matches(args[0], [*VERBS, *ALIASES], n=1)
            ctx.fail(f"there is no command {args[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
        if args and args[0] in REMOTE_COMMANDS and tuple(args[:2]) != _STAYS and not {"-h", "--help"} & set(args):
            from ffdl_batch.cli.remote_command import remote_command

            if (elsewhere := remote_command(args)) is not None:
                return args[0], elsewhere, args
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs, then the aliases."""
        super().format_commands(ctx, formatter)
        with formatter.section("Other names"):
            formatter.write_dl([(alias, f"same as {verb}") for alias, verb in ALIASES.items()])


@click.group(
    cls=Verbs, package="ffdl_batch.cli.commands", table=VERBS, context_settings={"help_option_names": ["-h", "--help"]}
)
@host_option
def ffdl(**_: object) -> None:
    """Deep-learning training jobs from one manifest, on Slurm, Kubernetes or this machine.

    With --host (or FFDL_HOST, or `host` in the configuration) they work from a laptop as on that login node:
    ffdl --host login.example.org list

    Every command that reads takes --json. Exit codes: 0 done, 1 failed, 2 wrong usage, 66 missing input, 69 something
    needed is not there, 75 try again, 77 not allowed, 78 bad manifest, 124 timed out, 130 interrupted.
    """


def main() -> NoReturn:
    """The console script ``ffdl``."""
    run(ffdl, "ffdl")
