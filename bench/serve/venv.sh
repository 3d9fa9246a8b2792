#!/usr/bin/env bash
# venv.sh evalscope|sglang: make build/venv-evalscope or build/venv-sglang with that package as published; does nothing where it is there already.
# 0.8 GB each. What the packages declare is what a whole evaluation or engine needs, with torch and CUDA; listed here is what their client of a
# server imports.
set -euo pipefail
cd "$(dirname "$0")/../.."
case ${1:-} in
evalscope)
    package=evalscope==1.14.1
    imports=(modelscope datasets transformers aiohttp numpy rich jinja2 tabulate tqdm docstring_parser colorlog jsonschema filetype jsonlines pillow
             editdistance requests openai uvicorn fastapi sse_starlette python-dotenv pyyaml) ;;
sglang)
    package=sglang==0.5.23
    imports=(transformers datasets aiohttp requests numpy tqdm msgspec orjson pillow pybase64 psutil pyzmq) ;;
*)
    echo "usage: venv.sh evalscope|sglang" >&2
    exit 2 ;;
esac
venv=build/venv-$1
stamp="$venv/installed-$package"
[ -e "$stamp" ] && exit 0
echo "== installing $package into $venv: minutes" >&2
python3 -m venv "$venv"
pip=("$venv/bin/pip" install --quiet --disable-pip-version-check)
"${pip[@]}" --no-deps "$package"
# pip warns of the declared packages that are left out, and of versions that only those would mind.
"${pip[@]}" "${imports[@]}" 2> >(grep -v -e 'which is not installed' -e 'which is incompatible' -e 'dependency resolver' >&2)
touch "$stamp"
