# `make help` lists the targets. Each sets up what it needs.
JOBS ?= $(shell nproc)
BUILD := build/release
SANITIZE := build/sanitize
TSAN := build/tsan
# Much arithmetic, which a sanitizer makes ten times as slow and sees nothing in.
ARITHMETIC := LocalExecutor[.]FindsAWrongGradient|ShapeBucket[.]TheChoice
# ccache does not keep what was compiled with a precompiled header, unless told to.
LAUNCHER := $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON)
# Lets checkouts in different places share compiler results.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

.PHONY: help setup configure build product demo docs test torch sanitize asan tsan fuzz format check-format tidy clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## install what is missing (Debian packages)
	@scripts/setup.sh

configure: setup
	@cmake --preset release $(LAUNCHER) > /dev/null

build: configure  ## build everything into build/release
	@cmake --build $(BUILD) -j $(JOBS)

product: configure  ## build what is installed: the command, the library and the LLVM module
	@cmake --build $(BUILD) -j $(JOBS) --target attune_product

demo: product  ## tune, verify and run a model's attention on the device that is here
	@scripts/demo.sh $(BUILD)

docs: product  ## write the pages that are made from headers and specs: the API reference, the gallery
	@scripts/docs.sh $(BUILD)/attune

test: build  ## every test that can run here
	@scripts/test.sh $(BUILD)

torch: product  ## the Python package's tests that need PyTorch, which comes from PyPI
	@scripts/torch_tests.sh $(BUILD)

sanitize: setup  ## build the libraries and their tests under AddressSanitizer and UBSan
	@cmake --preset sanitize $(LAUNCHER) > /dev/null
	@cmake --build $(SANITIZE) -j $(JOBS)

# The CPU family's tests load the release build's LLVM module: what is under test is what calls it.
# Left to `make test`: whole lists of kernels and what a compiler makes of emitted functions, which are
# not instrumented; killed processes; searches of every plan, where a few run the same code.
asan: build sanitize  ## unit, property, fault and CPU tests under the sanitizers
	@ATTUNE_LLVM_MODULE=$(CURDIR)/$(BUILD)/lib/libattune_llvm.so UBSAN_OPTIONS=print_stacktrace=1 \
	  scripts/test.sh $(SANITIZE) -LE fuzz -E 'Cpu(Forward|Backward|Packed)[.]|CpuPaged[.]Every|CpuBackwardOf|CpuPackedBackward[.](Every|Planted)|CpuMla[.](IsRight|Pa)|CpuFp8Cache[.]|HostileGradients|HostileLimits|CpuBatchInvariant[.]|CpuKeyPieces[.]|CpuAppend[.]Every|Planted[.]|Alarm[.]|GradientOracleOnCores|Kill[.]|Emitted[.]Agrees|EmittedGradients|PlanSpaceOf|$(ARITHMETIC)'

# What runs on several threads: the pool, the dispatcher, the background thread, the cache's snapshot,
# the C API and the tuner. Code of the LLVM module and of kernels is not instrumented: its calls of
# the C library, of locks and of the product's own functions are what is seen.
tsan: product  ## the tests of what runs on several threads, under ThreadSanitizer
	@cmake --preset tsan $(LAUNCHER) > /dev/null
	@cmake --build --preset tsan -j $(JOBS)
	@ATTUNE_LLVM_MODULE=$(CURDIR)/$(BUILD)/lib/libattune_llvm.so TSAN_OPTIONS=halt_on_error=1 \
	  scripts/test.sh $(TSAN) -E 'NOT_BUILT|$(ARITHMETIC)'

fuzz: sanitize  ## fuzz the spec reader and the expression compiler: a fixed number of runs
	@scripts/test.sh $(SANITIZE) -L fuzz

format:  ## format every source
	@scripts/format.sh

check-format:  ## fail if a source is not formatted
	@scripts/format.sh --check

tidy: setup  ## clang-tidy's short list
	@scripts/tidy.sh

clean:  ## remove build/
	@rm -rf build
