#!/usr/bin/env python3
"""Runs torch's own tests of FlexAttention, Attune under the compiled side and torch's eager code as the oracle.

    python3 bench/flex_attention_suite.py test_flex_attention.py results.json [--device cuda] [--control] [pattern ...]

The file is test/inductor/test_flex_attention.py of torch's source; nothing of it is kept. On a CPU it is changed as it
is read: devices ("cuda" to "cpu"), the length S (256: eager attention in float64 is slow; tests that count graphs need
more, by --length), and backward passes, which it leaves out there. torch.compile takes the backend aot_eager where a
test names none. --control leaves Attune out: torch's own operator, in eager code, under the compiled side, too. What
fails there says nothing of Attune. Results of an earlier run stay, and --rest runs what they have not, or have as out
of memory. Of each case they hold the outcome, the reason, seconds, how often Attune's operator was called, and how
often a call fell back to torch. Several processes may write into one file: --shard 0/10, --shard 1/10 and so on.
bench/flex_attention_table.py makes a table of it.
"""

import argparse
import fcntl
import gc
import importlib
import json
import os
import pathlib
import re
import sys
import time
import traceback
import types
import unittest

import torch
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.experimental import _paged_attention

CHANGES = (
    (r'"cuda(:0)?"', '"cpu"'),
    (r"\.cuda\(\)", ".cpu()"),
    (r"\.is_cuda\b", ".is_cpu"),
    (r"test_inference_only = True", "test_inference_only = False"),
    # Of learned biases, too, there is a backward pass on CPUs.
    (r"^(supports_learnable_bias = )unittest\.skipUnless", r"\1(lambda *_: lambda test: test)"),
)


OUT_OF_MEMORY, LOST = "OutOfMemoryError", 3  # an error's name; the exit status where the GPU takes no more calls

calls = {"attune": 0, "torch": 0}  # of the case that runs


def put_attune_under_compiled_code():
    compiled = importlib.import_module("attune.torch._compiled")
    options = torch_flex._apply_kernel_options

    def counted(name, function):
        def count(*args, **kwargs):
            calls[name] += 1
            torch.cuda.empty_cache()  # of the eager code before it
            return function(*args, **kwargs)

        return count

    compiled.call_operator = counted("attune", compiled.call_operator)
    compiled.warn_of_fallback = counted("torch", compiled.warn_of_fallback)

    def apply_kernel_options(*args, **kwargs):
        found = options(*args, **kwargs)
        return {**found, **compiled.mark_of_torch()} if torch.compiler.is_dynamo_compiling() else found

    torch_flex._apply_kernel_options = apply_kernel_options


def use_aot_eager():
    compile_function = torch.compile

    def with_backend(model=None, *, backend="aot_eager", **options):
        options.pop("mode", None)
        return compile_function(model, backend=backend, **options)

    torch.compile = with_backend


def use_newer_pages():
    """Newer torch wants positions for each sequence, and raises an IndexError where they are those of all."""
    pages = _paged_attention.PagedAttention
    assign = pages.assign

    def assign_rows(self, batch_idx, input_pos, *rest):
        return assign(self, batch_idx, input_pos.expand(len(batch_idx), -1), *rest)

    pages.assign = assign_rows


def use_the_cpu():
    """What the tests leave to a default device."""
    create = torch_flex.create_block_mask

    def create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN, device="cpu", *rest, **options):
        return create(mask_mod, B, H, Q_LEN, KV_LEN, device, *rest, **options)

    torch_flex.create_block_mask = create_block_mask
    _paged_attention.PagedAttention.__init__.__defaults__ = ("cpu",)


def load(path, changes):
    text = path.read_text()
    for pattern, replacement in changes:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    module = types.ModuleType("torchs_tests")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def in_turns(tests):
    """A first case of each method, then a second one: a run that is cut short has seen all of them."""
    met, turns = {}, []
    for test in tests:
        # Cases are called test_method_parameter0_parameter1; what they share runs the same function.
        function = getattr(type(test), test._testMethodName)
        method = getattr(function, "__wrapped__", function).__code__, re.sub(r"(_float\d+|_\D+\d+)+$", "", test.id())
        met[method] = met.get(method, 0) + 1
        turns.append((met[method], len(turns), test))
    return [test for *_, test in sorted(turns, key=lambda each: each[:2])]


def name_of(test):
    return test.id().removeprefix("torchs_tests.")


def results_of(file):
    text = file.read()
    return json.loads(text) if text else {}


def earlier_results(path):
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        file.seek(0)
        return results_of(file)


def add_result(path, name, found):
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        results = {**results_of(file), name: found}
        file.truncate(0)
        file.write(json.dumps(results, indent=1))


class Result(unittest.TestResult):
    """Each test's outcome, with the last line of what went wrong."""

    def __init__(self, path, is_verbose):
        super().__init__()
        self.is_verbose = is_verbose
        self.path = path

    def startTest(self, test):
        super().startTest(test)
        gc.collect()
        torch.cuda.empty_cache()  # several of these programs may share a GPU
        calls.update(attune=0, torch=0)
        self.began = time.monotonic()

    def _note(self, test, outcome, reason=""):
        taken = round(time.monotonic() - self.began, 1)
        add_result(self.path, name_of(test), [outcome, str(reason)[:400], taken, calls["attune"], calls["torch"]])
        print(f"{outcome:8} {taken:6} {name_of(test)} {str(reason)[:150]!r}", flush=True)

    def addSuccess(self, test):
        self._note(test, "passed")

    def addSkip(self, test, reason):
        self._note(test, "skipped", reason)

    def addExpectedFailure(self, test, error):
        self._note(test, "passed", "fails, as it should")

    def addUnexpectedSuccess(self, test):
        self._note(test, "failed", "passes, and should not")

    def addFailure(self, test, error):
        if self.is_verbose:
            traceback.print_exception(*error)
        place = traceback.extract_tb(error[2])[-1]
        said = f"{error[0].__name__}: {error[1]}".split("To execute this test")[0].strip()
        self._note(test, "failed", f"{said} ({pathlib.Path(place.filename).name}:{place.lineno})")
        if "CUDA error" in said:
            os._exit(LOST)  # other cases would fail for this one; --rest runs them

    addError = addFailure


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="every N-th case, from the I-th on")
    parser.add_argument("--length", type=int, default=256, help="S on a CPU")
    parser.add_argument("--rest", action="store_true", help="only cases that the results have not")
    parser.add_argument("-v", action="store_true", help="with tracebacks")
    arguments = parser.parse_intermixed_args()
    is_on_cpu = arguments.device == "cpu"
    if not arguments.control:
        put_attune_under_compiled_code()
    use_aot_eager()
    use_newer_pages()
    if is_on_cpu:
        torch_flex._validate_device = lambda *_: None  # torch refuses gradients on CPUs
        use_the_cpu()
    changes = (*CHANGES, (r"^S = 2048$", f"S = {arguments.length}")) if is_on_cpu else ()
    module = load(arguments.file, changes)
    tests = []
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{each}*" for each in arguments.patterns] or None
    for each in vars(module).values():
        if isinstance(each, type) and issubclass(each, unittest.TestCase) and each.__module__ == module.__name__:
            tests += loader.loadTestsFromTestCase(each)
    result = Result(arguments.results, arguments.v)
    index, count = map(int, arguments.shard.split("/"))
    chosen = in_turns(tests)[index::count]
    if arguments.rest:
        found = earlier_results(arguments.results)
        done = {name for name, (_, reason, *_) in found.items() if OUT_OF_MEMORY not in reason}
        chosen = [test for test in chosen if name_of(test) not in done]
    unittest.TestSuite(chosen).run(result)
    outcomes = [outcome for outcome, *_ in earlier_results(arguments.results).values()]
    print({outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))})


if __name__ == "__main__":
    main()
