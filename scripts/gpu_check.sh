#!/usr/bin/env bash
# Everything that a machine with an NVIDIA card can show about this project, in less than ten minutes, as one JSON file.
# usage: scripts/gpu_check.sh [--output FILE] [--only STAGE,STAGE...] [--build FOLDER] [--seconds N] [--llama-bench PROGRAM --llama-model FILE.gguf]
#   stages: build, tests, topo, doctor, bench, llama. --build takes a build that is there instead of making one.
#   --llama-bench: llama.cpp's llama-bench, built for CUDA, is run beside it on the model (its experts on the CPU).
# Exit status: 0 all that ran passed, 1 something failed, 2 a mistake in the arguments, 3 no card. What was skipped is said, and why.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
output=gpu_check.json only=build,tests,topo,doctor,bench,llama build="" seconds=570 llama_bench="" llama_model=""

usage() {
    echo "gpu_check: $1; usage: $(sed -n '3s/^# usage: //p' "$0")" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in --output | --only | --build | --seconds | --llama-bench | --llama-model) [ $# -gt 1 ] || usage "$1 needs a value" ;; *) usage "$1 is no option" ;; esac
    case $1 in
        --output) output=$2 ;;
        --only) only=$2 ;;
        --build) build=$(cd "$2" && pwd) || usage "there is no folder $2" ;;
        --seconds) seconds=$2 ;;
        --llama-bench) llama_bench=$2 ;;
        --llama-model) llama_model=$2 ;;
    esac
    shift 2
done
[[ $seconds =~ ^[1-9][0-9]*$ ]] || usage "--seconds $seconds is no number"
for stage in ${only//,/ }; do
    case $stage in build | tests | topo | doctor | bench | llama) ;; *) usage "$stage is no stage" ;; esac
done
: >"$output" || usage "$output cannot be written"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
began=$SECONDS
tandem=""

wanted() { [[ ,$only, == *,$1,* ]]; }

# note STAGE passed|failed|skipped SECONDS WHY: a line for people, and one for the report
note() {
    echo "gpu_check: $1: $2${4:+: $4}"
    printf '%s\0%s\0%s\0%s\0' "$@" >>"$work/stages"
}

# stage NAME RESULT COMMAND…: run it in the time that is left; what it writes to RESULT (json, jsonl, or none) is a part of the report
stage() {
    local name=$1 result=$2 start=$SECONDS left=$((seconds - SECONDS + began)) status=0
    shift 2
    if [ "$left" -lt 1 ]; then
        note "$name" skipped 0 "the $seconds seconds are over"
        return
    fi
    timeout "$left" "$@" >"$work/$name.$result" 2>"$work/$name.log" || status=$?
    case $status in
        0) note "$name" passed $((SECONDS - start)) "" ;;
        124) note "$name" failed $((SECONDS - start)) "not done when the $seconds seconds were over" ;;
        *) note "$name" failed $((SECONDS - start)) "exit status $status: $({ cat "$work/$name.log"; [ "$result" != none ] || cat "$work/$name.none"; } | tail -n 1 | cut -c1-300)" ;;
    esac
}

# Whether the program knows the device; what it says otherwise is why a stage is skipped.
knows_cuda() {
    "$tandem" "$1" --help 2>/dev/null | grep -A3 -- '--device' | grep -qw cuda
}

report() {
    python3 - "$work" "$output" $((SECONDS - began)) "$(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)" <<'PYTHON'
import json, pathlib, sys, time
work, output, seconds, commit = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
parts = (work / "stages").read_text(errors="replace").split("\0")[:-1] if (work / "stages").exists() else []
stages = []
for name, status, took, why in zip(*[iter(parts)] * 4):
    stages.append({"stage": name, "status": status, "seconds": int(took), "why": why or None})
    for path in work.glob(name + ".json*"):
        text = path.read_text(errors="replace")
        try:
            stages[-1]["result"] = [json.loads(line) for line in text.splitlines() if line.startswith("{")] if path.suffix == ".jsonl" else json.loads(text)
        except ValueError:
            stages[-1]["result"] = None
cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), None)
json.dump({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit, "cpu": cpu, "seconds": seconds, "stages": stages}, open(output, "w"), indent=1)
print(f"gpu_check: {output}: " + ", ".join(f"{sum(s['status'] == w for s in stages)} {w}" for w in ("passed", "failed", "skipped")))
sys.exit(any(s["status"] == "failed" for s in stages))
PYTHON
}

if [ -z "$build" ]; then
    build=$here/build/release
    if wanted build; then
        stage build none env -C "$here" sh -c 'cmake --preset release -DTD_WERROR=ON && cmake --build --preset release'
    fi
elif wanted build; then
    note build skipped 0 "--build names one that is there"
fi
tandem=$build/cli/tandem
if [ ! -x "$tandem" ]; then
    note topo failed 0 "there is no $tandem"
    report
    exit 1
fi

# A card, or nothing else makes sense. topo measures it, which takes a few seconds beside those of the stages.
looking=$SECONDS
"$tandem" topo --json >"$work/cards" 2>"$work/cards.log" || usage "$tandem topo fails: $(tail -n 1 "$work/cards.log")"
none=$(python3 -c 'import json, sys; t = json.load(sys.stdin); print("" if t["cuda_cards"] else t["cuda_error"] or "the machine has no NVIDIA driver, or the driver finds no card")' <"$work/cards")
if [ -n "$none" ]; then
    echo "gpu_check: no card: $none" >&2
    rm -f "$output"
    exit 3
fi

began=$((began + SECONDS - looking))
if wanted topo; then stage topo json "$tandem" topo --json; fi
if wanted tests; then
    if [ -e "$build/CTestTestfile.cmake" ]; then
        stage tests none ctest --test-dir "$build" -L '^cuda(-emulated|-card)?$' --output-on-failure --timeout 300
    else
        note tests skipped 0 "$build has no tests"
    fi
fi
if wanted doctor; then
    if knows_cuda doctor; then
        stage doctor none "$tandem" doctor --device cuda --json "$work/doctor.json"
    else
        note doctor skipped 0 "this build has no device cuda"
    fi
fi
if wanted bench; then
    for model in deepseek-v2-lite qwen3-30b-a3b deepseek-v3; do
        config=$here/configs/models/$model.json
        slice='{}'
        [ $model != deepseek-v3 ] || slice='{"num_hidden_layers": 6, "first_k_dense_replace": 1}' # what fits most machines
        for suite in decode prefill; do
            if ! knows_cuda bench; then
                note "bench-$suite-$model" skipped 0 "this build has no device cuda"
            elif [ ! -e "$config" ]; then
                note "bench-$suite-$model" skipped 0 "there is no $config"
            else
                stage "bench-$suite-$model" jsonl "$tandem" bench $suite --device cuda --config "$config" --json-model-override-args "$slice" --rounds 3 --json
            fi
        done
    done
fi
if wanted llama; then
    if [ -z "$llama_bench" ] || [ -z "$llama_model" ]; then
        note llama skipped 0 "--llama-bench and --llama-model name no llama.cpp to compare with"
    elif [ ! -x "$llama_bench" ] || [ ! -r "$llama_model" ]; then
        note llama failed 0 "$llama_bench cannot be run, or $llama_model cannot be read"
    else
        stage llama json "$llama_bench" -m "$llama_model" -ngl 99 --n-cpu-moe 999 -p 512,2048 -n 64 -r 3 -o json
    fi
fi
report
