// Specs of `accuracy: strict`, after name and that key: head dims of one score buffer and of two,
// scores that are scaled at launch, cut off and lines, masks of every kind, dropout.
#pragma once

namespace attune::compile_test {

inline constexpr const char* kStrictSpecs[] = {
    "dtype: bf16\nhead_dim: 64\n",
    "dtype: fp16\nhead_dim: 64\nmask: causal\n",
    "dtype: bf16\nhead_dim: 128\nmask: causal\n",
    "dtype: fp16\nhead_dim: 128\n",
    "dtype: bf16\nhead_dim: 256\n",
    "dtype: fp16\nhead_dim: 256\nmask: causal\n",
    "dtype: bf16\nhead_dim: 128\nmask: causal\nscore: 30 * tanh(score / 30)\n",
    "dtype: bf16\nhead_dim: 128\nmask: sliding_window(1000)\nsoftmax_scale: float\nsink: 0.5\n",
    "dtype: fp16\nhead_dim: 128\nmask: causal\ndropout: 0.1\n",
    "dtype: bf16\nhead_dim: 64\ntensors: {slope: {dtype: float32, dims: [heads]}}\n"
    "score: score + slope[h] * (kv_idx - q_idx)\n",
    "dtype: bf16\nhead_dim: 128\nlayout: thd\nmask: causal\n",
    "dtype: bf16\nhead_dim: 128\ntensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n"
    "mask: causal and document(doc)\n",
};

}  // namespace attune::compile_test
