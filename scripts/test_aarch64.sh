#!/usr/bin/env bash
# Build for aarch64, and run tests of the build under qemu. Kernels of every tier are compared with plain sums, each on a processor that has no more
# than that tier. Experts, models of every architecture, pages of 64 KiB and the server's main path follow. Nothing here has ever run on ARM hardware
# (docs/aarch64.md).
# usage: scripts/test_aarch64.sh [--full]   (--full: the whole suite of the preset but for what it names as left out; some hours)
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deps.sh aarch64
scripts/test_venv.sh
targets=(tandem test_cpu test_kernel_products test_kernel_floats test_kernel_attn16 test_row_quant test_convert test_checksum test_expert_ffn test_expert_file
         test_expert_unpack test_npu_blocks test_npu_groups test_pool test_topology test_thread_layout test_golden test_stored_formats test_bridge
         test_safetensors test_file_write test_device_file test_apart_rules test_ascend_loader test_ascend_standin test_ascend_standin_rules
         test_ascend_runtime test_ascend_group test_ascend_groups test_ascend_model test_image)
[ "${1:-}" != --full ] || targets=(all)
echo "== building (aarch64, warnings are errors)"
log=$(mktemp)
{ cmake --preset aarch64 -DTD_WERROR=ON && cmake --build --preset aarch64 --target "${targets[@]}"; } >"$log" 2>&1 || { cat "$log"; rm -f "$log"; exit 1; }
rm -f "$log"

run() { # processor, tests as a regular expression
    echo "== $1: $2"
    QEMU_CPU=$1 ctest --preset aarch64 -j "$(nproc)" --no-tests=error -R "^($2)\$" "${@:3}"
}

if [ "${1:-}" = --full ]; then
    # Tests that ask how long something takes, which an emulator cannot answer.
    left_out=(
        "soak_short        as many requests as come in 8 seconds"
        "test_bench        timings"
    )
    echo "== left out:"
    printf '   %s\n' "${left_out[@]}"
    export TD_TEST_PATIENCE=10 # times what the servers' clients wait for an answer
    run max,sve256=on ".*" -E "^($(printf '%s\n' "${left_out[@]%% *}" | paste -sd '|'))\$"
    exit
fi

tier() { # processor, the kernels that it must get: an SVE length that no kernel takes is no tier
    echo "== $1 runs $2"
    QEMU_CPU=$1 scripts/run_aarch64.sh build/aarch64/cli/tandem topo 2>/dev/null | grep -q "^Kernels: $2;"
}
tier cortex-a57 neon
tier a64fx neon # SVE without sdot
tier neoverse-n1 dotprod
tier max,sve=off i8mm
tier max,sve128=on i8mm
tier max,sve256=on sve256
tier max,sve512=on i8mm
kernels="test_cpu|test_kernel_products|test_kernel_floats|test_kernel_attn16|test_row_quant|test_convert|test_checksum"
run cortex-a57 "$kernels"                                   # NEON, no more
run neoverse-n1 "$kernels"                                  # with sdot, as Kunpeng 920
run max,sve256=on "$kernels"                                # with smmla, and SVE's in vectors of 256 bits
run max,sve512=on "test_cpu|test_kernel_floats"             # vectors that no kernel takes
run max,sve128=on "test_cpu|test_kernel_floats"
run a64fx "test_cpu"                                        # SVE without sdot
run neoverse-n1 "test_kernel_floats_(scalar|neon)"
run neoverse-n1 "test_expert_ffn|test_expert_file|test_expert_unpack|test_npu_blocks|test_npu_groups|test_pool|test_topology|test_thread_layout|test_stored_formats|test_bridge"
run neoverse-n1 "test_golden_short|test_image"
run neoverse-n1 "test_ascend_loader|test_ascend_standin|test_ascend_standin_rules|test_ascend_runtime|test_ascend_group|test_ascend_groups" # the stand-in's libraries, too
echo "== a model on the Ascend stand-in"
QEMU_CPU=neoverse-n1 TD_TEST_SAMPLE=1 scripts/run_aarch64.sh build/aarch64/tests/model/test_ascend_model qwen2_moe
export QEMU_PAGESIZE=65536
run neoverse-n1 "test_safetensors|test_file_write|test_topology|test_device_file|test_expert_file|test_apart_rules"
unset QEMU_PAGESIZE
echo "== the server"
QEMU_CPU=neoverse-n1 TD_TANDEM=$PWD/build/aarch64/emulated_tandem TD_SOURCE_DIR=$PWD PYTHONPATH=tests/server build/venv/bin/python -m unittest \
    test_demo_server.Demo.{test_chat,test_prompt_forms,test_errors} test_demo_server.Launch.test_bad_folder
