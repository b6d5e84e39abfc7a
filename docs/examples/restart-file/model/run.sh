#!/usr/bin/env bash
# Wraps a program that catches no signal and only knows its restart file: it writes one every few steps, and begins
# from it where there is one. Asked for a checkpoint, this script waits for the next restart file, keeps it, and ends the
# program.
set -euo pipefail

steps=${1:-300}
pause=${2:-0.1}
kept="$CHECKPOINT_DIR/restart.dat"
work=$(mktemp -d)
asked=""

keep() { # the program may be writing just now: only a copy that is whole replaces the one before
    cp "$work/restart.dat" "$kept.unfinished" 2>/dev/null || return 0
    [ "$(tail -n 1 "$kept.unfinished")" = end ] || return 0
    mv -f "$kept.unfinished" "$kept"
}

request() {
    [ -n "$asked" ] || touch "$work/asked"
    asked=yes
}

trap request USR2
if [ -f "$kept" ]; then
    cp -p "$kept" "$work/restart.dat" # with its time: not newer than what is kept
    echo "going on from $(head -n 1 "$kept") (RESUME=${RESUME:-})"
fi
./simulate --steps "$steps" --pause "$pause" --every 10 --restart "$work/restart.dat" --out "$RESULT_DIR/result.txt" &
program=$!
while kill -0 "$program" 2>/dev/null; do
    sleep 0.2 &
    wait $! || true # in the background, so that the trap runs at once
    [ ! -e "$JOB_STATE_DIR/halt" ] || request
    if [ "$work/restart.dat" -nt "$kept" ]; then keep; fi # a lost node costs little
    if [ -n "$asked" ] && [ "$kept" -nt "$work/asked" ]; then
        kill "$program" 2>/dev/null || true
        wait "$program" || true
        echo "asked to stop: kept $(head -n 1 "$kept")"
        rm -rf "$work"
        exit 0
    fi
done
trap '' USR2 # done: a request that comes now needs no checkpoint

status=0
wait "$program" || status=$?
rm -rf "$work"
exit "$status"
