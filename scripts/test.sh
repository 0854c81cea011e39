#!/usr/bin/env bash
# Runs the tests of one build and says how many were skipped and why:
#   scripts/test.sh BUILD_DIRECTORY [ctest options]
set -euo pipefail
build=$1
shift
log=$build/test.log
# Without a GPU each of its tests would start a process to say so: one says it for all.
gpu=$build/tests/gpu/gpu_test
if [ -x "$gpu" ] && grep -q '^cuda *missing' <("$build/attune" devices); then
  "$gpu" > "$log" 2>&1 || { tail -20 "$log"; exit 1; }
  echo "skipped: $(grep -c ': Skipped$' "$log") of a GPU, which is not here"
  set -- "$@" -LE gpu
fi
set +e
ctest --test-dir "$build" -j "$(nproc)" --output-on-failure "$@" > "$log" 2>&1
status=$?
set -e
if [ $status -ne 0 ]; then
  # A failed test's own output, without the hundreds of lines of those that passed.
  grep -vE '^ +Start +[0-9]+:|\.\.\. +Passed|\*\*\*Skipped' "$log" || true
fi
skipped=$(grep -cE '\*\*\*Skipped' "$log" || true)
if [ "$skipped" -gt 0 ]; then
  echo "skipped: $skipped, by reason:"
  # GoogleTest writes "file:line: Skipped" and the reason on the next line.
  grep -a -A1 -E ': Skipped$' "$build/Testing/Temporary/LastTest.log" | grep -avE ': Skipped$|^--$' |
    sort | uniq -c | sort -rn | head -8 || true
fi
grep -aE '^[0-9]+% tests passed|^Total Test time' "$log" || tail -3 "$log"
exit $status
