#!/usr/bin/env python3
"""Runs FlashMLA's own test of dense decoding, Attune under the name of its package.

    python3 bench/flash_mla_suite.py FLASHMLA/tests results.json [--shard 0/4] [--seconds 90] [--dtype bf16]
    python3 bench/flash_mla_suite.py FLASHMLA/tests results.json --table

The test is tests/test_flash_mla_dense_decoding.py of a checkout of FlashMLA; nothing of it is kept, and its package
need not be there. Its problems, its reference in PyTorch and its tolerances are taken as they are. What it calls is
this file's flash_mla_with_kvcache(), a launch of the C interface on the test's own tensors: pages of 64, lengths and
tables on the device. Left out is what names a kernel of FlashMLA: the time of the cases that measure one; their
results are compared all the same. Two things are translated: the LSE of a query without keys, which is -inf here and
+inf there, and the order of its dims.

Each shard takes every N-th case and writes RESULTS with its number behind it, after every case: cases that a file has
are not run again. Cases with few keys come first, for where the time ends. --table puts all files together.
"""

import argparse
import collections
import dataclasses
import glob
import importlib
import json
import os
import sys
import time
import types

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = ("layout: paged\nv_in_k: true\nhead_dim: {{qk: {qk}, v: {v}}}\nsoftmax_scale: {scale!r}\n"
         "dtype: {dtype}\nmask: {mask}\n")


class Package(types.ModuleType):
    """What the test asks of the module `flash_mla`."""

    def __init__(self, runtime, torch):
        super().__init__("flash_mla")
        self.runtime, self.torch, self.plans = runtime, torch, collections.Counter()

    @staticmethod
    def get_mla_metadata():
        return None, None  # no planner: each launch deals its work out on the device

    def flash_mla_with_kvcache(self, q, cache, table, lengths, dim_v, _, __, causal):
        torch = self.torch
        batch, queries, heads, dim = q.shape
        pages, page_size, kv_heads, _ = cache.shape
        dtype = {torch.bfloat16: "bf16", torch.float16: "fp16"}[q.dtype]
        text = "attune: 1\nname: suite\n" + PAGES.format(qk=dim, v=dim_v, scale=dim**-0.5, dtype=dtype,
                                                         mask="causal" if causal else "true")
        shape = attune_c.Shape(batch, heads, kv_heads, batch * queries, table.shape[1] * page_size)
        kernel = self.runtime.kernel_from_yaml(text, shape)
        self.plans[kernel.plan] += 1
        o = torch.full((batch, queries, heads, dim_v), float("nan"), dtype=q.dtype)
        lse = torch.full((heads, batch * queries), float("nan"), dtype=torch.float32)
        workspace = torch.empty(max(kernel.workspace_bytes, 16), dtype=torch.uint8)
        cu_q = torch.arange(0, batch * queries + 1, queries, dtype=torch.int32)
        of = {"cu_q": cu_q, "used_kv": lengths, "page_table": table}
        launch = kernel.bind(q.data_ptr(), cache.data_ptr(), None, o.data_ptr(), lse.data_ptr(), workspace.data_ptr(),
                             {}, pages_per_sequence=table.shape[1], page_size=page_size, pages=pages,
                             **{name: tensor.data_ptr() for name, tensor in of.items()})
        launch(torch.cuda.current_stream().cuda_stream)
        lse = lse.view(heads, batch, queries).transpose(0, 1)
        return o, lse.masked_fill(lse == float("-inf"), float("inf"))


def cases_of(suite, dtype):
    """The test's own, in the order in which they run: few keys first."""
    found, run = [], suite.test_flash_mla
    suite.test_flash_mla = found.append
    suite.main(dtype)
    suite.test_flash_mla = run
    return sorted(found, key=lambda t: t.b * t.s_k * t.h_kv)


def run(args, torch):
    directory = os.path.abspath(args.tests)
    sys.path.insert(0, directory)
    library = attune_c.Library(args.library or attune_c.find_library(ROOT))
    sys.modules["flash_mla"] = package = Package(library.runtime("cuda:0", args.cache), torch)
    suite = importlib.import_module("test_flash_mla_dense_decoding")
    cases = cases_of(suite, {"bf16": torch.bfloat16, "fp16": torch.float16}[args.dtype])
    shard, shards = map(int, args.shard.split("/"))
    path = f"{args.results}.{args.dtype}.{shard}"
    results = {}
    if os.path.exists(path):
        with open(path) as file:
            known = json.load(file)
        results = known["cases"]
        package.plans.update(known["plans"])
    end = time.monotonic() + args.seconds
    for case in cases[shard::shards]:
        if repr(case) in results or time.monotonic() > end:
            continue
        try:
            # Asserts that O and the LSE are close to its reference's.
            suite.test_flash_mla(dataclasses.replace(case, test_performance=False))
            results[repr(case)] = "passed"
        except torch.OutOfMemoryError:
            print("out of memory:", case)
        except (AssertionError, attune_c.AttuneError) as error:
            results[repr(case)] = f"{type(error).__name__}: {error}"[:300]
            print("FAILED", case, results[repr(case)])
        if case.b * case.s_k * case.h_kv > 300_000:
            torch.cuda.empty_cache()
        with open(path, "w") as out:
            json.dump({"of": len(cases), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                       "dtype": args.dtype, "plans": package.plans, "cases": results}, out)


def table(args):
    for dtype in ("bf16", "fp16"):
        outcomes, plans, of = {}, collections.Counter(), 0
        for path in glob.glob(f"{args.results}.{dtype}.*"):
            with open(path) as file:
                data = json.load(file)
            outcomes |= data["cases"]
            plans.update(data["plans"])
            of = data["of"]
        if not outcomes:
            continue
        passed = sum(each == "passed" for each in outcomes.values())
        print(f"{dtype}: {passed} of {len(outcomes)} cases that ran pass; the test has {of}")
        for plan, count in plans.most_common():
            print(f"  {count} by {plan}")
        for case, outcome in outcomes.items():
            if outcome != "passed":
                print(f"  {case}: {outcome}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", help="the folder tests of a checkout of FlashMLA")
    parser.add_argument("results", help="file that results are written to, a number behind its name")
    parser.add_argument("--dtype", choices=["bf16", "fp16"], default="bf16")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--seconds", type=float, default=1e9, help="no case begins after so many")
    parser.add_argument("--library", help="libattune.so; default: the newest build's")
    parser.add_argument("--cache", help="Attune's cache file")
    parser.add_argument("--table", action="store_true", help="print what the files of results say")
    args = parser.parse_args()
    if args.table:
        table(args)
        return
    import torch
    run(args, torch)


if __name__ == "__main__":
    main()
