"""Commands inside running learners through a hub: a real hub with TLS, the daemon behind it, and the command line.

The tests of :mod:`tests.contract.test_debugging` run again, on a client that knows the hub alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.command_lines import command_lines
from tests.contract.daemon_rig import LIMIT_S, PLAIN, site_in, until
from tests.contract.test_daemon_logs import Desk, end_jobs
from tests.contract.test_debugging import (  # noqa: F401 - run here again
    HANG,
    begin,
    lone,
    long,
    pair,
    sleepers,
    test_exec_ends_when_command_does_not_read_stdin,
    test_exec_ends_when_learner_ends,
    test_exec_enters_selected_learner_and_rejects_unknown_one,
    test_exec_forwards_interrupt_to_command,
    test_exec_leaves_no_process_after_exit_client_kill_or_second_interrupt,
    test_exec_passes_large_stdin_and_stdout_unchanged,
    test_exec_runs_command_in_learner_network_directory_and_environment,
    test_shell_ends_when_terminal_is_closed,
    test_shell_provides_resizable_terminal_with_interrupt_key,
    test_stack_prints_function_in_which_learner_hangs,
    test_top_lists_processes_of_every_learner_once_without_terminal,
)
from tests.fakes.certificates import certificate_for
from tests.unit.hub.conftest import OWN, TOKEN, serving_hub


@dataclass
class HubDesk(Desk):
    """A desk whose commands reach the daemon through a hub."""

    audit: Path = Path()
    end_hub: Callable[[], object] = lambda: None

    def streams(self) -> list[tuple[int, bool]]:
        """Status and kind of each line of the audit about streams: whether it is the line at the end."""
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [(line["status"], "seconds" in line) for line in lines if line["what"].endswith("/attach/stream")]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    base = tmp_path_factory.mktemp("hub")
    (base / "model").mkdir()
    (base / "model" / "hang.py").write_text(HANG)
    config = base / "ffdl.toml"
    config.write_text("[backend.local]\nmax_jobs = 4\n")
    certificate, key = certificate_for("127.0.0.1", base)
    logins = base / "config/ffdl/tokens.toml"
    logins.parent.mkdir(parents=True)
    environment = {"FFDL_BACKEND": "local", "FFDL_CONFIG": str(config)}
    with site_in(base, more_environment=environment) as site, ExitStack() as stack:
        hub = stack.enter_context(serving_hub(base, tls=True, certificate=str(certificate), key=str(key)))
        made = HubDesk(site, base, audit=base / "audit", end_hub=stack.close)
        site.launch(program=PLAIN, start=subprocess.Popen)  # it waits for the helpers that it starts
        until(site.is_served, lambda: f"the daemon to answer; its log:\n{site.log}")
        (base / "users" / str(OWN)).mkdir(parents=True)
        (base / "users" / str(OWN) / "daemon.sock").symlink_to(site.socket)
        url = f"https://127.0.0.1:{hub.port}"
        entry = {"token": TOKEN, "ca": certificate.read_text(), "account": "me"}
        fields = ", ".join(f"{name} = {json.dumps(value)}" for name, value in entry.items())
        logins.write_text(f'newest = "{url}"\n[hubs]\n"{url}" = {{{fields}}}\n')
        logins.chmod(0o600)
        site.more_environment = environment | {
            "FFDL_SOCKET": "", "FFDL_STATE_DIR": "", "FFDL_HUB": url, "XDG_CONFIG_HOME": str(base / "config"),
        }  # fmt: skip
        yield made
        site.more_environment = environment
        end_jobs(made)


def test_exec_breaks_off_with_killed_helper_and_audit_has_both_ends(desk: HubDesk, lone: str) -> None:  # noqa: F811
    until(lambda: desk.streams().count((101, True)) * 2 == len(desk.streams()), "the ends of earlier streams")
    before, seconds = desk.streams(), long(8500)
    with begin(desk, "exec", lone, "--", "bash", "-c", f"trap '' HUP; echo up; sleep {seconds}") as made:
        assert made.stderr is not None
        during = desk.streams()
        for process, line in command_lines():
            if b"\0attach\0" in line and lone.encode() in line:
                os.kill(int(process.name), signal.SIGKILL)
        assert (made.wait(LIMIT_S), b"broke off" in made.stderr.read()) == (1, True)
    assert during == [*before, (101, False)]
    until(lambda: not sleepers(seconds), "what ran in the learner to be gone")
    until(lambda: desk.streams() == [*during, (101, True)], lambda: f"the end in the audit: {desk.streams()}")


def test_exec_ends_when_hub_ends(desk: HubDesk, lone: str) -> None:  # noqa: F811
    """Last, because the hub is gone then."""
    seconds = long(8600)
    with begin(desk, "exec", lone, "--", "bash", "-c", f"trap '' HUP; echo up; sleep {seconds}") as made:
        assert made.stderr is not None
        desk.end_hub()
        assert (made.wait(LIMIT_S), b"broke off" in made.stderr.read()) == (1, True)
    until(lambda: not sleepers(seconds), "what ran in the learner to be gone")
