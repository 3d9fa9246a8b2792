#!/usr/bin/env bash
# Build the server with AddressSanitizer + UBSan and with ThreadSanitizer, and run the soak against each, side by side. Any report fails.
# The model has the demo model's tokenizer and a small shape with random weights: what is tested is everything around it.
# usage: scripts/test_sanitizers.sh [seconds of load per run, default 20]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-20}
shape='{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 128, "moe_intermediate_size": 64}'
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

soak() { # preset, flags of launch_server
    echo "== soak, $*"
    python3 tests/server/soak.py --program "build/$1/cli/tandem" --seconds "$seconds" --clients 40 --requests 30 --longest 280 --rss-growth -1 --patience 900 \
        -- --max-total-tokens 2048 --load-format dummy --json-model-override-args "$shape" "${@:2}"
}

for preset in asan tsan; do
    echo "== building ($preset)"
    { cmake --preset "$preset" && cmake --build --preset "$preset" --target tandem; } >"$logs/build" 2>&1 || { cat "$logs/build"; exit 1; }
done
soak asan >"$logs/asan" 2>&1 & asan=$!
soak tsan >"$logs/tsan" 2>&1 & tsan=$!
TD_SHARED_CORES=0 soak tsan --npu-threads 1 --cpuinfer 1 --enable-defer >"$logs/threads" 2>&1 & threads=$! # the tiers on threads of their own
failed=0
for run in "$asan asan" "$tsan tsan" "$threads threads"; do
    wait "${run%% *}" || failed=1
    cat "$logs/${run#* }"
done
exit "$failed"
