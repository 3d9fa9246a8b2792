#!/usr/bin/env bash
# Build Tandem, serve the demo model and stream one chat answer into the terminal; then go on serving until Ctrl-C.
# usage: scripts/demo.sh [--once] [--port N]     --once: end after the answer
set -euo pipefail
cd "$(dirname "$0")/.."

once=0 port=30000
while [ $# -gt 0 ]; do
    case "$1" in
        --once) once=1 ;;
        --port) port=${2:?--port needs a number}; shift ;;
        -h|--help) sed -n '2,3s/^# //p' "$0"; exit 0 ;;
        *) echo "scripts/demo.sh: unknown option '$1'; see --help" >&2; exit 2 ;;
    esac
    shift
done

echo "== 1/3 installing what is missing"
scripts/deps.sh build
echo "== 2/3 building"
log=$(mktemp)
server=
cleanup() {
    rm -f "$log"
    [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server"; } || true
}
trap cleanup EXIT
trap 'exit 0' INT TERM
# The preset's own folder, so that the next steps of README.md begin with a program that is there. Where nothing was built yet, tests are left out
# until somebody runs the preset.
without=()
[ -e build/release/CMakeCache.txt ] || without=(-DTD_TESTS=OFF -DTD_PAGES=OFF)
cmake --preset release "${without[@]}" >"$log" 2>&1 || { cat "$log"; exit 1; }
cmake --build --preset release --target tandem

echo "== 3/3 starting tandem launch_server on models/tale-v3-14m"
build/release/cli/tandem launch_server --config configs/launch/demo.yaml --port "$port" &
server=$!
url=http://127.0.0.1:$port
for _ in $(seq 1 300); do
    kill -0 "$server" 2>/dev/null || { wait "$server" || true; echo "scripts/demo.sh: the server did not start; its last line says why" >&2; server=; exit 1; }
    curl -fs "$url/health" >/dev/null 2>&1 && break
    sleep 0.1
done

# With this seed the story ends after some 350 tokens.
question='Tell me a story about a fox and a crow.'
body='{"model": "tale-v3-14m", "messages": [{"role": "user", "content": "'$question'"}], "stream": true, "temperature": 0.6, "seed": 0}'
printf '\n\033[1m%s\033[0m\n' "$question"
# Each event is one line: data: {... "delta": {"content": "piece"} ...}; %b undoes JSON's escapes.
curl -sSN --fail-with-body "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "$body" | while IFS= read -r line; do
    piece=$(sed -n 's/.*"content": *"\(\([^"\\]\|\\.\)*\)".*/\1/p' <<<"$line")
    printf '%b' "${piece//\\\"/\"}"
    [[ $line != '{"error"'* ]] || echo "$line" >&2
done || { echo "scripts/demo.sh: the request failed" >&2; exit 1; }
printf '\n\n'
[ "$once" -eq 0 ] || exit 0

cat <<TEXT
Serving on $url (Ctrl-C stops). Open it in a browser for a chat, or try the API:

  curl -N $url/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "tale-v3-14m", "messages": [{"role": "user", "content": "Tell me a story about a princess and a wolf."}], "stream": true}'

TEXT
wait "$server"
