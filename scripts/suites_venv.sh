#!/usr/bin/env bash
# Make build/suites-venv with the API suites of vLLM, SGLang and llama.cpp, from the packages of these projects on PyPI, and with what they need to speak to
# a URL; does nothing where it is there already. Some 160 MB are downloaded, and 10 MB are kept.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(aiohttp==3.14.5 anthropic==2.14.0 filelock==4.3.1 jsonschema==4.26.0 numpy==2.4.6 openai==3.57.0 prometheus-client==0.26.0 pytest==9.2.0
    pytest-asyncio==1.5.0 pybase64==1.5.1 regex==2026.11.19 requests==2.34.2 tokenizers==0.23.3 unearth==0.19.0)
venv=build/suites-venv
stamp="$venv/installed $(echo "${packages[*]}" vllm 0.33.0 sglang 0.5.23 llama-cpp-python 0.3.36 | sha256sum | cut -c1-16)"
[ -e "$stamp" ] && exit 0
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"

# Source packages are fetched as they are: pip would run their build scripts, which want PyTorch or a C++ compiler.
fetch() { # package, SHA-256, file: checked
    "$venv/bin/unearth" --no-binary --download "$venv/source" "$1" >"$venv/found"
    mv "$venv"/source/*.tar.gz "$3"
    echo "$2  $3" | sha256sum --check --quiet
}
archive=$venv/archive
fetch vllm==0.33.0 f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112 "$archive"
mkdir "$venv/vllm"
tar -xzf "$archive" -C "$venv/vllm" --strip-components 1 vllm-0.33.0/tests/entrypoints
fetch llama-cpp-python==0.3.36 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e "$archive"
mkdir "$venv/llama.cpp"
tar -xzf "$archive" -C "$venv/llama.cpp" --strip-components 6 llama_cpp_python-0.3.36/vendor/llama.cpp/tools/server/tests
rm -r "$archive" "$venv/source" "$venv/found"
# SGLang's wheel has the classes of its tests that ask a URL. They are the same in the wheels of every platform.
"$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.11 --platform manylinux_2_34_x86_64 \
    --dest "$venv" sglang==0.5.23
python3 -m zipfile --extract "$venv"/sglang-0.5.23-*.whl "$venv/sglang"
rm "$venv"/sglang-0.5.23-*.whl
find "$venv/sglang" -mindepth 3 -maxdepth 3 ! -path "$venv/sglang/sglang/test/kits" -prune -exec rm -rf {} +
touch "$stamp"
