#include "generator/emit/emit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "generator/emit/flatten.hpp"
#include "generator/spec/library.hpp"

namespace attune {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

AttentionSpec library_spec(std::string_view name) {
  return parse_spec(find_library_spec(name)->text, name).value();
}

KernelPlan sm80_plan() {
  return {.pass = Pass::kForward, .target = Target::kSm80, .tile = Sm80Plan{}};
}

int count(std::string_view text, std::string_view part) {
  int found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Emit, SourceStandsAlone) {
  const auto kernel = emit(library_spec("causal"), sm80_plan());
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  EXPECT_THAT(kernel->source, Not(HasSubstr("#include")));
  EXPECT_THAT(kernel->source, Not(HasSubstr("#pragma once")));
  EXPECT_EQ(count(kernel->source, "// ---- templates/params.h\n"), 1);
  EXPECT_EQ(count(kernel->source, "// ---- templates/kernels/head.cuh\n"), 1);
  EXPECT_EQ(count(kernel->source, "#define ATT_KERNEL_NAME " + kernel->symbol + "\n"), 1);
  EXPECT_THAT(kernel->symbol, StartsWith("att_sm80_fwd_bf16_d128_q128k64s2_"));
}

TEST(Emit, HeaderSaysWhatTheKernelIs) {
  const AttentionSpec spec = library_spec("causal");
  const auto kernel = emit(spec, sm80_plan());
  ASSERT_TRUE(kernel.ok());
  const std::string header = kernel->source.substr(0, kernel->source.find("\n// ----"));
  for (const std::string& part :
       {kernel->symbol, spec_hash(spec), kernel->body_hash,
        "attune generate causal --plan \"" + to_string(sm80_plan()) + "\"", std::string("mask")}) {
    EXPECT_THAT(header, HasSubstr(part));
  }
}

TEST(Emit, BodyDependsOnMeaningAlone) {
  AttentionSpec spec = library_spec("causal");
  const auto before = emit(spec, sm80_plan());
  spec.name = "renamed";
  const auto renamed = emit(spec, sm80_plan());
  EXPECT_EQ(before->body_hash, renamed->body_hash);
  EXPECT_EQ(before->symbol, renamed->symbol);
  EXPECT_NE(before->source, renamed->source);
  KernelPlan plan = sm80_plan();
  std::get<Sm80Plan>(plan.tile).stages = 3;
  EXPECT_NE(emit(spec, plan)->body_hash, before->body_hash);
  spec.softmax_scale.value = 0.25;
  EXPECT_NE(emit(spec, sm80_plan())->body_hash, before->body_hash);
}

TEST(Emit, ANameCannotLeaveItsComment) {
  AttentionSpec spec = library_spec("full");
  spec.name = "x\nint injected;\\\n/*";
  const auto kernel = emit(spec, sm80_plan());
  ASSERT_TRUE(kernel.ok());
  std::string_view header(kernel->source);
  header = header.substr(0, header.find("\n\n// ----"));
  while (!header.empty()) {
    const std::string line(header.substr(0, header.find('\n')));
    EXPECT_THAT(line, StartsWith("// "));
    EXPECT_THAT(line, Not(testing::EndsWith("\\")));
    header.remove_prefix(std::min(line.size() + 1, header.size()));
  }
}

TEST(Emit, DropoutIsCountedInBytes) {
  AttentionSpec spec = library_spec("full");
  spec.dropout.value = 0.1;
  const auto kernel = emit(spec, sm80_plan());
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  EXPECT_THAT(kernel->source, HasSubstr("constexpr unsigned kDropoutDropBelow = 26;"));
  EXPECT_THAT(kernel->source, HasSubstr("constexpr float kDropoutKeepScale = 1.1130434f;"));
}

TEST(Emit, WhereDropoutsSeedLiesIsAConstant) {
  AttentionSpec spec = library_spec("full");
  spec.dropout.value = 0.1;
  const auto of_launch = emit(spec, sm80_plan());
  spec.seed_on_device = true;
  const auto of_device = emit(spec, sm80_plan());
  ASSERT_TRUE(of_launch.ok() && of_device.ok());
  EXPECT_THAT(of_launch->source, HasSubstr("constexpr bool kDropoutSeedOnDevice = false;"));
  EXPECT_THAT(of_device->source, HasSubstr("constexpr bool kDropoutSeedOnDevice = true;"));
  EXPECT_NE(of_device->symbol, of_launch->symbol);
}

TEST(Emit, RefusesWhatTheFamilyCannotDo) {
  AttentionSpec spec = library_spec("full");
  spec.dtype = DType::kFp8E4m3;
  const auto kernel = emit(spec, sm80_plan());
  ASSERT_FALSE(kernel.ok());
  EXPECT_EQ(kernel.error().kind, ErrorKind::kUnsupported);
}

TEST(Flatten, MissingTemplateIsAnError) {
  const auto text = flatten_template("templates/kernels/none.cuh", "");
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().id, "emit-template");
}

TEST(Flatten, HeadTakesThePlaceOfTheExample) {
  const auto text = flatten_template("templates/kernels/head.cuh",
                                     "#include \"templates/params.h\"\n\nint head;\n");
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, testing::EndsWith("\n// ---- templates/kernels/head.cuh\nint head;\n"));
  EXPECT_THAT(*text, HasSubstr("struct ForwardParams"));
}

TEST(Flatten, ConstantsOfNamespacesDoNotBearTheFilesName) {
  const auto text = flatten_template("templates/kernels/head.cuh",
                                     "constexpr int kOne = 1;\n  constexpr int kInBlock = 2;\n");
  ASSERT_TRUE(text.ok());
  EXPECT_NE(text->find("\ninline constexpr int kOne = 1;\n  constexpr int kInBlock"),
            std::string::npos)
      << *text;
}

TEST(Flatten, OtherIncludesAreErrors) {
  for (const char* head : {"#include <cstdint>\n", "#include \"generator/x.hpp\"\n"}) {
    const auto text = flatten_template("templates/kernels/head.cuh", head);
    ASSERT_FALSE(text.ok()) << head;
    EXPECT_EQ(text.error().id, "emit-template");
  }
}

}  // namespace
}  // namespace attune
