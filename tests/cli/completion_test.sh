#!/usr/bin/env bash
# What bash completes. Usage: completion_test.sh ATTUNE COMPLETION
set -u
PATH=$(dirname "$1"):$PATH
. "$2"
failed=0
# expect PATTERN WORD...: a completion of the last word matches, the words before being there.
expect() {
  local pattern=$1
  shift
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _attune
  [[ " ${COMPREPLY[*]} " == *" $pattern "* ]] && return
  echo "'$*' gives '${COMPREPLY[*]}', not '$pattern'"
  failed=1
}
expect explain attune ""
expect gc attune cache ""
expect --limit-mb attune cache gc --l
expect --gpus attune sweep run --g
expect models/gpt2 attune run models/g
expect --shape attune run causal --s
expect sm_90a attune compile causal --target sm_9
expect backward attune tune --pass back
exit $failed
