"""Enters nodes: builds the command lines that run a program inside, as root or as a user with a bare login.

Pure: it takes a process number and returns argv.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .rootfs import USERS

USER_PATH = "/opt/ffdl/venv/bin:/usr/local/bin:/usr/bin:/bin"
ROOT_PATH = "/opt/ffdl/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def enter_argv(
    init_pid: int,
    command: Sequence[str],
    *,
    user: str = "root",
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> list[str]:
    """The argv that runs `command` in the node of this process 1.

    The environment is what a login gives and no more (HOME, USER, LOGNAME, SHELL, PATH); XDG_RUNTIME_DIR is not set,
    as at many sites. The command dies with nsenter (PR_SET_PDEATHSIG), so a killed test leaves nothing running.
    """
    if user != "root" and user not in USERS:
        raise KeyError(f"no user {user!r}; there are root, {', '.join(USERS)}")
    home = "/root" if user == "root" else f"/home/{user}"
    login = {
        "HOME": home,
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "PATH": ROOT_PATH if user == "root" else USER_PATH,
    }
    variables = [f"{name}={value}" for name, value in {**login, **(env or {})}.items()]
    become = ["--reuid", user, "--regid", user, "--init-groups"] if user != "root" else []
    return [
        "nsenter",
        f"--target={init_pid}",
        "--mount",
        "--uts",
        "--ipc",
        "--net",
        "--pid",
        "--",
        "setpriv",
        "--pdeathsig",
        "KILL",
        *become,
        "env",
        "-i",
        f"--chdir={cwd or home}",
        *variables,
        *command,
    ]
