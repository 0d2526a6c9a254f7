#!/usr/bin/env bash
# Makes first-token.cast and first-token.svg anew: what README shows, run by the release build and recorded as it happens.
#
#     cargo build --release --bin weir && docs/recording/record.sh
#
# asciinema and svg-term-cli are installed into target/recording, in these versions. Ports 8080 and 9090 must be free.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools=target/recording
program=$(realpath "${WEIR_BIN:-target/release/weir}")
mkdir -p "$tools/bin"
[ -x "$tools/python/bin/asciinema" ] || { python3 -m venv "$tools/python" && "$tools/python/bin/pip" install --quiet asciinema==2.4.0; }
[ -x "$tools/node_modules/.bin/svg-term" ] || npm install --silent --no-audit --no-fund --no-save --prefix "$tools" svg-term-cli@2.1.1
ln -sf "$program" "$tools/bin/weir"
export PATH="$PWD/$tools/bin:$PATH" TERM=xterm-256color
"$tools/python/bin/asciinema" rec --quiet --overwrite --cols 110 --rows 34 --idle-time-limit 2 \
    --title 'Weir: the first token' --command docs/recording/session.sh docs/recording/first-token.cast
"$tools/node_modules/.bin/svg-term" --in docs/recording/first-token.cast --out docs/recording/first-token.svg --window --no-cursor --width 110 --height 34
