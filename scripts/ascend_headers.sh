#!/usr/bin/env bash
# Fetch the headers of AscendCL and HCCL that the PyPI wheel torch-npu carries, for the checks of npu/ascend's own declarations:
# into build/ascend_headers/VERSION/{acl,hccl}.
# usage: scripts/ascend_headers.sh VERSION     prints that folder, as scripts/wheel_headers.sh
#   2.14.0 (44 MB) is the newest; 2.5.1 (16 MB) is the one for CANN 8.1
set -euo pipefail
exec "$(dirname "$0")/wheel_headers.sh" ascend_headers torch-npu "$1" 'torch_npu/include/third_party/(acl|hccl)/inc/(.*\.h)' '\1/\2'
