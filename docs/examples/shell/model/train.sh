#!/usr/bin/env bash
# A shell script that traps the request. Each round is a program that knows nothing of checkpoints; what is to be kept
# between rounds are two numbers.
set -euo pipefail

rounds=${1:-30}
pause=${2:-1}
checkpoint="$CHECKPOINT_DIR/rounds"
asked=""
worker=""
round=0
value=1

save() { # whole or not at all
    printf '%s %s\n' "$round" "$value" > "$checkpoint.unfinished"
    mv -f "$checkpoint.unfinished" "$checkpoint"
}

on_request() { # ends the round that is running; it will be run again
    asked=yes
    [ -z "$worker" ] || kill "$worker" 2>/dev/null || true
}

if [ -f "$checkpoint" ]; then
    read -r round value < "$checkpoint"
    echo "going on after round $round (RESUME=${RESUME:-})"
fi
trap on_request USR2
while [ "$round" -lt "$rounds" ]; do
    # bash runs a trap only after the program in the foreground has ended, but at once while it waits
    ./round.sh "$value" "$pause" > "$JOB_STATE_DIR/next-value" &
    worker=$!
    status=0
    wait "$worker" || status=$?
    worker=""
    if [ "$status" -eq 0 ]; then
        value=$(cat "$JOB_STATE_DIR/next-value")
        round=$((round + 1))
        echo "round $round"
        save
    fi
    if [ -n "$asked" ] || [ -e "$JOB_STATE_DIR/halt" ]; then
        save # again, also where nothing is new: only a file that changed after the request confirms it
        echo "asked to stop: saved at round $round"
        exit 0
    fi
    [ "$status" -eq 0 ] || exit "$status"
done
trap '' USR2 # done: a request that comes now needs no checkpoint

echo "$value" > "$RESULT_DIR/result.txt"
echo "the value after $rounds rounds is $value"
