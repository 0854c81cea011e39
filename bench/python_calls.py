#!/usr/bin/env python3
"""What a call from Python costs beside the C call that it makes, in microseconds: eager, tiny operands on the CPU.

    ATTUNE_LIBRARY=build/release/lib/libattune.so PYTHONPATH=python/src python3 bench/python_calls.py

Each number is the least of many short rounds: what else the machine does is not counted.
"""

import ctypes
import timeit

import torch

import attune
import attune.torch as at
from attune import _structs
from attune._library import library

ROUNDS, CALLS = 300, 50
BATCH, HEADS, LENGTH, DIM = 1, 2, 8, 16


def microseconds(call):
    call()
    return min(timeit.repeat(call, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6


def c_call(q, k, v):
    """att_forward, its arguments made once."""
    spec = attune.Spec(dtype="fp32", head_dim=DIM, layout="bhsd")
    shape = _structs.Shape(BATCH, HEADS, HEADS, LENGTH, LENGTH)
    kernel = attune.default_runtime("cpu").kernel(spec, shape)
    o, lse = torch.empty_like(q), torch.empty(BATCH, HEADS, LENGTH)
    args = _structs.ForwardArgs(
        shape=shape, q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), o=o.data_ptr(), lse=lse.data_ptr()
    )
    workspace = torch.empty(kernel.workspace_bytes, dtype=torch.uint8)
    if kernel.workspace_bytes:
        args.workspace, args.workspace_bytes = workspace.data_ptr(), kernel.workspace_bytes
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
        ("att_forward", library())
    )
    handle, address = kernel._handle.value, ctypes.addressof(args)
    keep = q, k, v, o, lse, args, kernel, workspace
    return lambda: (function(handle, address, None), keep)[0]


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def main():
    q, k, v = (torch.randn(BATCH, HEADS, LENGTH, DIM) for _ in range(3))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    doc = torch.zeros(BATCH, LENGTH, dtype=torch.int32)
    slopes = torch.rand(HEADS, requires_grad=True)

    def document(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (doc[b, q_idx] == doc[b, kv_idx])

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (q_idx - kv_idx)

    def window(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < width)

    width = 5
    mods = causal, document, window
    masks = [at.create_block_mask(mod, None, None, LENGTH, LENGTH, device="cpu") for mod in mods]
    none = torch.no_grad()
    words = {"mask": "causal", "layout": "bhsd"}
    rows = {
        "att_forward": c_call(q, k, v),
        "flex_attention, no mods": lambda: at.flex_attention(q, k, v),
        "flex_attention, causal": lambda: at.flex_attention(q, k, v, None, masks[0]),
        "flex_attention, documents": lambda: at.flex_attention(q, k, v, None, masks[1]),
        "flex_attention, a captured number": lambda: at.flex_attention(q, k, v, None, masks[2]),
        "flex_attention, a new mask each call": lambda: at.flex_attention(
            q, k, v, None, at.create_block_mask(lambda b, h, i, j: i >= j, None, None, LENGTH, LENGTH, device="cpu")
        ),
        "flex_attention, causal, autograd": lambda: at.flex_attention(*leaves, None, masks[0]),
        "flex_attention, learned slopes": lambda: at.flex_attention(*leaves, alibi, masks[0]),
        "attention, words": lambda: attune.attention(q, k, v, **words),
        "attention, words and a tensor": lambda: attune.attention(
            q, k, v, mask="causal_top_left and document(doc)", tensors={"doc": doc}, layout="bhsd"
        ),
        "torch's scaled_dot_product_attention": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
        "the same, autograd": lambda: torch.nn.functional.scaled_dot_product_attention(*leaves),
    }
    base = None
    print(f"torch {torch.__version__}, attune {attune.version()}\n{'':40}{'us':>8}{'above C':>10}")
    for name, call in rows.items():
        if "autograd" in name or "learned" in name:
            time = microseconds(call)
        else:
            with none:
                time = microseconds(call)
        base = time if base is None else base
        print(f"{name:40}{time:8.2f}{time - base:10.2f}")


if __name__ == "__main__":
    main()
