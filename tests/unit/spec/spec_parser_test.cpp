#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "generator/spec/spec.hpp"

namespace attune {
namespace {

constexpr std::string_view kDesign = R"(attune: 1
name: sink_window
dtype: bf16                  # fp16 | bf16 | fp32 | fp8_e4m3
head_dim: {qk: 192, v: 128}
target: [sm_90a, sm_80]
layout: bhsd
scalars:
  window: 1024               # a value: folded into the kernel
  cap: float                 # a type: handed over at launch
  beta: int
  alpha: 0.5
  on: true
tensors:
  slope: {dtype: float32, dims: [heads], grad: true}
  doc:   {dtype: int32,   dims: [batch, kv_len]}
  table: {dtype: bool, dims: [kv_heads, q_len, 7]}
mask: causal and (q_idx - kv_idx < window or kv_idx < 4)
score: cap * tanh((score + slope[h] * (kv_idx - q_idx)) / cap)
sink: slope[h]
softmax_scale: 0.25
dropout: 0.1
passes: [backward, forward]
tune: {shapes: [{batch: 2, heads: 32, kv_heads: 8, q_len: 8192, kv_len: 4096}, {heads: 3, q_len: 7}]}
)";

AttentionSpec parsed(std::string_view yaml) {
  auto spec = parse_spec(yaml, "test.yaml");
  if (!spec.ok()) {
    ADD_FAILURE() << render(spec.error());
    return {};
  }
  return std::move(*spec);
}

std::string minimal(std::string_view more) {
  return "attune: 1\nname: m\ndtype: fp16\nhead_dim: 64\n" + std::string(more);
}

TEST(ParseSpec, ReadsEveryKey) {
  const AttentionSpec spec = parsed(kDesign);
  EXPECT_EQ(spec.name, "sink_window");
  EXPECT_EQ(spec.dtype, DType::kBf16);
  EXPECT_EQ(spec.head_dim_qk, 192);
  EXPECT_EQ(spec.head_dim_v, 128);
  EXPECT_EQ(spec.targets, (std::vector{Target::kSm90a, Target::kSm80}));
  EXPECT_EQ(spec.layout, Layout::kBhsd);
  EXPECT_TRUE(spec.mask && spec.score && spec.sink);
  EXPECT_EQ(spec.softmax_scale, (Parameter{.at_launch = false, .value = 0.25}));
  EXPECT_EQ(spec.dropout, (Parameter{.at_launch = false, .value = 0.1}));
  EXPECT_EQ(spec.passes, (std::vector{Pass::kForward, Pass::kBackward}));
  EXPECT_EQ(spec.tune_shapes, (std::vector<ProblemShape>{{2, 32, 8, 8192, 4096}, {1, 3, 3, 7, 7}}));
}

TEST(ParseSpec, NumbersSlotsWithoutRegardToOrder) {
  const AttentionSpec spec = parsed(kDesign);
  std::string scalars, tensors;
  for (const auto& scalar : spec.environment.scalars)
    scalars += scalar.name + (scalar.is_constant ? "! " : " ");
  for (const auto& tensor : spec.environment.tensors) tensors += tensor.name + " ";
  EXPECT_EQ(scalars, "beta cap alpha! on! window! ");
  EXPECT_EQ(tensors, "doc slope table ");
  EXPECT_EQ(spec.environment.scalars[0].type, expr::Type::kInt32);
  EXPECT_EQ(spec.environment.scalars[1].type, expr::Type::kFloat32);
  EXPECT_EQ(spec.environment.scalars[2].type, expr::Type::kFloat32);
  EXPECT_EQ(spec.environment.scalars[2].value, 0.5);
  EXPECT_EQ(spec.environment.scalars[3].type, expr::Type::kBool);
  EXPECT_EQ(spec.environment.scalars[3].value, 1);
  EXPECT_EQ(spec.environment.scalars[4].type, expr::Type::kInt32);
  EXPECT_EQ(spec.environment.scalars[4].value, 1024);
  const expr::TensorDecl& table = spec.environment.tensors[2];
  EXPECT_EQ(table.type, expr::TensorType::kBool);
  EXPECT_EQ(table.dims,
            (std::vector<expr::DimSize>{
                {expr::Dim::kKvHeads, 0}, {expr::Dim::kQLen, 0}, {expr::Dim::kNumber, 7}}));
  EXPECT_FALSE(table.grad);
  EXPECT_TRUE(spec.environment.tensors[1].grad);
}

TEST(ParseSpec, HasDefaults) {
  const AttentionSpec spec = parsed(minimal(""));
  EXPECT_TRUE(spec.targets.empty());
  EXPECT_EQ(spec.layout, Layout::kBshd);
  EXPECT_FALSE(spec.mask || spec.score || spec.sink);
  EXPECT_EQ(spec.softmax_scale, (Parameter{.at_launch = false, .value = 1 / std::sqrt(64.0)}));
  EXPECT_EQ(spec.dropout, Parameter{});
  EXPECT_EQ(spec.passes, std::vector{Pass::kForward});
  EXPECT_TRUE(spec.tune_shapes.empty());
}

TEST(ParseSpec, TakesParametersFromTheLaunch) {
  const AttentionSpec spec = parsed(minimal("softmax_scale: float\ndropout: float\n"));
  EXPECT_TRUE(spec.softmax_scale.at_launch);
  EXPECT_TRUE(spec.dropout.at_launch);
}

TEST(ParseSpec, TakesDropoutsSeedFromTheDevice) {
  EXPECT_FALSE(parsed(minimal("dropout: 0.25\n")).seed_on_device);
  EXPECT_FALSE(parsed(minimal("dropout: {p: 0.25, seed: launch}\n")).seed_on_device);
  const AttentionSpec fixed = parsed(minimal("dropout: {p: 0.25, seed: device}\n"));
  EXPECT_TRUE(fixed.seed_on_device);
  EXPECT_EQ(fixed.dropout.value, 0.25);
  const AttentionSpec open = parsed(minimal("dropout: {seed: device, p: float}\n"));
  EXPECT_TRUE(open.seed_on_device);
  EXPECT_TRUE(open.dropout.at_launch);
}

TEST(ParseSpec, TakesLoneWordsForLists) {
  const AttentionSpec spec = parsed(minimal("target: cpu\npasses: backward\n"));
  EXPECT_EQ(spec.targets, std::vector{Target::kCpu});
  EXPECT_EQ(spec.passes, std::vector{Pass::kBackward});
}

TEST(ParseSpec, TakesPackedSequences) {
  const AttentionSpec spec = parsed(minimal(
      "layout: thd\ntensors: {cut: {dtype: int32, dims: [batch]}}\nmask: kv_idx < cut[b]\n"));
  EXPECT_TRUE(is_packed(spec));
  EXPECT_EQ(to_string(spec.layout), "thd");
  EXPECT_NE(spec_hash(spec),
            spec_hash(parsed(minimal("tensors: {cut: {dtype: int32, dims: [batch]}}\n"
                                     "mask: kv_idx < cut[b]\n"))));
}

TEST(ParseSpec, TakesPagedSequences) {
  constexpr const char* kLines =
      "layout: paged\ntensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n"
      "mask: doc[b, q_pos] == doc[b, kv_idx]\n";
  const AttentionSpec spec = parsed(minimal(kLines));
  EXPECT_TRUE(is_packed(spec));
  EXPECT_TRUE(is_paged(spec));
  EXPECT_EQ(to_string(spec.layout), "paged");
  EXPECT_EQ(spec.page_size, 16);
  // What is tuned is no part of the kernel.
  const AttentionSpec tuned = parsed(
      minimal(std::string(kLines) + "tune: {page_size: 64, shapes: [{heads: 1, q_len: 1}]}\n"));
  EXPECT_EQ(tuned.page_size, 64);
  EXPECT_EQ(tuned.shared_prefix, 0);
  EXPECT_EQ(parsed(minimal(std::string(kLines) +
                           "tune: {shared_prefix: 640, shapes: [{heads: 1, q_len: 1}]}\n"))
                .shared_prefix,
            640);
  EXPECT_EQ(spec_hash(tuned), spec_hash(spec));
  EXPECT_FALSE(is_paged(parsed(minimal("layout: thd\n"))));
}

TEST(ParseSpec, OnlyPagedSequencesHaveAPageSize) {
  const auto spec =
      parse_spec(minimal("tune: {page_size: 64, shapes: [{heads: 1, q_len: 1}]}\n"), "");
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.error().id, "spec-page-size");
}

TEST(ParseSpec, LeavesOutWhatChangesNothing) {
  const AttentionSpec spec = parsed(minimal("mask: \"true\"\nscore: score\n"));
  EXPECT_FALSE(spec.mask);
  EXPECT_FALSE(spec.score);
}

TEST(ParseSpec, TakesTheLimitsThemselves) {
  EXPECT_EQ(parsed("attune: 1\nname: _\ndtype: fp32\nhead_dim: {v: 8, qk: 256}\n").head_dim_qk,
            256);
  EXPECT_EQ(parsed(minimal("dropout: 0.001953125\n")).dropout.value, 1.0 / 512);
  EXPECT_EQ(parsed(minimal("dropout: 0\n")).dropout.value, 0);
  EXPECT_EQ(
      parsed(minimal("scalars: {a: -2147483648, c: 2147483647}\n")).environment.scalars[0].value,
      -2147483648.0);
  EXPECT_EQ(
      parsed("attune: 1\ndtype: fp16\nhead_dim: 64\nname: " + std::string(64, 'a')).name.size(),
      64u);
}

TEST(ParseSpec, TakesAByteOrderMarkAndWindowsLineEnds) {
  const AttentionSpec spec = parsed(
      "\xef\xbb\xbf"
      "attune: 1\r\nname: w\r\ndtype: fp16\r\nhead_dim: 64\r\nmask: causal\r\n");
  EXPECT_TRUE(spec.mask);
}

// Sizes are made here: a fixture of a megabyte helps nobody.
TEST(ParseSpec, RefusesWhatIsTooLarge) {
  std::string deep = std::string(400, '[') + std::string(400, ']'), braces, keys, items,
              comment = minimal("");
  for (int i = 0; i < 200; ++i) braces += "{a: ";
  braces += std::string(200, '}');
  for (int i = 0; i < 300; ++i) keys += "k" + std::to_string(i) + ": 1\n";
  for (int i = 0; i < 300; ++i) items += "1, ";
  comment += "#" + std::string(std::size_t{1} << 20, 'x');
  const struct {
    std::string text, id;
  } cases[] = {
      {deep, "spec-yaml-nesting"},
      {"a: " + deep, "spec-yaml-nesting"},
      {braces, "spec-yaml-nesting"},
      {std::string(100000, '-'), "spec-type"},
      {keys, "spec-too-many"},
      {minimal("target: [" + items + "]\n"), "spec-too-many"},
      {comment, "spec-too-large"},
      {minimal("mask: " + std::string(500000, '(') + "\n"), "expr-too-long"},
      {"attune: 1\ndtype: fp16\nhead_dim: 64\nname: " + std::string(65, 'a'), "spec-name"},
  };
  for (const auto& test : cases) {
    const auto spec = parse_spec(test.text, "big.yaml");
    ASSERT_FALSE(spec.ok()) << test.id;
    EXPECT_EQ(spec.error().id, test.id) << render(spec.error()).substr(0, 500);
    EXPECT_LT(render(spec.error()).size(), 2000u);
  }
}

// A block of `? ` and `- ` nests without brackets.
TEST(ParseSpec, SurvivesNestingWithoutBrackets) {
  for (const std::string_view unit : {"- ", "? ", "? - ", "- ? ", "a: - ", "!a ", "&a ", "*a ",
                                      "| ", "{[", "[{", "? {", "'", "\"", "%a\n", "---\n"}) {
    std::string text;
    while (text.size() < 60000) text += unit;
    EXPECT_FALSE(parse_spec(text, "deep.yaml").ok()) << unit;
  }
}

TEST(SpecParser, VMayBeTheFirstColumnsOfK) {
  const auto parsed = [](std::string_view lines) {
    return parse_spec(fmt::format("attune: 1\nname: t\ndtype: bf16\n{}", lines), "t");
  };
  const auto spec = parsed("v_in_k: true\nhead_dim: {qk: 576, v: 512}\n");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  EXPECT_TRUE(spec->v_in_k);
  EXPECT_EQ(spec->head_dim_qk, 576);
  EXPECT_EQ(spec->head_dim_v, 512);
  EXPECT_TRUE(parsed("v_in_k: true\nhead_dim: 64\n").ok());
  EXPECT_FALSE(parsed("head_dim: 64\n")->v_in_k);
  for (const std::string_view lines : {"v_in_k: true\nhead_dim: 64\npasses: [forward, backward]\n",
                                       "v_in_k: true\nhead_dim: 64\nkv_dtype: fp8_e4m3\n"}) {
    const auto refused = parsed(lines);
    ASSERT_FALSE(refused.ok()) << lines;
    EXPECT_EQ(refused.error().id, "spec-not-yet") << lines;
    EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported) << lines;
  }
}

}  // namespace
}  // namespace attune
