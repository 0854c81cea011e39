// Two spellings of one kernel share text and hash; anything a kernel or its launch can notice parts
// them.
#include <gtest/gtest.h>

#include <string>

#include "generator/spec/spec.hpp"

namespace attune {
namespace {

std::string hash_of(std::string_view yaml) {
  const auto spec = parse_spec(yaml, "test.yaml");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return spec.ok() ? spec_hash(*spec) : "";
}
std::string hash_with(std::string_view more) {
  return hash_of("attune: 1\nname: m\ndtype: bf16\nhead_dim: 128\n" + std::string(more));
}

TEST(Canonical, TextIsDocumented) {
  const auto spec = parse_spec(R"(attune: 1
name: sample
dtype: fp16
head_dim: {qk: 64, v: 32}
scalars: {zeta: int, cap: float, window: 128}
tensors:
  doc: {dtype: int32, dims: [batch, kv_len]}
  bias: {dtype: float32, dims: [heads, 8], grad: true}
mask: sliding_window(window) and doc[b, q_idx] != zeta
score: score * cap + bias[h, 3]
sink: bias[h, 0]
softmax_scale: float
dropout: 0.1
)",
                               "test.yaml");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  EXPECT_EQ(canonical_text(*spec), R"(attune 1
dtype fp16
head_dim 64 32
layout bshd
softmax_scale float
dropout 26/256
scalar s0 float32
scalar s1 int32
tensor t0 float32 [heads, 8] grad
tensor t1 int32 [batch, kv_len]
mask kv_idx <= q_idx + (kv_len - q_len) and q_idx + (kv_len - q_len) - kv_idx < 128 and t1[b, q_idx] != s1
score score * s0 + t0[h, 3]
sink t0[h, 0]
)");
}

// Files and caches of versions that did not know the key name their kernels as before.
TEST(Canonical, DeterminismIsPartOfItOnlyWhereItIsAskedFor) {
  EXPECT_EQ(hash_with("deterministic: false\n"), hash_with(""));
  EXPECT_NE(hash_with("deterministic: true\n"), hash_with(""));
  const auto spec = parse_spec(
      "attune: 1\nname: m\ndtype: bf16\nhead_dim: 64\ndeterministic: true\nmask: causal\n", "f");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  EXPECT_TRUE(spec->deterministic);
  EXPECT_EQ(canonical_text(*spec),
            "attune 1\ndtype bf16\nhead_dim 64 64\nlayout bshd\nsoftmax_scale 0.125\ndropout "
            "0/256\ndeterministic\nmask kv_idx <= q_idx + (kv_len - q_len)\n");
}

TEST(Canonical, WhereDropoutsSeedLiesIsPartOfItOnlyOnTheDevice) {
  EXPECT_EQ(hash_with("dropout: {p: 0.25, seed: launch}\n"), hash_with("dropout: 0.25\n"));
  EXPECT_NE(hash_with("dropout: {p: 0.25, seed: device}\n"), hash_with("dropout: 0.25\n"));
  const auto spec = parse_spec(
      "attune: 1\nname: m\ndtype: bf16\nhead_dim: 64\ndropout: {p: float, seed: device}\n", "f");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  EXPECT_EQ(canonical_text(*spec),
            "attune 1\ndtype bf16\nhead_dim 64 64\nlayout bshd\nsoftmax_scale 0.125\ndropout "
            "float\ndropout_seed device\n");
}

TEST(Canonical, BatchInvarianceIsPartOfItOnlyWhereItIsAskedFor) {
  EXPECT_EQ(hash_with("batch_invariant: false\n"), hash_with(""));
  EXPECT_NE(hash_with("batch_invariant: true\n"), hash_with(""));
  EXPECT_NE(hash_with("batch_invariant: true\n"), hash_with("deterministic: true\n"));
}

TEST(Canonical, BatchInvarianceIsOfTheForwardPass) {
  const auto spec = parse_spec(
      "attune: 1\nname: m\ndtype: bf16\nhead_dim: 64\npasses: [forward, backward]\n"
      "batch_invariant: true\n",
      "f");
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.error().id, "spec-batch-invariant");
}

TEST(Canonical, SharedPrefixesArePartOfItOnlyWhereTheyAreAskedFor) {
  const std::string paged = "layout: paged\n";
  EXPECT_EQ(hash_with(paged + "shared_prefixes: false\n"), hash_with(paged));
  EXPECT_NE(hash_with(paged + "shared_prefixes: true\n"), hash_with(paged));
  EXPECT_EQ(hash_with("shared_prefixes: false\n"), hash_with(""));
}

TEST(Canonical, PrecisionIsPartOfItOnlyWhereItIsNotTheDefault) {
  const auto text_with = [](const std::string& line) {
    const auto spec = parse_spec("attune: 1\nname: m\ndtype: fp32\nhead_dim: 64\n" + line, "f");
    return spec.ok() ? canonical_text(*spec) : render(spec.error());
  };
  constexpr const char* kPlain =
      "attune 1\ndtype fp32\nhead_dim 64 64\nlayout bshd\nsoftmax_scale 0.125\ndropout 0/256\n";
  EXPECT_EQ(text_with(""), kPlain);
  EXPECT_EQ(text_with("precision: strict\n"), kPlain);
  EXPECT_EQ(text_with("precision: tf32\n"), std::string(kPlain) + "precision tf32\n");
}

TEST(Canonical, AccuracyIsPartOfItOnlyWhereItIsNotTheDefault) {
  const auto text_with = [](const std::string& line) {
    const auto spec = parse_spec("attune: 1\nname: m\ndtype: fp16\nhead_dim: 64\n" + line, "f");
    return spec.ok() ? canonical_text(*spec) : render(spec.error());
  };
  constexpr const char* kPlain =
      "attune 1\ndtype fp16\nhead_dim 64 64\nlayout bshd\nsoftmax_scale 0.125\ndropout 0/256\n";
  EXPECT_EQ(text_with(""), kPlain);
  EXPECT_EQ(text_with("accuracy: fast\n"), kPlain);
  for (const std::string word : {"strict", "relaxed"}) {
    EXPECT_EQ(text_with("accuracy: " + word + "\n"),
              std::string(kPlain) + "accuracy " + word + "\n");
  }
}

TEST(Canonical, KvDtypeIsPartOfItOnlyWhereThereIsOne) {
  const auto text_with = [](const std::string& line) {
    const auto spec = parse_spec("attune: 1\nname: m\ndtype: bf16\nhead_dim: 64\n" + line, "f");
    return spec.ok() ? canonical_text(*spec) : render(spec.error());
  };
  constexpr const char* kPlain =
      "attune 1\ndtype bf16\nhead_dim 64 64\nlayout bshd\nsoftmax_scale 0.125\ndropout 0/256\n";
  EXPECT_EQ(text_with(""), kPlain);
  EXPECT_EQ(text_with("kv_dtype: fp8_e4m3\n"), std::string(kPlain) + "kv_dtype fp8_e4m3\n");
  EXPECT_EQ(text_with("v_in_k: false\n"), kPlain);
  EXPECT_EQ(text_with("v_in_k: true\n"), std::string(kPlain) + "v_in_k\n");
}

TEST(Canonical, SpellingsOfOneKernelAgree) {
  const std::string_view pairs[][2] = {
      {"mask: causal\n", "mask:   'causal'  # aligned to the end\n"},
      {"mask: causal\n", "mask: >-\n  kv_idx <=\n  q_idx + (kv_len - q_len)\n"},
      {"scalars: {w: 1024}\nmask: sliding_window(w)\n", "mask: sliding_window(1024)\n"},
      {"scalars: {w: 1024}\nmask: sliding_window(w)\n",
       "scalars: {w: 1000, x: 24}\nmask: sliding_window(w + x)\n"},
      {"", "softmax_scale: auto\ndropout: 0\npasses: [forward]\nlayout: bshd\n"},
      {"", "softmax_scale: 0.08838834764831845\n"},
      {"", "mask: 'true'\nscore: score\n"},
      {"",
       "target: [sm_80, cpu]\npasses: [forward, backward]\ntune: {shapes: [{heads: 1, q_len: "
       "1}]}\n"},
      {"dropout: 0.1\n", "dropout: 0.101\n"},  // both drop 26 of 256
      {"tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\nmask: document(doc)\n",
       "mask: seg[b, q_idx + (kv_len - q_len)] == seg[b, kv_idx]\ntensors: {seg: {dims: [batch, "
       "kv_len], dtype: int32, grad: false}}\n"},
      {"tensors: {t: {dtype: fp16, dims: []}}\nscore: let x = t * 2 in gelu(x) + (score - x)\n",
       "tensors: {g: {dtype: fp16, dims: []}}\n"
       "score: 0.5 * (g * 2) * (1 + erf(g * 2 * 0.70710678)) + (score - g * 2)\n"},
      {"mask: q_idx >> 3 == kv_idx & 7\n", "mask: q_idx // 8 == kv_idx % 8\n"},
      {"scalars: {a: float, c: float}\nscore: a * score + c\n",
       "score: a * score + c\nscalars: {c: float, a: float}\n"},
      {"scalars: {a: float}\nscore: a * score + 2\n",
       "scalars: {a: float, k: 2}\nscore: a * score + k\n"},
  };
  for (const auto& [one, other] : pairs)
    EXPECT_EQ(hash_with(one), hash_with(other)) << one << "---\n" << other;
  EXPECT_EQ(hash_of("attune: 1\nname: a\ndtype: bf16\nhead_dim: 128\n"),
            hash_of("{head_dim: {v: 128, qk: 128}, dtype: bf16, name: z, attune: 1}"));
}

TEST(Canonical, DifferentKernelsDiffer) {
  const std::string_view pairs[][2] = {
      {"mask: causal\n", "mask: causal_top_left\n"},
      {"mask: sliding_window(1024)\n", "mask: sliding_window(1025)\n"},
      {"", "layout: bhsd\n"},
      {"", "softmax_scale: 0.0883\n"},
      {"", "softmax_scale: float\n"},
      {"", "dropout: 0.1\n"},
      {"dropout: 0.1\n", "dropout: float\n"},
      {"", "mask: kv_idx > 0\n"},
      {"score: score * 2\n", "score: score * 3\n"},
      {"", "sink: '0.0'\n"},
      {"", "scalars: {a: float}\n"},
      {"scalars: {a: float}\nscore: score * a\n", "scalars: {a: int}\nscore: score * a\n"},
      {"scalars: {a: float, c: float}\nscore: a * score + c\n",
       "scalars: {a: float, c: float}\nscore: c * score + a\n"},
      {"tensors: {x: {dtype: float32, dims: [heads]}}\nscore: score + x[h]\n",
       "tensors: {x: {dtype: float32, dims: [heads], grad: true}}\nscore: score + x[h]\n"},
      {"tensors: {x: {dtype: fp16, dims: [heads]}}\nscore: score + x[h]\n",
       "tensors: {x: {dtype: bf16, dims: [heads]}}\nscore: score + x[h]\n"},
      {"tensors: {x: {dtype: float32, dims: [heads]}}\nscore: score + x[h]\n",
       "tensors: {x: {dtype: float32, dims: [q_len]}}\nscore: score + x[h]\n"},
  };
  for (const auto& [one, other] : pairs)
    EXPECT_NE(hash_with(one), hash_with(other)) << one << "---\n" << other;
  EXPECT_NE(hash_of("{attune: 1, name: m, dtype: bf16, head_dim: 128}"),
            hash_of("{attune: 1, name: m, dtype: fp16, head_dim: 128}"));
  EXPECT_NE(hash_of("{attune: 1, name: m, dtype: bf16, head_dim: 128}"),
            hash_of("{attune: 1, name: m, dtype: bf16, head_dim: {qk: 128, v: 64}}"));
}

}  // namespace
}  // namespace attune
