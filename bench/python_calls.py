#!/usr/bin/env python3
"""What a call from Python costs beside the C call that it makes, in microseconds: eager, tiny operands. Beside it, on a
GPU, what FlexAttention compiled by torch, scaled_dot_product_attention and flash-attn, where it is there, cost.

    ATTUNE_LIBRARY=build/release/lib/libattune.so PYTHONPATH=python/src python3 bench/python_calls.py [--device cuda]

Each number is the least of many short rounds: what else the machine does is not counted. On a GPU it is the host's
time; what a round has enqueued is awaited outside of it. It takes less than a minute.
"""

import argparse
import ctypes
import importlib
import platform
import timeit
import types

import torch
from torch.nn.attention import flex_attention as torch_flex

import attune
import attune.torch as at
from attune import _structs
from attune._library import library

# Batch, heads, length, head_dim, dtype.
SIZES = {"cpu": (1, 2, 8, 16, torch.float32), "cuda": (1, 2, 128, 64, torch.bfloat16)}
WAITS = {"cpu": lambda: None, "cuda": torch.cuda.synchronize}


def microseconds(call, wait, rounds, calls=20):
    for _ in range(3):  # the third one is remembered as it was made
        call()
    best = float("inf")
    for _ in range(rounds):
        wait()
        best = min(best, timeit.timeit(call, number=calls))
    wait()
    return best / calls * 1e6


def c_call(spec, q, k, v):
    """att_forward, its arguments made once."""
    batch, heads, length, _ = q.shape
    shape = _structs.Shape(batch, heads, heads, length, length)
    kernel = attune.default_runtime("cuda:0" if q.is_cuda else "cpu").kernel(spec, shape)
    o, lse = torch.empty_like(q), torch.empty(batch, heads, length, device=q.device)
    args = _structs.ForwardArgs(
        shape=shape, q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), o=o.data_ptr(), lse=lse.data_ptr()
    )
    workspace = torch.empty(kernel.workspace_bytes, dtype=torch.uint8, device=q.device)
    if kernel.workspace_bytes:
        args.workspace, args.workspace_bytes = workspace.data_ptr(), kernel.workspace_bytes
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
        ("att_forward", library())
    )
    handle, address = kernel.handle, ctypes.addressof(args)
    stream = torch.cuda.current_stream().cuda_stream if q.is_cuda else None
    keep = q, k, v, o, lse, args, kernel, workspace
    return lambda: (function(handle, address, stream), keep)[0]


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


class Layer(torch.nn.Module):
    window = 5

    def mask_mod(self, b, h, q_idx, kv_idx):
        return q_idx - kv_idx < self.window


def of_objects(q, k, v):
    """Rows of masks that see objects, of functions that are kept or made anew for each call."""
    layer, options = Layer(), types.SimpleNamespace(window=5)
    tables = {"doc": torch.zeros(q.shape[0], q.shape[2], dtype=torch.int32, device=q.device)}
    masks = {
        "a method of a layer": lambda: layer.mask_mod,
        "a layer, made anew": lambda: lambda b, h, i, j: i - j < layer.window,
        "options, made anew": lambda: lambda b, h, i, j: i - j < options.window,
        "a dict of tensors, made anew": lambda: lambda b, h, i, j: tables["doc"][b, i] == tables["doc"][b, j],
    }
    return {
        f"flex_attention, {name}": lambda make=make: at.flex_attention(q, k, v, mask_mod=make())
        for name, make in masks.items()
    }


def flash_attention():
    """flash-attn's function of [batch, length, heads, head_dim], and its name; None: there is none."""
    for name in ("flash_attn_interface", "flash_attn"):
        try:
            return importlib.import_module(name).flash_attn_func, name
        except (ImportError, AttributeError):
            continue
    return None


def of_others(q, k, v, leaves):
    """Rows of what else there is."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    rows = {
        "torch's scaled_dot_product_attention": lambda: sdpa(q, k, v, is_causal=True),
        "the same, autograd": lambda: sdpa(*leaves, is_causal=True),
        "the same, and its backward": lambda: sdpa(*leaves, is_causal=True),
    }
    if not q.is_cuda:
        return rows
    length = q.shape[2]
    compiled = torch.compile(torch_flex.flex_attention, dynamic=False)
    mask = torch_flex.create_block_mask(causal, None, None, length, length, device=q.device)
    rows |= {
        "torch's compiled flex_attention, causal": lambda: compiled(q, k, v, block_mask=mask),
        "its autograd": lambda: compiled(*leaves, block_mask=mask),
        "its autograd, and its backward": lambda: compiled(*leaves, block_mask=mask),
    }
    found = flash_attention()
    if found is not None:
        function, name = found
        turned = [x.detach().transpose(1, 2).contiguous() for x in (q, k, v)]
        learning = [x.clone().requires_grad_() for x in turned]
        rows |= {
            f"{name}, causal": lambda: function(*turned, causal=True),
            f"{name}, autograd": lambda: function(*learning, causal=True),
        }
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=SIZES)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    batch, heads, length, dim, dtype = SIZES[options.device]
    device = torch.device(options.device)
    q, k, v = (torch.randn(batch, heads, length, dim, device=device).to(dtype) for _ in range(3))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    # As a projection gives them: torch makes nothing for each leaf of a call then.
    computed = [x.view_as(x) for x in leaves]
    d_o = torch.randn_like(q)
    doc = torch.zeros(batch, length, dtype=torch.int32, device=device)
    slopes = torch.rand(heads, device=device, requires_grad=True)

    def document(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (doc[b, q_idx] == doc[b, kv_idx])

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (q_idx - kv_idx)

    def window(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < width)

    width = 5
    mods = causal, document, window
    masks = [at.create_block_mask(mod, None, None, length, length, device=device) for mod in mods]
    words = {"mask": "causal", "layout": "bhsd"}
    of_type = {"dtype": {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype], "head_dim": dim, "layout": "bhsd"}
    spec = attune.Spec("causal", **of_type)
    of_window = attune.Spec("sliding_window(width)", scalars={"width": int}, **of_type)
    scalars = {"width": 5}
    rows = {
        "att_forward": c_call(spec, q, k, v),
        "attention, a spec": lambda: attune.attention(q, k, v, spec=spec),
        "attention, a spec and a scalar": lambda: attune.attention(q, k, v, spec=of_window, scalars=scalars),
        "attention, a spec, autograd": lambda: attune.attention(*leaves, spec=spec),
        "attention, a spec, autograd, of computed": lambda: attune.attention(*computed, spec=spec),
        "attention, a spec, and its backward": lambda: attune.attention(*leaves, spec=spec),
        "attention, words": lambda: attune.attention(q, k, v, **words),
        "attention, words and a tensor": lambda: attune.attention(
            q, k, v, mask="causal_top_left and document(doc)", tensors={"doc": doc}, layout="bhsd"
        ),
        "flex_attention, no mods": lambda: at.flex_attention(q, k, v),
        "flex_attention, causal": lambda: at.flex_attention(q, k, v, None, masks[0]),
        "flex_attention, documents": lambda: at.flex_attention(q, k, v, None, masks[1]),
        "flex_attention, a captured number": lambda: at.flex_attention(q, k, v, None, masks[2]),
        "flex_attention, a new mask each call": lambda: at.flex_attention(
            q, k, v, None, at.create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device=device)
        ),
        "flex_attention, causal, autograd": lambda: at.flex_attention(*leaves, None, masks[0]),
        "flex_attention, causal, and its backward": lambda: at.flex_attention(*leaves, None, masks[0]),
        "flex_attention, learned slopes, autograd": lambda: at.flex_attention(*leaves, alibi, masks[0]),
        "the same, autograd, of computed": lambda: at.flex_attention(*computed, alibi, masks[0]),
        **of_objects(q, k, v),
        **of_others(q, k, v, leaves),
    }
    of_gpu = f", {torch.cuda.get_device_name()}" if device.type == "cuda" else ""
    print(f"torch {torch.__version__}, attune {attune.version()}, {platform.processor() or platform.machine()}{of_gpu}")
    print(f"{batch} x {heads} x {length} x {dim}, {dtype}\n{'':44}{'us':>8}{'above C':>10}")
    base = None
    for name, call in rows.items():
        learns = "autograd" in name or "backward" in name
        with torch.set_grad_enabled(learns):
            if name.endswith("backward"):
                forward = call

                def call(forward=forward):
                    return torch.autograd.grad(forward(), leaves, d_o)

            try:
                # What all else is held against is taken once more: the first row's rounds find a machine that was idle.
                times = [microseconds(call, WAITS[device.type], options.rounds) for _ in range(1 if base else 3)]
            except (RuntimeError, NotImplementedError, TypeError) as problem:
                print(f"{name:44}  {str(problem).splitlines()[0][:70]}")
                continue
        time = min(times)
        base = time if base is None else base
        print(f"{name:44}{time:8.2f}{time - base:10.2f}", flush=True)


if __name__ == "__main__":
    main()
