#!/usr/bin/env bash
# Those tests of the Python package that need PyTorch and say most in little time, on the CPU family:
# translation of mods, gradients, torch.compile without graph breaks, checkpointing with dropout, a
# serving loop over every kind of cache, calls that are made again, random programs; diffusers,
# torch's own attention on Attune, JAX's arrays, and the tutorial notebook from its first cell to its last.
# transformers' tests and those of attune.torch.enable say the same of more code, and take as long as
# these last ones together.
#   scripts/torch_tests.sh BUILD    with BUILD/lib/libattune.so; keeps its environment in BUILD/torch
# PyTorch comes from PyPI, in the version of python/pyproject.toml's dev extra. Where it cannot be had
# the tests are skipped, and a line says so.
set -euo pipefail

build=$(realpath "$1")
root=$(realpath "$(dirname "$0")/..")
environment=$build/torch

packages=(torch numpy jax pytest nbclient nbformat ipykernel diffusers)
if ! "$environment/bin/python" -c \
  "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))" \
  "${packages[@]}" 2> /dev/null; then
  mapfile -t pins < <(IFS='|' && grep -oE "\"(${packages[*]})==[^\"]+\"" "$root/python/pyproject.toml" | tr -d '"')
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if ! { python3 -m venv "$environment" && "$environment/bin/pip" install -q --no-compile "${pins[@]}"; } > "$log" 2>&1; then
    tail -3 "$log" >&2
    echo "Skipped: ${pins[*]} could not be installed"
    exit 0
  fi
fi

cd "$root/python/tests"
export ATTUNE_LIBRARY=$build/lib/libattune.so PYTHONPATH=$root/python/src
# Bytecode of the quarter of the installed files that is imported; it is kept out of the sources.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX=$environment/bytecode
# References are so small that torch's threads mostly wait for each other, and wait at work: the
# tests of calls that are made again take 16 s of a processor's time so, and took 45.
export OMP_NUM_THREADS=1
"$environment/bin/python" . test_operators.py test_flex_attention.py test_compile.py test_gradients.py \
  test_recall.py test_recalled_views.py test_transforms.py test_append.py test_serving.py \
  test_serving_compile.py test_guard.py test_calls_again.py \
  test_words_again.py test_cache_calls_again.py test_sizes_again.py test_packed_transforms.py test_native.py \
  test_notebook.py test_diffusers.py test_sdpa.py test_device_seed.py test_dropout.py test_packed_gradients.py \
  test_packed_again.py test_packed_compile.py test_determinism.py test_backward_again.py test_changing_numbers.py test_newcomers.py \
  test_programs.py test_programs_changed.py test_recall_sound.py test_fingerprint.py test_bound_lifetimes.py test_negative.py \
  test_silent_gradients.py test_published_mods.py test_tensors_of_the_cpu.py test_recall_ways.py \
  test_recall_kinds.py test_recall_unnamed.py test_recall_hidden.py test_jax.py test_flops.py test_changed_blocks.py test_captured_copies.py test_max_scores.py test_tables_of_16_bits.py
