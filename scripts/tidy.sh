#!/usr/bin/env bash
# Runs clang-tidy's short list (.clang-tidy) over the product's own sources: scripts/tidy.sh [build
# directory]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
tidy=$(command -v clang-tidy-19 || command -v clang-tidy) || {
  echo "tidy: clang-tidy is missing; run scripts/setup.sh --dev" >&2
  exit 3
}
git ls-files -z -- 'generator/*.cpp' 'cache/*.cpp' 'runtime/*.cpp' 'tuner/*.cpp' 'cli/*.cpp' |
  xargs -0 -n 4 -P "$(nproc)" "$tidy" -p "$build" --quiet 2> /dev/null
