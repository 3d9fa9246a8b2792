#!/usr/bin/env bash
# Run a program of the cross build under qemu. QEMU_CPU in the environment names the processor (qemu-aarch64 -cpu help); default: max.
# usage: scripts/run_aarch64.sh PROGRAM [argument...]
exec qemu-aarch64 -L "$(dirname "$0")/../build/aarch64-sysroot" "$@"
