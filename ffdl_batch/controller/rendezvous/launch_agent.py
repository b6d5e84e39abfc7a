"""Starts programs of one learner in another one, without sshd: what MPI launchers call in place of ssh.

The learners of an attempt share $JOB_STATE_DIR. There lies one shell program: in each learner it serves a mailbox,
``.mail/<name>/``; called as ssh is called, ``.launch-agent [options] <name> <command>...``, it puts the command into
the mailbox of that learner and waits for its status. No port, no key, nothing of ours in the image but ``sh``. What
the command prints goes to the log of the learner that runs it.

A request is ``<id>.run``, ``<id>.taken`` when somebody runs it, ``<id>.status`` when it has ended, and ``<id>.stop``
when whoever asked is told to end. All that the command started is ended then. A plain ``sh`` cannot give it a process
group (dash has no job control without a terminal), so it carries FFDL_REQUEST, which /proc shows. What it leaves when
it ends by itself goes on, as with ssh: daemons of MPI do so. ``.agent-<name>`` has the process id of who serves, as its
learner sees it: its environment is what programs of that learner begin with.

Names appear by rename, and are looked for by reading the directory: over NFS a name that was missed once may seem
absent for half a minute, a directory that is read is fresh (nfs(5), close-to-open).
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

# Whether the pattern names a file; reads the directory.
found() {
    for file in $1; do
        [ -e "$file" ] && return 0
    done
    return 1
}

answer() {
    printf '%s\n' "$2" >"$1.answer" && mv "$1.answer" "$1.status"
}

# Signals the processes of one request, wherever they went: what they were started with names it.
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

# Whoever asked was told to end: so are these.
give_up() {
    [ -z "$given_up" ] || return 0
    given_up=yes
    signal_all TERM "$1"
    (sleep 5 && signal_all KILL "$1") &
}

# Runs what was asked for, and ends it when whoever asked was told to end.
obey() {
    request=$1
    given_up=
    trap 'give_up "$request"' TERM
    FFDL_REQUEST=$1.run sh "$1.taken" </dev/null &
    child=$!
    wait "$child"
    status=$?
    while kill -0 "$child" 2>/dev/null; do
        wait "$child"
        status=$?
    done
    if [ -n "$given_up" ]; then rm -f "$1".*; else answer "$1" "$status"; fi
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
        for file in "$box"/*.pid; do # noted when the command was over already, and whoever asked had cleared up
            [ ! -e "$file" ] || [ -e "${file%.pid}.taken" ] || rm -f "$file"
        done
        # MPI programs begin soon or never: five looks a second in the first minute, then one.
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
    '' | */*) complain "'$1' is no learner" ;;
esac
[ -d "$mail/$name" ] || complain "this job has no learner $name; it has $(cd "$mail" 2>/dev/null && echo *)"
shift
ask "$name" "$@"
"""


def install(state_dir: str, names: Iterable[str]) -> str:
    """The program and the learners' mailboxes, empty, below $JOB_STATE_DIR; the program's path. Raises OSError.

    To be called before any learner starts: what an earlier run left in a mailbox would be run.
    """
    with Directories(state_dir, 0o700) as tree:
        for name in names:
            empty_directory(".", dir_fd=tree.enter((MAIL, name)))  # even if the path changed since
    path = os.path.join(state_dir, NAME)
    write_text(path, PROGRAM)
    os.chmod(path, 0o700)
    return path
