// Specs that have every part of a gradient at least once.
#pragma once

namespace attune::verification {

// After name and dtype.
inline constexpr const char* kGradientSpecs[] = {
    "head_dim: 64\n",
    "head_dim: {qk: 72, v: 40}\nmask: causal\n",
    "head_dim: {qk: 24, v: 136}\nmask: kv_idx <= q_idx and q_idx % 7 != 3\n",
    "head_dim: 32\nmask: sliding_window(20)\ndropout: 0.25\n",
    "head_dim: 32\nmask: causal and document(doc)\ndropout: 0.1\n"
    "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n",
    "head_dim: 48\nmask: causal\nscore: 5 * tanh(score / 5)\ndropout: 0.25\n",
    "head_dim: 32\nmask: causal\nsink: sinks[h]\n"
    "tensors: {sinks: {dtype: float32, dims: [heads], grad: true}}\n",
    "head_dim: 32\nmask: causal\nscore: score + slope[h] * (kv_idx - q_idx)\n"
    "tensors: {slope: {dtype: float32, dims: [heads], grad: true}}\n",
    "head_dim: 32\nscore: score + bias[h, max(0, min(31, q_idx - kv_idx + 16))]\n"
    "tensors: {bias: {dtype: float32, dims: [heads, 32], grad: true}}\n",
    "head_dim: 32\nscore: 3 * tanh(gain[h] * score / 3) + sin(score + bias[h, q_idx, kv_idx])\n"
    "tensors: {gain: {dtype: float32, dims: [heads], grad: true}, "
    "bias: {dtype: float32, dims: [heads, q_len, kv_len], grad: true}}\n",
    "head_dim: 256\nlayout: bhsd\nmask: causal\n",
};

// Values a small part of what they may be off by, limits alike.
}  // namespace attune::verification
