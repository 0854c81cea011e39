#!/usr/bin/env bash
# Writes the pages that are made from other files: the API reference from the headers, the gallery
# of the library's masks from the specs.
#   scripts/docs.sh ATTUNE           writes them into docs/
#   scripts/docs.sh --check ATTUNE   fails when docs/ has others
set -euo pipefail
docs=docs
if [ "$1" = --check ]; then
  docs=$(mktemp -d)
  trap 'rm -rf "$docs"' EXIT
  shift
fi
attune=$1
mkdir -p "$docs/gallery"
rm -f "$docs"/gallery/*.svg

awk -f scripts/api_reference.awk runtime/include/attune/attune.h runtime/include/attune/attune.hpp \
  > "$docs/api.md"

# One tile for all, so that the pictures depend on the mask and on nothing that is tuned.
plan="sm80 forward sm_80 q64 k64 s2 w4 c64 u1 frozen"
shape_of() {
  case $1 in
    tree_attention) echo heads=1,q_len=256,kv_len=1024 ;;
    chunked) echo heads=1,q_len=32768 ;;
    sliding_window) echo heads=1,q_len=16384 ;;
    *) echo heads=8,q_len=2048 ;;
  esac
}
{
  cat << 'HEAD'
# A gallery of masks

`make docs` draws these pictures with `attune explain SPEC --svg FILE`. Rows are queries, from 0 at
the top; columns are keys, from 0 at the left. A square is a tile of 64 queries by 64 keys. Grey
tiles are dead and are never loaded; green ones are full and run without mask code; in yellow to
orange ones the mask is evaluated for each element. What a mask reads from a tensor is drawn at
random here. The definitions of the named masks are in [language.md](language.md#named-masks).
HEAD
  for spec in specs/*.yaml; do
    name=$(basename "$spec" .yaml)
    facts=$(awk '/^[a-z]/ { inside = /^(scalars|tensors|mask):/ } inside' "$spec")
    # No mask of its own: everything, or a score under a causal mask.
    [ "$name" = causal ] || [[ $facts == *mask:* && $facts != *"mask: causal" ]] || continue
    "$attune" explain "$name" --target sm_80 --plan "$plan" --shape "$(shape_of "$name")" \
      --cache none --device cpu --svg "$docs/gallery/$name.svg" > /dev/null 2>&1
    printf '\n## %s\n\n%s\n\n```yaml\n%s\n```\n\n![%s](gallery/%s.svg)\n' \
      "$name" "$(sed -n '1s/^# *//p' "$spec" | fmt -w 100)" "$facts" "$name" "$name"
  done
} > "$docs/gallery.md"

if [ "$docs" != docs ]; then
  for page in api.md gallery.md gallery; do
    diff -r "docs/$page" "$docs/$page" || { echo "docs/$page is not current: run make docs" >&2; exit 1; }
  done
fi
