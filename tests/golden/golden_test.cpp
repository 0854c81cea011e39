// Emitted source against what was reviewed. tests/golden/README.md says how to accept a change.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "generator/emit/emit.hpp"
#include "generator/spec/library.hpp"

namespace attune {
namespace {

struct Case {
  const char* file;
  const char* spec;
  const char* plan;
  const char* lines = "";  // more of the spec
};

constexpr Case kCases[] = {
    {"causal_sm80", "causal", "sm80 forward sm_80 q128 k64 s2 w4 c64 u1 frozen"},
    {"causal_sm80_device_seed", "causal", "sm80 forward sm_80 q128 k64 s2 w4 c32 u1 frozen",
     "dropout: {p: 0.1, seed: device}\n"},
    {"document_causal_sm80", "document_causal", "sm80 forward sm_90a q128 k64 s2 w4 c32 u1 frozen"},
    {"sink_logits_sm80", "sink_logits", "sm80 forward sm_120 q128 k64 s2 w4 c32 u2 qreg frozen"},
    {"gpt2_sm80", "models/gpt2", "sm80 forward sm_80 q128 k64 s3 w4 c32 u1 qreg"},
    {"causal_sm90a", "causal", "sm90a forward sm_90a w2 k128 s3 b2 qreg c1 longest g16 frozen tma"},
    {"causal_sm90a_strict", "causal", "sm90a forward sm_90a w2 k128 s2 b2 c1 longest g16 tma",
     "accuracy: strict\n"},
    {"softcap_sm90a", "softcap", "sm90a forward sm_90a w2 k80 s2 b2 c1 longest g16 frozen tma"},
    {"causal_sm90a_ordered", "causal", "sm90a_ordered backward sm_90a q64 k64 s2 both qreg"},
    {"document_causal_cpu", "document_causal", "cpu forward cpu q48 k96 u12 c1 v32 t1"},
    {"sink_logits_cpu", "sink_logits", "cpu forward cpu q256 k128 u8 c1 v32 t1"},
    {"t5_bias_cpu_backward", "t5_bias", "cpu backward cpu t192 s64 u8 c3 v64 heads"},
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.file; }

// The parts that the emitter writes: its comment less the hash of the templates' text, the names of
// the templates, and the head.
std::string emitted_parts(std::string_view source) {
  constexpr std::string_view kFile = "// ---- templates/";
  constexpr std::string_view kHead = "// ---- templates/kernels/head.cuh\n";
  std::string parts;
  bool keep = true;
  std::istringstream lines{std::string(source)};
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("// Text below this comment: ")) continue;
    if (line.starts_with(kFile)) keep = line + "\n" == kHead;
    if (keep || line.starts_with(kFile)) parts += line + "\n";
  }
  return parts;
}

class Golden : public testing::TestWithParam<Case> {};

TEST_P(Golden, IsAsReviewed) {
  const auto library = find_library_spec(GetParam().spec);
  ASSERT_TRUE(library.ok()) << render(library.error());
  const std::string text = std::string(library->text) + GetParam().lines;
  const auto spec = parse_spec(text, library->path);
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const auto plan = parse_plan(GetParam().plan);
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  const auto kernel = emit(*spec, *plan);
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  const std::string parts = emitted_parts(kernel->source);
  const std::string path = fmt::format("tests/golden/sources/{}.txt", GetParam().file);
  if (std::getenv("ATTUNE_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << parts;
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing; see tests/golden/README.md";
  std::stringstream reviewed;
  reviewed << file.rdbuf();
  EXPECT_EQ(parts, reviewed.str())
      << "to accept: ATTUNE_UPDATE_GOLDEN=1 build/release/tests/golden/golden_test";
}

INSTANTIATE_TEST_SUITE_P(Specs, Golden, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.file); });

}  // namespace
}  // namespace attune
