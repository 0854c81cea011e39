#!/usr/bin/env bash
# The main job on whatever device is here: tunes a model's attention, verifies it, and lets a host
# application in another process find and launch the tuned kernel.
# Usage: scripts/demo.sh BUILD_DIRECTORY, which holds what `make product` builds
set -euo pipefail
build=$1
attune=$build/attune
demo=$build/demo
mkdir -p "$demo"

# A GPU takes the model's full length; cores take a short one, so that the demo ends within two
# minutes.
if "$attune" devices --json | grep -q '"name": "cuda:0"'; then
  device=cuda:0 batch=2 length=8192
else
  device=cpu batch=1 length=512
fi
spec=models/llama3_8b
shape=batch=$batch,heads=32,kv_heads=8,q_len=$length,kv_len=$length
export ATTUNE_CACHE=$demo/cache.db

step() { printf '\n== %s\n' "$1"; }

step "attune devices"
"$attune" devices || true

step "attune explain $spec"
"$attune" explain $spec --shape "$shape" --device $device

step "attune tune $spec --shape $shape"
"$attune" tune $spec --shape "$shape" --device $device --max-candidates 12

step "attune run: against the fp64 oracle"
"$attune" run $spec --shape "$shape" --device $device

step "a host application, in another process, from the same cache"
prefix=$demo/prefix
cmake --install "$build" --prefix "$prefix" > "$demo/install.log"
cmake -S examples/host_app -B "$demo/host_app" -DCMAKE_PREFIX_PATH="$PWD/$prefix" -DCMAKE_BUILD_TYPE=Release > "$demo/host_app.log"
cmake --build "$demo/host_app" >> "$demo/host_app.log"
"$demo/host_app/host_app" $spec $batch $length | tee "$demo/host_app.out"
grep -q '(measured)' "$demo/host_app.out" || { echo "demo: the host application did not find the tuned kernel" >&2; exit 1; }
