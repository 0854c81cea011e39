#include "generator/spec/warnings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "generator/spec/library.hpp"

namespace attune {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

std::vector<Error> warnings_of(const std::string& more) {
  const std::string yaml = "attune: 1\nname: x\ndtype: bf16\nhead_dim: 64\n" + more;
  const auto spec = parse_spec(yaml, "x.yaml");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return spec.ok() ? spec_warnings(*spec, yaml, "x.yaml") : std::vector<Error>();
}

std::vector<std::string> ids(const std::string& more) {
  std::vector<std::string> found;
  for (const Error& warning : warnings_of(more)) found.push_back(warning.id);
  return found;
}

constexpr const char* kDoc = "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n";

TEST(Warnings, MixedAlignmentIsFoundAndPlaced) {
  const auto found =
      warnings_of(kDoc + std::string("mask: causal and doc[b, q_idx] == doc[b, kv_idx]"));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(render(found[0]),
            "x.yaml:6:25: error: this takes the query to stand at key q_idx, line 6 at key q_idx "
            "+ kv_len - q_len: they differ where q_len is not kv_len [spec-mixed-alignment]\n"
            "    6 | mask: causal and doc[b, q_idx] == doc[b, kv_idx]\n"
            "      |                         ^~~~~\n"
            "      = write `q_pos` for the query's position, as `causal` and `document(doc)` do\n");
}

TEST(Warnings, EveryKindOfMixtureCounts) {
  const std::vector<std::string> one = {"spec-mixed-alignment"};
  EXPECT_EQ(ids("mask: causal and q_idx - kv_idx < 1024"), one);
  EXPECT_EQ(ids("mask: causal_top_left and q_pos - kv_idx < 1024"), one);
  EXPECT_EQ(ids("mask: causal\nscore: score - 0.1 * (q_idx - kv_idx)"), one);
  EXPECT_EQ(ids("tensors: {bias: {dtype: float32, dims: [2047]}}\nmask: causal\n"
                "score: score + bias[q_idx - kv_idx + 1023]"),
            one);
}

TEST(Warnings, OneAlignmentAloneIsRight) {
  EXPECT_THAT(ids(kDoc + std::string("mask: causal and document(doc)")), IsEmpty());
  EXPECT_THAT(ids(kDoc + std::string("mask: causal_top_left and doc[b, q_idx] == doc[b, kv_idx]")),
              IsEmpty());
  EXPECT_THAT(ids("mask: causal and kv_idx < 100 or q_idx < 4"), IsEmpty());
  EXPECT_THAT(ids("tensors: {row: {dtype: int32, dims: [q_len]}}\n"
                  "mask: causal and row[q_idx] < 3"),
              IsEmpty());
}

TEST(Warnings, MasksThatAreNeverOrAlwaysTrue) {
  const std::vector<std::string> never = {"spec-mask-never"}, always = {"spec-mask-always"};
  EXPECT_EQ(ids("mask: kv_idx < 0"), never);
  EXPECT_EQ(ids("mask: causal and kv_idx > q_pos"), never);
  EXPECT_EQ(ids("mask: h < 0 and causal"), never);
  EXPECT_EQ(ids("mask: kv_idx >= 0 or causal"), always);
  EXPECT_EQ(ids("mask: q_idx >= kv_idx or kv_idx > q_idx"), always);
}

// True or false somewhere far off, or only for some values.
TEST(Warnings, RareMasksAreNotCalledNeverOrAlways) {
  for (const char* mask :
       {"kv_idx >= 200000000", "kv_idx != 31337", "kv_idx == q_idx + 77777", "h != 7",
        "(q_idx + kv_idx) % 64 == 0", "document(doc)", "doc[b, kv_idx] > 100000",
        "doc[b, kv_idx] == 2", "kv_idx * 3 == q_idx + 99", "kv_idx < limit", "causal"}) {
    const auto found = ids("scalars: {limit: int}\n" + std::string(kDoc) + "mask: " + mask);
    EXPECT_THAT(found, testing::Not(testing::Contains(HasSubstr("spec-mask")))) << mask;
  }
}

TEST(Warnings, ConstantsThatWrapAreFound) {
  const std::vector<std::string> wraps = {"spec-wraps"};
  EXPECT_EQ(ids("mask: local(0, 2147483647)"), wraps);
  EXPECT_EQ(ids("scalars: {far: 2147483647}\nmask: kv_idx < far + q_pos"), wraps);
  EXPECT_EQ(ids("mask: causal\nscore: score + (-2147483647 - kv_idx)"), wraps);
  const auto found = warnings_of("mask: causal and kv_idx < q_pos + 2147483647");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].span.column, 27);
  EXPECT_EQ(found[0].span.length, 18);
  for (const char* mask :
       {"local(2147483647, 0)", "local(0, 1 << 30)", "sliding_window(2147483647)",
        "causal and doc[b, kv_idx] + 2147483647 > 0", "kv_idx < q_pos + limit",
        "causal and (q_idx * 73856093 + kv_idx * 19349663 + 2147483647) % 7 == 0"}) {
    const auto ids_of = ids("scalars: {limit: int}\n" + std::string(kDoc) + "mask: " + mask);
    EXPECT_THAT(ids_of, testing::Not(testing::Contains("spec-wraps"))) << mask;
  }
}

TEST(Warnings, WhatIsNeverReadIsNamed) {
  const auto found = warnings_of(
      "scalars: {cap: float, folded: 3}\ntensors:\n  doc: {dtype: int32, dims: [kv_len]}\n"
      "  slope: {dtype: float32, dims: [heads]}\nscore: score * slope[h]");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].message, "the scalar `cap` is read by no expression");
  EXPECT_EQ(found[1].message, "the tensor `doc` is read by no expression");
  EXPECT_EQ(found[1].span.line, 7);
  EXPECT_EQ(found[1].span.column, 3);
}

// The benchmark's write masks as FlexAttention does, where q_len is kv_len.
TEST(Warnings, TheLibraryHasNone) {
  for (const LibrarySpec& entry : spec_library()) {
    if (entry.name.starts_with("bench/")) continue;
    const auto spec = parse_spec(entry.text, entry.path);
    ASSERT_TRUE(spec.ok());
    for (const Error& warning : spec_warnings(*spec, entry.text, entry.path))
      ADD_FAILURE() << render(warning);
  }
}

}  // namespace
}  // namespace attune
