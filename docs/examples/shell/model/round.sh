#!/usr/bin/env bash
# One round of work on the value $1; takes $2 seconds.
set -euo pipefail
sleep "$2"
echo $((($1 * 1103515245 + 12345) % 2147483648))
