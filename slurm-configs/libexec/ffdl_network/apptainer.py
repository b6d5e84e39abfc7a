"""Check that Apptainer on this node is configured so that a user without privileges may join a slot.

Apptainer 1.4 compares `allow netns paths` as text, one path per line or separated by commas, without patterns. To join,
it needs the setuid starter, and the user must be in `allow net users` or in a group of `allow net groups`.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from .commands import Trouble
from .settings import Settings


def wanted_lines(settings: Settings) -> list[str]:
    """Return the lines to append to apptainer.conf."""
    lines = [f"allow net groups = {settings.groups}"] if settings.groups else []
    return [*lines, *(f"allow netns paths = {settings.namespace(k)}" for k in range(1, settings.slots + 1))]


def require_members(settings: Settings) -> None:
    """Raise Trouble if neither the site's values nor apptainer.conf let any user join a slot."""
    if settings.groups:
        return
    file = settings.apptainer_conf
    found = _directives(file.read_text(encoding="utf-8", errors="replace")) if file.exists() else {}
    if not _admits_users(found):
        raise Trouble(
            f"NETWORK_GROUPS of the site's values is empty, and {file} has neither 'allow net users' nor 'allow net "
            "groups': with these lines Apptainer would refuse all users. Nothing is printed; set NETWORK_GROUPS, "
            "render, and install libexec again"
        )


def missing(settings: Settings) -> list[str]:
    """Return what is wrong, one sentence for each fault."""
    return [text for text in (_starter(settings), *_configuration(settings)) if text]


def refused(settings: Settings, uid: int) -> str:
    """Return why Apptainer would not let this user join a slot; "" if it would. Reads the node's users and groups."""
    if uid == 0:
        return ""
    found = _directives(settings.apptainer_conf.read_text(encoding="utf-8", errors="replace"))
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return f"this node knows no user {uid}; Apptainer refuses users without a name"
    groups = os.getgrouplist(user.pw_name, user.pw_gid)
    names = {str(group) for group in groups} | {name for group in groups for name in _group_name(group)}
    users, allowed_groups = (set(found.get(key, [])) for key in ("allow net users", "allow net groups"))
    if {user.pw_name, str(uid)} & users or names & allowed_groups:
        return ""
    file = settings.apptainer_conf
    return f"{file}: {user.pw_name} is neither in 'allow net users' nor in a group of 'allow net groups'"


def _group_name(group: int) -> list[str]:
    try:
        return [grp.getgrgid(group).gr_name]
    except KeyError:
        return []


def _starter(settings: Settings) -> str:
    for pattern in settings.starters:
        for file in sorted(Path("/").glob(pattern.lstrip("/"))):
            state = file.stat()
            if state.st_uid == 0 and state.st_mode & stat.S_ISUID and state.st_mode & stat.S_IXOTH:
                return ""
    return (
        f"Apptainer has no setuid starter ({', '.join(settings.starters)}), and --netns-path needs it: install the "
        "package apptainer-suid, or copy the starter to starter-suid beside it, owner root, mode 4755"
    )


def _configuration(settings: Settings) -> list[str]:
    file = settings.apptainer_conf
    try:
        found = _directives(file.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        return [
            f"{file} cannot be read ({error.strerror}): set APPTAINER_CONF in values.env to Apptainer's apptainer.conf"
        ]
    problems = []
    if found.get("allow setuid", ["yes"])[-1] != "yes":
        problems.append(f"{file}: 'allow setuid' must be yes")
    if not _admits_users(found):
        problems.append(f"{file}: add 'allow net groups = <groups>' for those who may have networks (NETWORK_GROUPS)")
    if found.get("allow net networks"):
        problems.append(
            f"{file}: 'allow net networks' lists {', '.join(found['allow net networks'])}: those who may join networks "
            "of jobs could have these, too; remove the line"
        )
    listed = set(found.get("allow netns paths", []))
    lacking = [k for k in range(1, settings.slots + 1) if str(settings.namespace(k)) not in listed]
    if lacking:
        problems.append(
            f"{file}: {len(lacking)} of {settings.slots} slots are not listed, the first is "
            f"'allow netns paths = {settings.namespace(lacking[0])}'; append what `check --apptainer-conf` prints"
        )
    return problems


def _admits_users(found: dict[str, list[str]]) -> bool:
    return bool(found.get("allow net users") or found.get("allow net groups"))


def _directives(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith("#"):
            words = [word.strip() for word in value.split(",") if word.strip() and word.strip() != "NULL"]
            found.setdefault(" ".join(name.split()), []).extend(words)
    return found
