#!/usr/bin/env python3
"""Compiles FlashAttention-4's kernels for the rows of bench/distributions.py into the cache that flash-attn-4 reads,
several at a time: they take seconds each, and a benchmark that meets them one by one takes minutes. Needs no GPU.

    export FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1 FLASH_ATTENTION_CUTE_DSL_CACHE_DIR=$PWD/.flash4
    python3 bench/flash4_ahead.py --jobs 8
    python3 bench/flash4_ahead.py --only "16 d128"

The cache is of one version of Python, of flash-attn-4 and of what it is built on. FlexAttention's FLASH backend makes
kernels of its own, which are not there.
"""

import argparse
import concurrent.futures
import multiprocessing
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import hostile_data  # noqa: E402
import hostile_rows  # noqa: E402

# Of a Hopper GPU, which flash-attn-4 would ask the driver for.
HOPPER = {"FLASH_ATTENTION_ARCH": "sm_90", "CUTE_DSL_ARCH": "sm_90a", "FLASH_ATTENTION_NUM_SMS": "132"}
CACHE = "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"


def chosen_rows(only):
    """One of each kernel: lengths and the other numbers are given to it."""
    names = (hostile_data.NORMAL,)
    rows = [*hostile_rows.dense_rows(names), *hostile_rows.custom_rows(names)]
    return [row for row in rows if row.flash is not None and row.problem.seq == hostile_rows.LENGTHS[0] and
            (not only or any(text in row.config for text in only))]


def compiled(config):
    """What to say of it. By name: a row's functions do not go from process to process."""
    os.environ.update(HOPPER)
    row = next(row for row in chosen_rows(None) if row.config == config)
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    import contestants
    p, dtype = row.problem, {"bf16": torch.bfloat16, "fp16": torch.float16}[row.dtype]
    began = time.monotonic()
    try:
        with FakeTensorMode():
            q, k, v = (torch.empty(p.batch, p.heads, p.seq, p.head_dim, dtype=dtype, device="cuda") for _ in range(3))
            contestants.fa4(p, contestants.Inputs(q, k, v, {}), **row.flash).launch()
    except Exception as error:  # the benchmark will say so, too
        return f"{type(error).__name__}: {error}"
    return f"{time.monotonic() - began:.1f} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--only", action="append", metavar="TEXT", help="configurations that contain this; repeatable")
    options = parser.parse_args()
    if os.environ.get(CACHE) != "1":
        sys.exit(f"flash4_ahead: {CACHE} is not 1, so nothing would be kept")
    configs = [row.config for row in chosen_rows(options.only)]
    with concurrent.futures.ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        for config, said in zip(configs, pool.map(compiled, configs)):
            print(f"{config}: {said}", flush=True)


if __name__ == "__main__":
    main()
