# `make help` lists the targets. Each sets up what it needs.
JOBS ?= $(shell nproc)
BUILD := build/release
LAUNCHER := $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
# Lets checkouts in different places share compiler results.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

.PHONY: help setup build demo test asan fuzz format check-format tidy clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## install what is missing (Debian packages)
	@scripts/setup.sh

build: setup  ## build everything into build/release
	@cmake --preset release -DATTUNE_WERROR=$(if $(CI),ON,OFF) $(LAUNCHER) > /dev/null
	@cmake --build $(BUILD) -j $(JOBS)

demo: build  ## tune, verify and run a model's attention on the device that is here
	@scripts/demo.sh $(BUILD)

test: build  ## every test that can run here
	@scripts/test.sh $(BUILD)

asan: setup  ## unit and property tests under AddressSanitizer and UBSan
	@cmake --preset asan $(LAUNCHER) > /dev/null
	@ninja -C build/asan -j $(JOBS) tests/unit/all tests/property/all
	@scripts/test.sh build/asan -L 'unit|property'

fuzz: setup  ## fuzz the spec parser for a bounded time
	@cmake --preset fuzz $(LAUNCHER) > /dev/null
	@cmake --build --preset fuzz -j $(JOBS)
	@scripts/test.sh build/fuzz -L fuzz

format:  ## format every source
	@scripts/format.sh

check-format:  ## fail if a source is not formatted
	@scripts/format.sh --check

tidy: build  ## clang-tidy's short list
	@scripts/tidy.sh $(BUILD)

clean:  ## remove build/
	@rm -rf build
