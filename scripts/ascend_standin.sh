#!/usr/bin/env bash
# Run a command with the stand-in for CANN's libraries in place of CANN (tests/standins/ascend; its environment is listed in standin.h there).
# usage: scripts/ascend_standin.sh COMMAND…      TD_BUILD=folder is the build that has it (build/release)
set -euo pipefail
build=${TD_BUILD:-$(cd "$(dirname "$0")/.." && pwd)/build/release}
if [ $# -eq 0 ] || [ ! -e "$build/ascend_standin/lib64/libascendcl.so" ]; then
    echo "usage: scripts/ascend_standin.sh COMMAND…   (build the tests first: $build/ascend_standin has no libraries, or there is no command)" >&2
    exit 2
fi
unset ASCEND_TOOLKIT_HOME
ASCEND_HOME_PATH=$build/ascend_standin exec "$@"
