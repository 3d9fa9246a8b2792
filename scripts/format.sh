#!/usr/bin/env bash
# Lay out C files as .clang-format says, with the version of clang-format whose result is the project's.
# usage: scripts/format.sh [--check] [FILE or FOLDER...]   (default: every .c, .h and .inc file of the repository)
# --check changes nothing: it names the files that would change, and fails. Exit status 77 where there is no clang-format-14.
set -euo pipefail
cd "$(dirname "$0")/.."
formatter=clang-format-14

check=
if [ "${1:-}" = --check ]; then
    check=1
    shift
fi
command -v "$formatter" >/dev/null || { echo "skipped: there is no $formatter (scripts/deps.sh test installs it)"; exit 77; }
# Without git, as in an unpacked archive, the folders are looked through.
files=()
while IFS= read -r -d '' f; do files+=("$f"); done < <(
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files -z --cached --others --exclude-standard -- "${@:-.}"
    else
        find "${@:-.}" -name build -prune -o -type f -print0
    fi | grep -zE '\.(c|h|inc)$' || true)
[ "${#files[@]}" -gt 0 ] || { echo "no C file under ${*:-.}" >&2; exit 2; }

if [ -z "$check" ]; then
    "$formatter" -i "${files[@]}"
    exit 0
fi
mapfile -t wrong < <("$formatter" --dry-run --ferror-limit=1 -Werror "${files[@]}" 2>&1 | sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: error: code should be .*/\1/p' | sort -u)
echo "${#files[@]} files, ${#wrong[@]} laid out otherwise than .clang-format says"
[ "${#wrong[@]}" -eq 0 ] && exit 0
printf '  %s\n' "${wrong[@]}"
echo "mend them: scripts/format.sh ${wrong[*]:0:20}$([ "${#wrong[@]}" -gt 20 ] && echo ' …')"
exit 1
