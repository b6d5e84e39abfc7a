"""Commands inside running learners through a hub: a real hub with TLS, the daemon behind it, and the command line.

The tests of :mod:`tests.contract.test_debugging` run again, on a client that knows the hub alone.
"""

from __future__ import annotations

import functools
import json
import os
import pwd
import signal
import socket
import ssl
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path
from typing import cast

import pytest

from tests import preloaded
from tests.command_lines import command_lines
from tests.contract import test_debugging
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
    test_exec_leaves_no_process_after_exit_client_kill_or_second_interrupt,
    test_exec_passes_large_stdin_and_stdout_unchanged,
    test_exec_runs_command_in_learner_network_directory_and_environment,
    test_shell_ends_when_terminal_is_closed,
    test_shell_provides_resizable_terminal_with_interrupt_key,
)
from tests.fakes.certificates import certificate_for
from tests.preloaded import FFDL
from tests.unit.hub.conftest import OWN, TOKEN, serving_hub

ROOT = Path(__file__).parents[2]


def in_full(test: Callable[..., None]) -> Callable[..., None]:
    """A test that runs here in `make test-full` only, and in its own module always."""

    @functools.wraps(test)
    def again(**fixtures: object) -> None:
        test(**fixtures)

    return cast("Callable[..., None]", pytest.mark.full(again))


test_exec_enters_selected_learner = in_full(test_debugging.test_exec_enters_selected_learner_and_rejects_unknown_one)
test_exec_forwards_interrupt = in_full(test_debugging.test_exec_forwards_interrupt_to_command)
test_stack_prints_function = in_full(test_debugging.test_stack_prints_function_in_which_learner_hangs)
test_top_lists_processes = in_full(test_debugging.test_top_lists_processes_of_every_learner_once_without_terminal)
NGINX_DIRECTORIES = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


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
        hub = stack.enter_context(
            serving_hub(base, tls=True, certificate=str(certificate), key=str(key), trusted_proxies=["127.0.0.1"])
        )
        made = HubDesk(site, base, audit=base / "audit", end_hub=stack.close)
        site.launch(program=PLAIN, start=preloaded.Popen)  # it waits for the helpers that it starts
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


@pytest.fixture
def behind_nginx(desk: HubDesk) -> Iterator[int]:
    """The port of an nginx in front of the hub, with the configuration of docs/security/hub.md. Commands use it."""
    place, before = desk.base / "nginx", desk.site.more_environment
    url = before["FFDL_HUB"]
    place.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = (ROOT / "docs/security/hub.md").read_text().split("```nginx\n")[1].split("```")[0]
    for old, new in {
        "listen 443": f"listen 127.0.0.1:{port}", "hub.example.org:8443": url.removeprefix("https://"),
        "ffdl.example.org": "127.0.0.1", "/etc/nginx/ffdl.pem": f"{desk.base}/cert.pem",
        "/etc/nginx/ffdl.key": f"{desk.base}/key.pem",
    }.items():  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    directories = "".join(f"{name}_temp_path {place}/{name};\n" for name in NGINX_DIRECTORIES)
    main = f"daemon off;\nuser {pwd.getpwuid(OWN).pw_name};\npid {place}/pid;\nerror_log {place}/errors;\nevents {{}}\n"
    (place / "conf").write_text(f"{main}http {{\naccess_log off;\n{directories}{text}}}\n")
    logins = desk.base / "config/ffdl/tokens.toml"
    own = f"https://127.0.0.1:{port}"
    kept = logins.read_text()
    logins.write_text(kept + kept.splitlines()[-1].replace(url, own) + "\n")
    with subprocess.Popen(["/usr/sbin/nginx", "-e", f"{place}/errors", "-c", f"{place}/conf"]) as nginx:
        try:
            until((place / "pid").exists, (place / "errors").read_text)
            desk.site.more_environment = {**before, "FFDL_HUB": own}
            yield port
        finally:
            desk.site.more_environment = before
            logins.write_text(kept)
            nginx.terminate()


def test_commands_work_through_nginx_as_documented_and_audit_has_address_of_client(
    desk: HubDesk,
    lone: str,  # noqa: F811
    behind_nginx: int,
) -> None:
    test_exec_passes_large_stdin_and_stdout_unchanged(desk, lone)
    (desk.base / "model/large").write_bytes(os.urandom(3 << 20))  # more than nginx accepts by default
    goes_on = desk.base / "goes-on"
    job_id = desk.submit("waits", f"echo first; while ! [ -e {goes_on} ]; do sleep 0.1; done; echo last")
    with preloaded.Popen(
        [*FFDL, "logs", "-f", job_id], env=desk.site.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as following:
        assert following.stdout is not None
        lines = [following.stdout.readline()]
        goes_on.touch()
        lines.append(following.stdout.readline())
    assert (lines, following.returncode) == ([b"first\n", b"last\n"], 0)
    context = ssl.create_default_context(cafile=desk.base / "cert.pem")
    client = HTTPSConnection("127.0.0.1", behind_nginx, timeout=60, context=context, source_address=("127.0.0.7", 0))
    client.request("GET", "/api/v1/jobs", headers={"Authorization": "Bearer wrong", "X-Forwarded-For": "192.0.2.1"})
    assert client.getresponse().status == 401
    client.close()
    until(lambda: '"from":"address 127.0.0.7"' in desk.audit.read_text(), "the request in the audit")
    assert "192.0.2.1" not in desk.audit.read_text()


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


def test_support_archive_is_written_through_hub(desk: Desk, lone: str) -> None:  # noqa: F811
    target = desk.base / "ticket.tar.gz"
    desk.run("support", lone, "-o", str(target))
    with tarfile.open(target) as archive:
        names = set(archive.getnames())
    assert {"ticket/job.json", "ticket/attempt-1/launch.json", "ticket/daemon.log"} <= names


def test_exec_ends_when_hub_ends(desk: HubDesk, lone: str) -> None:  # noqa: F811
    """Last, because the hub is gone then."""
    seconds = long(8600)
    with begin(desk, "exec", lone, "--", "bash", "-c", f"trap '' HUP; echo up; sleep {seconds}") as made:
        assert made.stderr is not None
        desk.end_hub()
        assert (made.wait(LIMIT_S), b"broke off" in made.stderr.read()) == (1, True)
    until(lambda: not sleepers(seconds), "what ran in the learner to be gone")
