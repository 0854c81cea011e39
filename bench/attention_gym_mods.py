#!/usr/bin/env python3
"""attention-gym's mask_mods and score_mods on Attune, forward and backward, against dense attention in float64.

    ATTUNE_LIBRARY=build/release/lib/libattune.so PYTHONPATH=python/src \
        python3 bench/attention_gym_mods.py [--device cuda] [--jobs 8] attention-gym [name ...]

attention-gym is a checkout of github.com/meta-pytorch/attention-gym. Only its folders of masks and mods are imported.
"""

import argparse
import concurrent.futures
import functools
import importlib
import math
import multiprocessing
import sys
import types

import torch
from torch.nn.attention import flex_attention as torch_flex

from attune.torch import create_block_mask, flex_attention

B, H, DIM = 2, 4, 32
TOLERANCE = 3e-4  # of float32 beside float64, gradients too


def folder(path):
    """The package without what it imports by itself, which needs a GPU's compilers."""
    package = types.ModuleType("attn_gym")
    package.__path__ = [f"{path}/attn_gym"]
    sys.modules["attn_gym"] = package
    return importlib.import_module("attn_gym.masks"), importlib.import_module("attn_gym.mods")


def cases(masks, mods, device):
    """By name: q_len, kv_len, mask_mod, score_mod, and captured tensors that learn. Those that are made here are of
    torch's default device."""
    offsets = torch.tensor([0, 10, 35, 64])
    graph = torch.rand(B, 16, 16) < 0.2
    graph = graph | graph.transpose(1, 2)
    vsa = importlib.import_module("attn_gym.masks.vsa")
    chosen = torch.stack([torch.randperm(8)[:3] for _ in range(B * H * 8)]).view(B, H, 8, 3)
    real = torch.tensor([8, 8, 5, 8, 8, 8, 8, 3])

    def mask(mask_mod, q_len=64, kv_len=64):
        return q_len, kv_len, mask_mod, None, []

    def score(score_mod, *learned, length=64):
        return length, length, None, score_mod, list(learned)

    yield "batchify", mask(masks.batchify_mask_mod(masks.causal_mask, 16))
    yield "block diffusion", mask(masks.generate_block_diffusion_mask(32, 8))
    yield "causal", mask(masks.causal_mask)
    yield "dilated sliding window", mask(masks.generate_dilated_sliding_window(12, 3))
    yield "documents", mask(masks.generate_doc_mask_mod(masks.causal_mask, offsets))
    yield "packed causal documents", mask(masks.generate_packed_causal_doc_mask_mod(offsets))
    intervals = torch.tensor([[0, 20], [15, 40], [30, 64], [50, 64]])
    yield "vision cross attention", mask(masks.generate_vision_cross_attention_mask_mod(intervals, 8), 64, 32)
    yield "global sliding window", mask(masks.generate_global_sliding_window(4, torch.rand(64) < 0.1))
    tree = masks.build_tree_ancestor_matrix([0, *(max(0, node - 3) for node in range(1, 24))], device)
    yield "jetspec tree", mask(masks.generate_jetspec_tree_causal_mask_mod(40, tree), 24, 64)
    yield "jetspec training", mask(masks.generate_jetspec_training_mask_mod(24, 8), 40, 64)
    yield "natten", mask(masks.generate_natten(8, 8, 5, 3))
    yield "tiled natten", mask(masks.generate_tiled_natten(8, 8, 5, 3, 4, 2))
    yield "morton natten", mask(masks.generate_morton_natten(8, 8, 5, 3))
    yield "prefix lm", mask(masks.generate_prefix_lm_mask(20))
    yield "shared prefix", mask(masks.generate_shared_prefix_mask_mod(offsets, torch.tensor([0, 0, 1])))
    yield "sliding window", mask(masks.generate_sliding_window(9))
    yield "sta 2d", mask(masks.generate_sta_mask_mod_2d((8, 6), (4, 6), (2, 2), 9), 60, 60)
    yield "sta 3d", mask(masks.generate_sta_mask_mod_3d((4, 4, 4), (2, 4, 2), (2, 2, 2), 5), 70, 70)
    yield "svg spatial", mask(masks.generate_spatial_head_mask_mod(6, 4, 12, 2, False, 8))
    yield "svg spatial, sink", mask(masks.generate_spatial_head_mask_mod(6, 4, 12, 2, True, 8))
    yield "svg temporal", mask(masks.generate_temporal_head_mask_mod(6, 4, 12, 2))
    yield "vsa", mask(masks.generate_vsa_mask_mod(chosen, 8))
    yield "vsa, variable blocks", mask(masks.generate_vsa_mask_mod(chosen, 8, real))
    blocks = torch.rand(B, H, 8, 8) < 0.4
    yield "vsa block map", mask(vsa.generate_vsa_block_map_mask_mod(blocks, 8, real))
    yield "activation, gelu", score(mods.generate_activation_score_mod())
    yield "activation, relu", score(mods.generate_activation_score_mod(torch.relu))
    yield "alibi", score(mods.generate_alibi_bias(H))
    distances = mods.shortest_path_distances(graph, 4)
    spatial = torch.randn(H, 6, requires_grad=True)
    yield "graphormer spatial", score(mods.generate_graphormer_spatial_bias(spatial, distances), spatial, length=16)
    types_, lengths = mods.shortest_path_edge_types(graph, torch.randint(0, 3, (B, 16, 16)), 3)
    edge = torch.randn(H, 3, 3, requires_grad=True)
    yield "graphormer edge", score(mods.generate_graphormer_edge_bias(edge, types_, lengths), edge, length=16)
    ropes = torch.randn(B, H, 64, 16), torch.randn(B, 1, 64, 16)
    yield "mla rope", score(mods.generate_mla_rope_score_mod(*ropes, H, 0.25))
    yield "sandwich", score(mods.generate_sandwich_bias(H, 64, device=device))
    yield "softcap", score(mods.generate_tanh_softcap(20))
    yield "softcap, approximate", score(mods.generate_tanh_softcap(20, approx=True))


def dense(q, k, v, mask_mod, score_mod):
    """By its definition, of float64."""
    s = q @ k.transpose(-1, -2) / math.sqrt(DIM)
    indices = [torch.arange(size, device=s.device) for size in s.shape]
    if score_mod is not None:
        s = torch_flex._vmap_for_bhqkv(score_mod, prefix=(0,), out_dims=(0,))(s, *indices)
    if mask_mod is not None:
        live = torch_flex._vmap_for_bhqkv(mask_mod, prefix=())(*indices)
        s = s.masked_fill(~live, -math.inf)
    alive = s.isfinite().any(-1, keepdim=True)
    return (torch.where(alive, s, 0.0).softmax(-1) * alive) @ v


def difference(device, q_len, kv_len, mask_mod, score_mod, learned):
    """The largest of O and of all gradients, beside the largest number of each."""
    mine = [torch.randn(B, H, length, DIM, device=device, requires_grad=True) for length in (q_len, kv_len, kv_len)]
    exact = [x.detach().double().requires_grad_() for x in mine]
    weights = torch.randn(B, H, q_len, DIM, device=device)
    block_mask = None if mask_mod is None else create_block_mask(mask_mod, B, H, q_len, kv_len, device=device)
    results = []
    for inputs, attend in (
        (mine, lambda *x: flex_attention(*x, score_mod, block_mask, strict=True)),
        (exact, lambda *x: dense(*x, mask_mod, score_mod)),
    ):
        out = attend(*inputs)
        gradients = torch.autograd.grad((out * weights).sum(), [*inputs, *learned], retain_graph=True)
        results.append([out.detach(), *gradients])
    return max(
        ((x.double() - y.double()).abs().max() / y.abs().max().clamp(min=1)).item()
        for x, y in zip(*results, strict=True)
    )


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="attention-gym", help="the checkout")
    parser.add_argument("names", nargs="*", metavar="name", help="of cases; default: all")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; default: %(default)s")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes, which compile at once")
    return parser.parse_args()


@functools.cache
def found_cases(path, device):
    torch.manual_seed(2)
    with torch.device(device):  # no longer than they are made: it would be seen while mods are traced
        return dict(cases(*folder(path), device))


def verdict(path, device, name):
    """(what to say of a case, whether it failed)"""
    case = found_cases(path, device)[name]
    torch.manual_seed(2)  # the same numbers whatever ran before it
    try:
        worst = difference(device, *case)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}", True
    return f"{worst:.1e}{'' if worst < TOLERANCE else '   too much'}", not worst < TOLERANCE


def main():
    options = parse_arguments()
    names = [name for name in found_cases(options.folder, options.device) if not options.names or name in options.names]
    judge = functools.partial(verdict, options.folder, options.device)
    failed = 0
    with concurrent.futures.ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        for name, (said, is_wrong) in zip(names, (pool.map if options.jobs > 1 else map)(judge, names)):
            failed += is_wrong
            print(f"{name:26} {said}", flush=True)
    print(f"{failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
