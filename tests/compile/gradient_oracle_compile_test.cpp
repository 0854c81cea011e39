// The source of the oracle of gradients compiles for every GPU target, by both compilers, whatever
// a spec has; tests/gpu and tests/cpu run it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "runtime/reference/gradient_oracle.hpp"
#include "runtime/support/parallel.hpp"
#include "tests/compile/learning_specs.hpp"
#include "tests/verification/gradient_specs.hpp"

namespace attune {
namespace {

struct NoFunction final : LoadedFunction {
  Status launch(const void*, int, StreamHandle) const override { return ok_status(); }
};

// Takes any code and runs none.
class PaperGpu final : public Device {
 public:
  explicit PaperGpu(Target target) : facts_(device_facts(target)) {}
  const DeviceFacts& facts() const override { return facts_; }
  std::string identity() const override { return "paper"; }
  Result<std::unique_ptr<LoadedKernel>> load(const AttentionSpec&, const KernelPlan&,
                                             std::span<const std::uint8_t>) override {
    return Error{.id = "paper"};
  }
  Result<std::unique_ptr<LoadedFunction>> load_function(const FunctionRecipe&,
                                                        std::span<const std::uint8_t>) override {
    return std::unique_ptr<LoadedFunction>(std::make_unique<NoFunction>());
  }
  Result<void*> allocate(std::size_t) override { return Error{.id = "paper"}; }
  void free(void*) override {}
  Status copy_to_device(void*, const void*, std::size_t) override { return ok_status(); }
  Status copy_to_host(void*, const void*, std::size_t) override { return ok_status(); }
  Status fill(void*, std::uint8_t, std::size_t) override { return ok_status(); }
  Status synchronize() override { return ok_status(); }
  Result<double> time_us(const std::function<Status(StreamHandle)>&) override { return 0.0; }

 private:
  const DeviceFacts facts_;
};

AttentionSpec parsed(std::string_view dtype, std::string_view lines) {
  const auto spec =
      parse_spec(fmt::format("attune: 1\nname: t\ndtype: {}\n{}", dtype, lines), "t.yaml");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return *spec;
}

std::vector<AttentionSpec> every_kind() {
  std::vector<AttentionSpec> specs;
  for (const char* lines : verification::kGradientSpecs) specs.push_back(parsed("bf16", lines));
  for (const char* lines : compile_test::kLearningSpecs) specs.push_back(parsed("fp16", lines));
  specs.push_back(parsed("fp32", verification::kGradientSpecs[5]));
  specs.push_back(parsed("fp32", "precision: tf32\nhead_dim: 128\n"));
  specs.push_back(parsed("bf16", "head_dim: 64\nsoftmax_scale: float\ndropout: float\n"));
  return specs;
}

// What did not compile.
std::vector<std::string> failures(Compiler& compiler, Target target,
                                  const std::vector<AttentionSpec>& specs) {
  std::vector<std::string> errors(specs.size());
  parallel_for(static_cast<std::int64_t>(specs.size()), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    PaperGpu device(target);
    const auto oracle = GradientOracle::make(device, compiler, specs[at]);
    if (!oracle.ok()) errors[at] = render(oracle.error()).substr(0, 2000);
  });
  std::erase(errors, "");
  return errors;
}

constexpr Target kGpus[] = {Target::kSm80,  Target::kSm86,  Target::kSm89,
                            Target::kSm90a, Target::kSm100, Target::kSm120};

class GradientOracleSource : public testing::TestWithParam<const char*> {};

TEST_P(GradientOracleSource, CompilesForEveryKindOfSpec) {
  const auto compiler = open_named_compiler(GetParam());
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  for (const std::string& error : failures(**compiler, Target::kSm90a, every_kind()))
    ADD_FAILURE() << error;
}

TEST_P(GradientOracleSource, CompilesForEveryTarget) {
  const auto compiler = open_named_compiler(GetParam());
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  const std::vector<AttentionSpec> specs = {parsed("bf16", verification::kGradientSpecs[5])};
  for (const Target target : kGpus) {
    if (!(*compiler)->supports(target)) continue;
    for (const std::string& error : failures(**compiler, target, specs))
      ADD_FAILURE() << to_string(target) << ": " << error;
  }
}

INSTANTIATE_TEST_SUITE_P(Compilers, GradientOracleSource, testing::Values("nvrtc", "llvm"));

TEST(GradientOracle, RefusesPackedSequences) {
  PaperGpu device(Target::kSm90a);
  const auto compiler = open_compiler(Target::kSm90a);
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  const auto oracle =
      GradientOracle::make(device, **compiler, parsed("bf16", "head_dim: 64\nlayout: thd\n"));
  ASSERT_FALSE(oracle.ok());
  EXPECT_EQ(oracle.error().id, "oracle-unsupported");
}

}  // namespace
}  // namespace attune
