#!/usr/bin/env bash
# Runs a page of the documentation: blocks that begin with a comment that names a file become that
# file, `sh` blocks are executed in order. The commands find the build, installed, on their path.
# Usage: scripts/run_page.sh BUILD_DIRECTORY PAGE DIRECTORY, which is emptied first
set -euo pipefail
page=$(realpath "$2")
rm -rf "$3"
mkdir -p "$3"
export ATTUNE_PREFIX=$(realpath "$3")/prefix PATH=$(realpath "$3")/prefix/bin:$PATH
cmake --install "$1" --prefix "$ATTUNE_PREFIX" > /dev/null
cd "$3"
awk '
  /^```[a-z]/ && !inside { inside = 1; language = substr($0, 4); file = ""; first = 1; next }
  /^```$/ && inside {
    inside = 0
    if (file != "") close(file)
    next
  }
  inside && language == "sh" { print > "commands.sh"; next }
  inside && first {
    first = 0
    if (match($0, /^(#|\/\/) [A-Za-z0-9_]+\.[a-z]+/)) {
      file = substr($0, RSTART, RLENGTH)
      sub(/^[^ ]* /, "", file)
    }
  }
  inside && file != "" { print > file }
' "$page"
bash -euxo pipefail commands.sh
