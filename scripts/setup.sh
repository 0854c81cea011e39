#!/usr/bin/env bash
# Installs what Attune is built with, by Debian package name; says nothing when all of it is there.
#   scripts/setup.sh         what `make demo` and `make test` need
#   scripts/setup.sh --dev   and the formatter, the linter, the fuzzer's runtime, the browser and
#                              the Python packages that CI uses
# Needs root or sudo only when something is missing. A GPU's driver and NVRTC are yours to install:
# `attune devices` says what was found.
set -euo pipefail

packages=(
  g++ cmake ninja-build make pkgconf
  libyaml-cpp-dev libsqlitecpp-dev libsqlite3-dev libfmt-dev libcli11-dev
  nlohmann-json3-dev libxxhash-dev libboost-context-dev
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev
  llvm-19-dev libclang-19-dev lld-19 clang-19 zlib1g-dev libzstd-dev
)
case "${1:-}" in
  --dev) packages+=(clang-format-19 clang-tidy-19 libclang-rt-19-dev chromium python3
                   python3-numpy python3-pytest python3-venv) ;;
  "") ;;
  *) echo "usage: scripts/setup.sh [--dev]" >&2; exit 2 ;;
esac

if ! command -v dpkg-query > /dev/null; then
  echo "setup: not a Debian system; install the equivalents of: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status} ' "$package" 2> /dev/null || true)
  [[ $state == *installed* && $state != *not-installed* ]] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo > /dev/null; then
    echo "setup: run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "setup: installing ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${missing[@]}" > "$log" 2>&1
}
# The package lists may be absent or old: fetch them when the first try fails.
if ! install; then
  "${as_root[@]}" apt-get update -q > "$log" 2>&1 || { tail -5 "$log" >&2; exit 1; }
  install || {
    tail -20 "$log" >&2
    echo "setup: apt-get could not install ${missing[*]}" >&2
    exit 1
  }
fi
