#!/usr/bin/env bash
# Formats every C and C++ file of the repository in place; with --check, only says which ones
# differ.
set -euo pipefail
cd "$(dirname "$0")/.."
formatter=$(command -v clang-format-19 || command -v clang-format) || {
  echo "format: clang-format is missing; run scripts/setup.sh --dev" >&2
  exit 3
}
git ls-files -z -- '*.c' '*.cpp' '*.h' '*.hpp' '*.cu' '*.cuh' |
  if [ "${1:-}" = --check ]; then
    xargs -0 "$formatter" --dry-run -Werror
  else
    xargs -0 "$formatter" -i
  fi
