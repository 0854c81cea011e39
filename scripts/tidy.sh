#!/usr/bin/env bash
# Runs clang-tidy's short list (.clang-tidy) over the product's own sources, those of a library at
# once: most of the time goes into headers that they share.
set -euo pipefail
cd "$(dirname "$0")/.."
tidy=$(command -v clang-tidy-19 || command -v clang-tidy) || {
  echo "tidy: clang-tidy is missing; run scripts/setup.sh --dev" >&2
  exit 3
}
cmake --preset lint > /dev/null
# The last library, the command, is a large one: it goes first, or one processor is left alone with
# it.
sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' build/lint/compile_commands.json |
  grep -E "^$PWD/(build/lint/)?(generator|cache|runtime|tuner|cli)/" | grep -v '/embedded_' | tac |
  xargs -n 1 -P "$(nproc)" "$tidy" -p build/lint --quiet 2> /dev/null
