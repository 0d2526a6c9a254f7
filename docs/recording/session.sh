#!/usr/bin/env bash
# What is recorded: the first commands of README. `record.sh` runs it in a terminal of its own.
set -euo pipefail
data=$(mktemp -d)
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; rm -rf "$data"' EXIT

# Shows a command as if it were typed, and runs it.
run() {
    printf '\033[1;32m$\033[0m '
    for ((i = 0; i < ${#1}; i++)); do
        printf '%s' "${1:i:1}"
        sleep 0.02
    done
    printf '\n'
    sleep 0.3
    eval "${2:-$1}"
    sleep "${3:-1.5}"
}

up() {
    weir up examples/quickstart --data "$data" >"$data/out" 2>"$data/log" &
    server=$!
    touch "$data/out"
    until grep '^ready' "$data/out"; do sleep 0.1; done
}

run 'weir up examples/quickstart &' up
run 'weir chat "Name a primary colour."'
ask="curl -fsN http://127.0.0.1:8080/inference -H 'Authorization: Bearer acme-dev-key' \\
    -H 'Accept: text/event-stream' \\
    -d '{\"model\":\"tiny-chat\",\"input\":\"Tell me a story about a rabbit.\",\"requestKey\":\"first\"}' \\
    | grep ^data | cut -c1-106"
run "$ask | tail -4"
printf '\033[2m# the same request again is the same run: replayed, not computed, not billed twice\033[0m\n'
run "$ask | tail -2"
run 'weir usage'
run 'weir get' 'weir get' 3
