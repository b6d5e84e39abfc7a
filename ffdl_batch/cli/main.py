"""The command ``ffdl``. Each subcommand's module is imported when it is used, so that all of them start fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from ffdl_batch import __version__
from ffdl_batch.cli.connection import (
    USER_COMMANDS,
    find_daemon_log,
    find_elsewhere,
    given_user,
    host_option,
    user_option,
)
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.exit_handling import run
from ffdl_batch.lazy_group import LazyGroup

if TYPE_CHECKING:
    from ffdl_batch.client.connection.daemon_location import HostPlace

VERBS: dict[str, tuple[str, str]] = {
    "submit": ("submit:submit", "Submit manifests with their model."),
    "list": ("job_list:list_jobs", "List jobs, newest first."),
    "show": ("show:show", "Show everything about a job."),
    "logs": ("logs:logs", "Show the learners' output."),
    "loglines": ("logs:loglines", "Show the learners' output with line numbers, as FfDL does."),
    "tui": ("tui:tui", "Show your jobs in the terminal, and follow them."),
    "web": ("web:web", "Serve a page with your jobs to a browser."),
    "metrics": ("metrics:metrics", "Show what jobs measured, as a table or curves."),
    "emetrics": ("emetrics:emetrics", "Show a learner's metrics by record, as FfDL does."),
    "why": ("why:why", "Explain why a job is pending."),
    "events": ("show:events", "List the state changes of a job."),
    "download": ("download:download", "Download results, model, logs or checkpoint."),
    "wait": ("job_control:wait", "Wait until jobs have ended."),
    "halt": ("job_control:halt", "Stop jobs after a checkpoint."),
    "resume": ("job_control:resume", "Continue HALTED or FAILED jobs."),
    "drill": ("drill.command:drill", "Test what an interruption does to a job."),
    "cancel": ("job_control:cancel", "Cancel jobs."),
    "rm": ("remove:remove", "Remove jobs that have ended, with their files."),
    "data": ("data:data", "Copy files to a store and back."),
    "secret": ("secret:secret", "Manage named secrets: set, list, rm."),
    "run": ("interactive:run", "Run a command in a new allocation, on this terminal."),
    "exec": ("running_learners:exec_", "Run a command inside a running learner."),
    "shell": ("running_learners:shell", "Start a shell in a running learner or a new allocation."),
    "port-forward": ("port_forward:port_forward", "Forward a local port to a port of a running learner."),
    "top": ("running_learners:top", "Show the processes of running learners."),
    "stack": ("running_learners:stack", "Show the Python stacks of running learners."),
    "support": ("support:support", "Write an archive about a job, for a support ticket."),
    "report": ("report:report", "Report failures, nodes and usage."),
    "scaler": ("scaler:scaler", "Manage pools of elastic jobs: status, explain, pause, resume, replay."),
    "simulate": ("simulate:simulate", "Compare policies for elastic jobs on a simulated pool."),
    "validate": ("manifest:validate", "Check manifests, without a daemon."),
    "plan": ("plan:plan", "Show what a submission would send."),
    "bench": ("bench.command:bench", "Measure whether two jobs should share a GPU."),
    "advise": ("advise:advise", "Advise on GPUs, memory and time limit of a manifest."),
    "schema": ("manifest:schema", "Print the manifest's JSON Schema."),
    "convert": ("convert.command:convert", "Convert an sbatch script into a manifest."),
    "init": ("manifest:init", "Create a manifest and a model that run."),
    "cache": ("cache:cache", "Manage this node's cache: list, rm, verify."),
    "config": ("config:config", "Show the configuration and its origins."),
    "login": ("login:login", "Log in to the site's hub, by munge or with a token."),
    "logout": ("login:logout", "Remove the stored token of a hub."),
    "token": ("tokens:token", "Manage tokens for the hub: create, list, revoke."),
    "setup": ("setup:setup", "Install ffdl on a host, over SSH."),
    "daemon": ("daemon:daemon", "Manage your daemon: status, stop, restart, metrics."),
    "completion": ("program:completion", "Print shell completion for bash, zsh or fish."),
    "version": ("program:version", "Print the version of this program."),
}
REMOTE_COMMANDS = ("exec", "shell", "top", "stack", "cache", "config", "daemon")
"""Commands about the machine that they run on. With --host they run on that host, except `shell` for a new job."""
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
    """The subcommands and their aliases. With a host, those of REMOTE_COMMANDS run there."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command with this name or alias; None if there is no such command."""
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does. The error for an unknown command names the most similar one."""
        if args and self.get_command(ctx, args[0]) is None:
            from difflib import get_close_matches

            near = get_close_matches(args[0], [*VERBS, *ALIASES], n=1)
            ctx.fail(f"there is no command {quoted(args[0])}" + (f"; did you mean {near[0]}?" if near else ""))
        if given_user() is not None and args and ALIASES.get(args[0], args[0]) not in USER_COMMANDS:
            ctx.fail(f"{args[0]} does not accept --user; use it with {', '.join(USER_COMMANDS)}")
        if self._is_for_host(ctx, args) and (elsewhere := _remote_command(args)) is not None:
            return args[0], elsewhere, args
        return super().resolve_command(ctx, args)

    def _is_for_host(self, ctx: click.Context, args: list[str]) -> bool:
        """Return whether the named host, if there is one, runs the command. It does not run `ffdl shell` without the id
        of a job, which starts a job with files of this machine."""
        if not args or args[0] not in REMOTE_COMMANDS or tuple(args[:2]) == _STAYS or {"-h", "--help"} & set(args):
            return False
        command = self.get_command(ctx, args[0])
        if args[0] != "shell" or command is None:
            return True
        return bool(command.make_context(args[0], args[1:], ctx, resilient_parsing=True).params["job_id"])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the aliases."""
        super().format_commands(ctx, formatter)
        with formatter.section("Other names"):
            formatter.write_dl([(alias, f"same as {verb}") for alias, verb in ALIASES.items()])


def _remote_command(words: Sequence[str]) -> click.Command | None:
    """Return the command that runs `words` on the chosen host; None without a host."""
    place = find_elsewhere()
    if place is None:
        return None
    return click.Command(
        words[0],
        callback=lambda: _run_on_host(place, words),
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
        add_help_option=False,
    )


def _run_on_host(place: HostPlace, words: Sequence[str]) -> int:
    from ffdl_batch.client.connection.host_relay import connector_of
    from ffdl_batch.client.connection.remote_command import run_remotely

    with_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return run_remotely(place, connector_of(place.host, os.environ), words, with_terminal=with_terminal)


@click.group(
    cls=Verbs, package="ffdl_batch.cli.commands", table=VERBS, context_settings={"help_option_names": ["-h", "--help"]}
)
@host_option
@user_option
@click.version_option(__version__, "-V", "--version", message="ffdl %(version)s")
def ffdl(**_: object) -> None:
    """Run deep-learning training jobs from one manifest, on Slurm, Kubernetes or this machine.

    With --host (or FFDL_HOST, or `host` in the configuration), commands use that login node from a laptop:
    ffdl --host login.example.org list

    On a site with a hub, commands use it after `ffdl login https://HUB`.

    Every command that reads takes --json. Exit codes: 0 success, 1 failure, 2 wrong usage, 66 missing input,
    69 unavailable, 75 try again, 77 not allowed, 78 invalid manifest or configuration, 124 timed out, 130 interrupted.
    """


def main() -> NoReturn:
    """Run the console script ``ffdl``."""
    run(ffdl, "ffdl", find_log=find_daemon_log)
