"""Install a program that starts commands of one learner in another one. MPI launchers call it in place of ssh.

The learners of an attempt share $JOB_STATE_DIR, which contains this shell program. In each learner it serves a mailbox,
``.mail/<name>/``. Called like ssh, ``.launch-agent [options] <name> <command>...``, it puts the command into the
mailbox of that learner and waits for its status. It needs no port and no key, and from the image only ``sh``. The
command's output goes to the log of the learner that runs it.

A request is the file ``<id>.run``. It becomes ``<id>.taken`` when a learner runs it, and ``<id>.status`` is added when
it has ended. ``<id>.stop`` means that the caller was terminated. Then everything that the command started is ended. A
plain ``sh`` cannot give it a process group (dash has no job control without a terminal), so its environment has
FFDL_REQUEST, which /proc shows. Background processes of a command that ends by itself continue, as with ssh, because
MPI needs that. ``.agent-<name>`` has the process id of the serving shell, as its learner sees it. That learner's
programs get its environment.

Files appear by rename, and are found by reading the directory. Over NFS a name that was looked up too early may seem
absent for half a minute, but a directory listing is up to date (nfs(5), close-to-open).
"""

from __future__ import annotations

import os
from typing import Iterable

from ffdl_batch.attempt.directory_tree import Directories, empty_directory
from ffdl_batch.attempt.file_writer import write_text

NAME = ".launch-agent"
MAIL = ".mail"

PROGRAM = r"""#!/bin/sh
# Runs a command in another learner of this job:  .launch-agent [ssh's options] LEARNER COMMAND...
# In each learner the platform has it serve:      .launch-agent --serve LEARNER
mail=${0%/*}/.mail
own=${LEARNER_NAME_PREFIX-}-$((${LEARNER_ID:-1} - 1))
IFS= # paths with blanks stay whole, and patterns are still patterns

complain() {
    printf 'ffdl launch agent: %s\n' "$1" >&2
    exit 255
}

# Succeeds if the pattern matches a file. Reads the directory.
found() {
    for file in $1; do
        [ -e "$file" ] && return 0
    done
    return 1
}

answer() {
    printf '%s\n' "$2" >"$1.answer" && mv "$1.answer" "$1.status"
}

# Signals the processes of one request. Their environment names it.
signal_all() {
    for file in /proc/[0-9]*/environ; do
        [ -r "$file" ] || continue
        case $({ tr '\0' '\n' <"$file"; } 2>/dev/null) in
            *"FFDL_REQUEST=$2.run"*)
                file=${file%/environ}
                kill "-$1" "${file#/proc/}" 2>/dev/null
                ;;
        esac
    done
}

# Ends the processes of a request whose caller was terminated.
abandon() {
    [ -z "$abandoned" ] || return 0
    abandoned=yes
    signal_all TERM "$1"
    (sleep 5 && signal_all KILL "$1") &
}

# Runs a request, and ends it if its caller is terminated.
obey() {
    request=$1
    abandoned=
    trap 'abandon "$request"' TERM
    FFDL_REQUEST=$1.run sh "$1.taken" </dev/null &
    child=$!
    wait "$child"
    status=$?
    while kill -0 "$child" 2>/dev/null; do
        wait "$child"
        status=$?
    done
    if [ -n "$abandoned" ]; then rm -f "$1".*; else answer "$1" "$status"; fi
}

serve() {
    box=$mail/$1
    printf '%s\n' "$$" >"${0%/*}/.agent-$1"
    turns=0
    while [ -d "$box" ]; do
        for request in "$box"/*.run; do
            id=${request%.run}
            [ -e "$request" ] && mv "$request" "$id.taken" 2>/dev/null || continue
            obey "$id" &
            printf '%s\n' "$!" >"$id.pid"
        done
        for request in "$box"/*.stop; do
            id=${request%.stop}
            [ -e "$id.pid" ] && rm -f "$request" && kill -TERM "$(cat "$id.pid")" 2>/dev/null
        done
        for file in "$box"/*.pid; do # written after the command had ended and its caller had cleaned up
            [ ! -e "$file" ] || [ -e "${file%.pid}.taken" ] || rm -f "$file"
        done
        # MPI programs usually start early, so look five times a second in the first minute, then once.
        if [ "$turns" -lt 300 ]; then
            turns=$((turns + 1))
            sleep 0.2
        else
            sleep 1
        fi
    done
}

ask() {
    box=$mail/$1
    shift
    id=$box/$own-$$-$(date +%s)
    (IFS=' ' && printf '%s\n' "$*" >"$id.new") || complain "$id.new cannot be written"
    trap ': >"$id.stop"; exit 143' HUP INT TERM
    mv "$id.new" "$id.run" || complain "$id.run cannot be written"
    turns=0
    until found "$id.status*"; do
        turns=$((turns + 1))
        [ "$turns" -ge 600 ] && found "$id.run*" && rm -f "$id.run" && complain "learner ${box##*/} takes no commands"
        if [ "$turns" -lt 300 ]; then sleep 0.1; else sleep 0.5; fi
    done
    read -r status <"$id.status"
    rm -f "$id".*
    exit "${status:-255}"
}

if [ "${1-}" = --serve ]; then
    serve "$2"
    exit 0
fi
while [ $# -gt 0 ]; do
    case $1 in
        -[bcDEeFIiJLlmOopQRSWw]) shift ;;
        -*) ;;
        *) break ;;
    esac
    shift
done
[ $# -ge 2 ] || complain "usage: $0 [options] LEARNER COMMAND..."
name=${1%%.*}
name=${name##*@}
case $name in
    '' | */*) complain "'$1' is not a learner" ;;
esac
[ -d "$mail/$name" ] || complain "this job has no learner $name; it has $(cd "$mail" 2>/dev/null && echo *)"
shift
ask "$name" "$@"
"""


def install(state_dir: str, names: Iterable[str]) -> str:
    """Install the program and empty mailboxes below $JOB_STATE_DIR. Return the program's path. Raises OSError.

    Call this before a learner starts, because requests of an earlier run would be executed.
    """
    with Directories(state_dir, 0o700) as tree:
        for name in names:
            empty_directory(".", dir_fd=tree.enter((MAIL, name)))  # even if the path has changed
    path = os.path.join(state_dir, NAME)
    write_text(path, PROGRAM)
    os.chmod(path, 0o700)
    return path
