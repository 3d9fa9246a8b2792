#!/usr/bin/env bash
# Everything that a machine with an NVIDIA card can show about this project, in less than ten minutes, as one JSON file.
# usage: scripts/gpu_check.sh [--output FILE] [--only STAGE,STAGE...] [--build FOLDER] [--seconds N] [--int8-tops N --bf16-tflops N] [--llama-bench PROGRAM | --llama-source FOLDER] [--llama-model FILE.gguf] [--tiny]
#   stages: build, topo, doctor, targets, tests, models, llama. --build takes a build that is there instead of making one.
#   --int8-tops, --bf16-tflops: the card's dense peaks by its data sheet, to stand against instead of those that are measured.
#   --llama-bench: llama.cpp's llama-bench, built for CUDA; --llama-source: its sources, which are built with nvcc. It is run beside it on
#   random weights of the same shapes, or on --llama-model; its experts are on the CPU.
#   --tiny: sizes for an emulator, of whose figures none means anything.
# Exit status: 0 all that ran passed, 1 something failed, 2 a mistake in the arguments, 3 no card. What was skipped is said, and why.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
output=gpu_check.json only=build,topo,doctor,targets,tests,models,llama build="" seconds=570 int8_tops="" bf16_tflops="" llama_bench="" llama_source="" llama_model="" tiny=""

usage() {
    echo "gpu_check: $1; usage: $(sed -n '3s/^# usage: //p' "$0")" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    if [ "$1" = --tiny ]; then
        tiny=yes
        shift
        continue
    fi
    case $1 in --output | --only | --build | --seconds | --int8-tops | --bf16-tflops | --llama-bench | --llama-source | --llama-model) [ $# -gt 1 ] || usage "$1 needs a value" ;; *) usage "$1 is no option" ;; esac
    case $1 in
        --output) output=$2 ;;
        --only) only=$2 ;;
        --build) build=$(cd "$2" && pwd) || usage "there is no folder $2" ;;
        --seconds) seconds=$2 ;;
        --int8-tops) int8_tops=$2 ;;
        --bf16-tflops) bf16_tflops=$2 ;;
        --llama-bench) llama_bench=$2 ;;
        --llama-source) llama_source=$(cd "$2" && pwd) || usage "there is no folder $2" ;;
        --llama-model) llama_model=$2 ;;
    esac
    shift 2
done
[[ $seconds =~ ^[1-9][0-9]*$ ]] || usage "--seconds $seconds is no number"
for peak in "$int8_tops" "$bf16_tflops"; do
    [[ -z $peak || $peak =~ ^[1-9][0-9]*$ ]] || usage "a peak of $peak is no number"
done
for stage in ${only//,/ }; do
    case $stage in build | topo | doctor | targets | tests | models | llama) ;; *) usage "$stage is no stage" ;; esac
done
: >"$output" || usage "$output cannot be written"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
began=$SECONDS
tandem=""

wanted() { [[ ,$only, == *,$1,* ]]; }

# note STAGE passed|failed|skipped SECONDS WHY [COMMAND]: a line for people, and one for the report
note() {
    echo "gpu_check: $1: $2${4:+: $4}"
    printf '%s\0%s\0%s\0%s\0%s\0' "$1" "$2" "$3" "$4" "${5:-}" >>"$work/stages"
}

# stage NAME RESULT COMMAND…: run it in the time that is left; what it writes to RESULT (json, jsonl, or none) is a part of the report
stage() {
    local name=$1 result=$2 start=$SECONDS left=$((seconds - SECONDS + began)) status=0 command
    shift 2
    command=${*@Q}
    if [ "$left" -lt 1 ]; then
        note "$name" skipped 0 "the $seconds seconds are over"
        return
    fi
    timeout "$left" "$@" >"$work/$name.$result" 2>"$work/$name.log" || status=$?
    case $status in
        0) note "$name" passed $((SECONDS - start)) "" "$command" ;;
        124) note "$name" failed $((SECONDS - start)) "not done when the $seconds seconds were over" "$command" ;;
        *) note "$name" failed $((SECONDS - start)) "exit status $status: $({ cat "$work/$name.log"; [ "$result" != none ] || cat "$work/$name.none"; } | tail -n 1 | cut -c1-300)" "$command" ;;
    esac
}

report() {
    python3 - "$work" "$output" $((SECONDS - began)) "$(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)" <<'PYTHON'
import json, pathlib, sys, time
work, output, seconds, commit = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
parts = (work / "stages").read_text(errors="replace").split("\0")[:-1] if (work / "stages").exists() else []
stages = []
for name, status, took, why, command in zip(*[iter(parts)] * 5):
    stages.append({"stage": name, "status": status, "seconds": int(took), "why": why or None, "command": command or None})
    for path in [work / (name + ".json"), work / (name + ".jsonl")]:
        if not path.exists():
            continue
        text = path.read_text(errors="replace")
        try:
            stages[-1]["result"] = [json.loads(line) for line in text.splitlines() if line.startswith("{")] if path.suffix == ".jsonl" else json.loads(text)
        except ValueError:
            stages[-1]["result"] = None
cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), None)
json.dump({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit, "cpu": cpu, "seconds": seconds, "stages": stages}, open(output, "w"), indent=1)
print(f"gpu_check: {output}: " + ", ".join(f"{sum(s['status'] == w for s in stages)} {w}" for w in ("passed", "failed", "skipped")))
PYTHON
    python3 "$here/scripts/gpu_targets.py" "$output" ${tiny:+--tiny} ${int8_tops:+--int8-tops "$int8_tops"} ${bf16_tflops:+--bf16-tflops "$bf16_tflops"}
    ! grep -qz '^failed$' "$work/stages"
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
if wanted doctor; then
    stage doctor none "$tandem" doctor --device cuda --json "$work/doctor.json"
fi

# bench STAGE SUITE ARGUMENT…: rows of a suite on the card
bench() {
    local name=$1
    shift
    stage "$name" jsonl "$tandem" bench "$1" --device cuda --rounds "$rounds" --json "${@:2}"
}

models="deepseek-v2-lite qwen3-30b-a3b deepseek-v3"
rounds=3 divide=1 linears="v3 " prompt=2048 step_rows="1 streams, context 1024" decode_rows="1 streams, context 16"
slice='{"num_hidden_layers": 6, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0}' # what fits most machines
small='{}'
if [ -n "$tiny" ]; then
    models=qwen3-30b-a3b rounds=1 divide=256 linears="v3 kv_a" prompt=128 step_rows="4 streams, context 16" decode_rows="4 streams, context 16"
    small='{"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "num_experts": 8, "moe_intermediate_size": 32, "vocab_size": 256, "bos_token_id": 0, "eos_token_id": 1}'
    step='{"num_hidden_layers": 3, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32, "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "vocab_size": 256, "bos_token_id": 0, "eos_token_id": 1}'
else
    # V3's device weights are some 0.25 GB a layer beside 3 GB; a card that has less takes fewer layers.
    step_layers=$(python3 -c 'import json, sys; free = json.load(sys.stdin)["cuda_cards"][0]["memory_bytes"]; print(max(4, min(61, int((free - 7e9) / 0.27e9))))' <"$work/cards")
    step="{\"num_hidden_layers\": $step_layers, \"num_nextn_predict_layers\": 0}"
fi

if wanted targets; then
    v3=$here/configs/models/deepseek-v3.json
    bench bounds roofline
    bench step decode --model-path "$v3" --json-model-override-args "$step" --skip-experts all --filter "$step_rows"
    stage step-early jsonl env TD_CUDA_EARLY=1 "$tandem" bench decode --device cuda --rounds "$rounds" --json --model-path "$v3" --json-model-override-args "$step" --skip-experts all --filter "$step_rows"
    bench step-handover decode --model-path "$v3" --json-model-override-args "$step" --skip-experts compute --filter "$step_rows"
    bench link link --filter hand-over
    bench attention-mla attention --divide $divide --filter "mla v3"
    bench attention-gqa attention --divide $divide --filter "gqa"
    bench kernels kernels --divide $divide --filter "$linears"
fi
if wanted tests; then
    if [ -e "$build/CTestTestfile.cmake" ]; then
        stage tests none env TD_TEST_CARD=own ctest --test-dir "$build" -L '^cuda-card$' --output-on-failure --timeout 300 --parallel 4
    else
        note tests skipped 0 "$build has no tests"
    fi
fi
if wanted models; then
    for model in $models; do
        config=$here/configs/models/$model.json override=$small
        [ "$model" != deepseek-v3 ] || override=$slice
        bench "decode-$model" decode --model-path "$config" --json-model-override-args "$override" --filter "$decode_rows"
        bench "prefill-$model" prefill --model-path "$config" --json-model-override-args "$override" --filter " $prompt tokens"
    done
fi

# llama NAME FILE.gguf
llama() {
    stage "$1" json "$llama_bench" -m "$2" -ngl 99 --n-cpu-moe 999 -p $prompt -n 64 -r 3 -o json
}

build_llama() {
    if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
        note llama-build skipped 0 "there is no nvcc, which llama.cpp is built for CUDA with"
        return
    fi
    # shellcheck disable=SC2016 # the inner shell expands it
    stage llama-build none env PATH="$PATH:/usr/local/cuda/bin" sh -c 'cmake -S "$1" -B "$1/build-gpu-check" -DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF &&
        cmake --build "$1/build-gpu-check" --target llama-bench --parallel' sh "$llama_source"
    [ ! -x "$llama_source/build-gpu-check/bin/llama-bench" ] || llama_bench=$llama_source/build-gpu-check/bin/llama-bench
}

# Random weights of the shapes that the stage models has measured, one after the other: they are large.
llama_shapes() {
    local model
    for model in $models; do
        [ "$model" != deepseek-v3 ] || continue # a slice of it is no model of llama.cpp's
        stage "llama-file-$model" none python3 "$here/scripts/random_gguf.py" "$here/configs/models/$model.json" "$work/$model.gguf" --override "$small"
        [ ! -e "$work/$model.gguf" ] || llama "llama-$model" "$work/$model.gguf"
        rm -f "$work/$model.gguf"
    done
}

if wanted llama; then
    [ -n "$llama_bench" ] || [ -z "$llama_source" ] || build_llama
    if [ -z "$llama_bench" ]; then
        note llama skipped 0 "--llama-bench and --llama-source name no llama.cpp to compare with"
    elif [ ! -x "$llama_bench" ]; then
        note llama failed 0 "$llama_bench cannot be run"
    elif [ -z "$llama_model" ]; then
        llama_shapes
    elif [ ! -r "$llama_model" ]; then
        note llama failed 0 "$llama_model cannot be read"
    else
        llama llama "$llama_model"
    fi
fi
report
