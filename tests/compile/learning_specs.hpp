// Specs that learn every way in which the kernels sum gradients, after name and dtype: by distance
// in registers and beyond, under a function of the score, element by element, a number a head, and
// straight to the tensor.
#pragma once

namespace attune::compile_test {

inline constexpr const char* kLearningSpecs[] = {
    "head_dim: 128\nmask: causal\n"
    "tensors: {bias: {dtype: float32, dims: [heads, 32], grad: true}}\n"
    "score: score + bias[h, max(0, min(31, q_idx - kv_idx))]\n",
    "head_dim: 64\nmask: causal\ndeterministic: true\n"
    "tensors: {bias: {dtype: float32, dims: [heads, 64], grad: true}, "
    "sinks: {dtype: float32, dims: [heads], grad: true}}\nsink: sinks[h]\n"
    "score: 5 * tanh((score + bias[h, max(0, min(63, q_idx - kv_idx))]) / 5)\n",
    "head_dim: 64\ndeterministic: true\n"
    "tensors: {bias: {dtype: float32, dims: [heads, 2047], grad: true}}\n"
    "score: score + bias[h, max(0, min(2046, kv_idx - q_idx + 1023))]\n",
    "head_dim: 128\n"
    "tensors: {bias: {dtype: float32, dims: [heads, 2047], grad: true}}\n"
    "score: score + bias[h, max(0, min(2046, kv_idx - q_idx + 1023))]\n",
    "head_dim: 64\n"
    "tensors: {bias: {dtype: float32, dims: [heads, 64], grad: true}}\n"
    "score: score + bias[h, q_idx % 8 * 8 + kv_idx % 8]\n",
    "head_dim: 128\nmask: causal\n"
    "tensors: {slope: {dtype: float32, dims: [heads], grad: true}}\n"
    "score: score + slope[h] * (kv_idx - q_idx)\n",
    "head_dim: 64\ndeterministic: true\n"
    "tensors: {bias: {dtype: float32, dims: [batch, heads, q_len, kv_len], grad: true}}\n"
    "score: score + bias[b, h, q_idx, kv_idx]\n",
};

}  // namespace attune::compile_test
