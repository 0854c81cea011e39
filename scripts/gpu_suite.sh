#!/usr/bin/env bash
# The GPU suite with each compiler, shared out among processes: in one process the driver assembles
# LLVM's kernels one after the other. LLVM's turn finds no NVRTC, as on a machine without a CUDA
# toolkit.
#   scripts/gpu_suite.sh [build/release] [nvrtc] [llvm]
set -euo pipefail
build=${1:-build/release}
shift || true
compilers=("${@:-nvrtc llvm}")
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
failed=0
for compiler in ${compilers[*]}; do
  processes=$(nproc)
  [ "$compiler" = llvm ] || processes=$(( (processes + 1) / 2 ))
  export ATTUNE_TEST_COMPILER=$compiler GTEST_TOTAL_SHARDS=$processes
  [ "$compiler" = nvrtc ] || export ATTUNE_NVRTC=/nonexistent
  shards=()
  for ((i = 0; i < processes; ++i)); do
    GTEST_SHARD_INDEX=$i "$build/tests/gpu/gpu_test" > "$logs/$i" 2>&1 &
    shards+=($!)
  done
  for ((i = 0; i < processes; ++i)); do
    wait "${shards[i]}" || { failed=1; cat "$logs/$i"; }
  done
  cat "$logs"/* | awk -v compiler="$compiler" -v seconds="$SECONDS" '
    /^\[       OK/ { ok++ } /^\[  SKIPPED \] .*ms\)/ { skipped++ } /^\[  FAILED  \] .*ms\)/ { failed++ }
    /^given up/ { print } 
    END { printf "%s: %d passed, %d failed, %d skipped, %d s so far\n", compiler, ok, failed, skipped, seconds }'
done
exit $failed
