// Code that a launch builds: which one serves which pages, by whose compiler, and beside captures.
#include <algorithm>

#include "runtime/device/cuda_api.hpp"
#include "tests/unit/runtime/dispatcher_fixture.hpp"

namespace attune::runtime_test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Threads that may load during a capture are those that hold what spare_captures() returned.
thread_local int spared = 0;

class CapturingDevice final : public Device {
 public:
  bool is_full = false;
  const DeviceFacts& facts() const override { return fake_.facts(); }
  std::string identity() const override { return fake_.identity(); }
  std::shared_ptr<void> spare_captures() override {
    ++spared;
    return {nullptr, [](void*) { --spared; }};
  }
  Result<std::unique_ptr<LoadedKernel>> load(const AttentionSpec& spec, const KernelPlan& plan,
                                             std::span<const std::uint8_t> image) override {
    if (is_full) return Error{.id = std::string(kCudaError), .message = "out of memory"};
    if (spared == 0) return Error{.id = "capture-ended", .message = "a load ended a capture"};
    ATT_TRY(auto loaded, fake_.load(spec, plan, image));
    const auto* const tile = std::get_if<Sm90aPlan>(&plan.tile);
    const bool in_boxes = tile != nullptr && tile->copied_rows != CopiedRows::kAll;
    return std::unique_ptr<LoadedKernel>(std::make_unique<Kernel>(std::move(loaded), in_boxes));
  }
  Result<void*> allocate(std::size_t bytes) override { return fake_.allocate(bytes); }
  void free(void*) override {}
  Status copy_to_device(void* to, const void* from, std::size_t bytes) override {
    return fake_.copy_to_device(to, from, bytes);
  }
  Status copy_to_host(void* to, const void* from, std::size_t bytes) override {
    return fake_.copy_to_host(to, from, bytes);
  }
  Status fill(void* to, std::uint8_t byte, std::size_t bytes) override {
    return fake_.fill(to, byte, bytes);
  }
  Status synchronize() override { return fake_.synchronize(); }
  Result<double> time_us(const std::function<Status(StreamHandle)>& work) override {
    return fake_.time_us(work);
  }

 private:
  // Boxes are of pages whose sizes are multiples of 16.
  class Kernel final : public LoadedKernel {
   public:
    Kernel(std::unique_ptr<LoadedKernel> fake, bool in_boxes)
        : fake_(std::move(fake)), in_boxes_(in_boxes) {}
    Status launch(const att::LaunchParams& params, void* workspace,
                  StreamHandle stream) const override {
      if (in_boxes_ && params.page_table.page_size % 16 != 0)
        return Error{.id = std::string(kStridesUnsupported), .message = "no boxes"};
      return fake_->launch(params, workspace, stream);
    }
    std::size_t workspace_bytes(const ProblemShape& shape) const override {
      return fake_->workspace_bytes(shape);
    }

   private:
    const std::unique_ptr<LoadedKernel> fake_;
    const bool in_boxes_;
  };

  FakeDevice fake_{"fake", Target::kSm90a};
};

class CodeOnDemandTest : public DispatcherTest {
 protected:
  static constexpr ProblemShape kPrefill{
      .batch = 4, .heads = 32, .kv_heads = 8, .q_len = 4096, .kv_len = 4096};

  CodeOnDemandTest() {
    const std::string text =
        "attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nlayout: paged\nmask: causal\n";
    spec_ = std::make_shared<const AttentionSpec>(parse_spec(text, "").value());
  }
  std::shared_ptr<Workshop> on_hopper(CompilerOpener compilers) const {
    return std::make_shared<Workshop>(std::make_unique<CapturingDevice>(),
                                      Overlay::open({.user_file = cache_file()}),
                                      std::move(compilers));
  }
  // The symbol of the code that launches on pages of that size.
  static std::string symbol_of(const KernelEntry& kernel, int page_size) {
    LaunchRecord record;
    att::LaunchParams params{};
    params.o = &record;
    params.page_table.page_size = page_size;
    const Status status = kernel.launch(params, nullptr, nullptr);
    EXPECT_TRUE(status.ok()) << render(status.error());
    return record.symbol;
  }
  // By its text, of the version's plan: boxes, V by rows, all by rows.
  KernelPlan plan_with(const KernelEntry& kernel, const std::string& more) const {
    return parse_plan(to_string(kernel.version().choice.plan) + more).value();
  }
};

TEST_F(CodeOnDemandTest, PagesHaveTheCodeThatIsMadeForThem) {
  Dispatcher dispatcher(on_hopper(opener(compiler_)), false);
  const Handle kernel = get(dispatcher, kPrefill);
  ASSERT_NE(kernel, nullptr);
  ASSERT_THAT(to_string(kernel->version().choice.plan), Not(HasSubstr("rows")));
  EXPECT_EQ(compiler_->compiles, 1);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(symbol_of(*kernel, 64), symbol(plan_with(*kernel, "")));
    EXPECT_EQ(symbol_of(*kernel, 16), symbol(plan_with(*kernel, " vrows")));
    EXPECT_EQ(symbol_of(*kernel, 48), symbol(plan_with(*kernel, " vrows")));
    EXPECT_EQ(symbol_of(*kernel, 8), symbol(plan_with(*kernel, " rows")));
    EXPECT_EQ(compiler_->compiles, 3);
  }
}

// Threads that come together wait for one compile.
TEST_F(CodeOnDemandTest, IsBuiltOnce) {
  Dispatcher dispatcher(on_hopper(opener(compiler_)), false);
  const Handle kernel = get(dispatcher, kPrefill);
  ASSERT_NE(kernel, nullptr);
  const auto gate = hold_compiles();
  std::vector<std::future<std::string>> launches;
  for (int i = 0; i < 8; ++i)
    launches.push_back(std::async(
        std::launch::async, [&, size = i % 2 == 0 ? 16 : 8] { return symbol_of(*kernel, size); }));
  gate->set_value();
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(launches[static_cast<std::size_t>(i)].get(),
              symbol(plan_with(*kernel, i % 2 == 0 ? " vrows" : " rows")));
  EXPECT_EQ(compiler_->compiles, 3);
}

TEST_F(CodeOnDemandTest, WhatCannotBeBuiltIsTriedOnce) {
  Dispatcher dispatcher(on_hopper(opener(compiler_)), false);
  const Handle kernel = get(dispatcher, kPrefill);
  ASSERT_NE(kernel, nullptr);
  compiler_->fails_at = symbol(plan_with(*kernel, " vrows"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(symbol_of(*kernel, 16), symbol(plan_with(*kernel, "")));
  EXPECT_EQ(compiler_->compiles, 2);
  compiler_->fails_at = symbol(plan_with(*kernel, " rows"));
  const std::string other = symbol_of(*kernel, 8);
  EXPECT_NE(other, compiler_->fails_at);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(symbol_of(*kernel, 8), other);
  EXPECT_EQ(compiler_->compiles, 4);
}

// A device without memory for it now may have some at the next launch.
TEST_F(CodeOnDemandTest, WhatTheDriverRefusesIsTriedAgain) {
  Dispatcher dispatcher(on_hopper(opener(compiler_)), false);
  const Handle kernel = get(dispatcher, kPrefill);
  ASSERT_NE(kernel, nullptr);
  static_cast<CapturingDevice&>(kernel->device()).is_full = true;
  EXPECT_EQ(symbol_of(*kernel, 16), symbol(plan_with(*kernel, "")));
  static_cast<CapturingDevice&>(kernel->device()).is_full = false;
  EXPECT_EQ(symbol_of(*kernel, 16), symbol(plan_with(*kernel, " vrows")));
}

TEST_F(CodeOnDemandTest, IsOfTheWinnersCompiler) {
  const auto other = std::make_shared<CompilerState>();
  other->version = "other 2";
  const KernelPlan plan = default_plan(*spec_, kPrefill, device_facts(Target::kSm90a)).value();
  record_winner(plan, kPrefill, 10, "fake", "other 2");
  Dispatcher dispatcher(on_hopper(opener_of({compiler_, other})), false);
  const Handle kernel = get(dispatcher, kPrefill);
  ASSERT_NE(kernel, nullptr);
  ASSERT_EQ(kernel->version().code.compiler, "other 2");
  EXPECT_EQ(symbol_of(*kernel, 16), symbol(plan_with(*kernel, " vrows")));
  EXPECT_EQ(symbol_of(*kernel, 8), symbol(plan_with(*kernel, " rows")));
  EXPECT_EQ(other->compiles, 3);
  EXPECT_EQ(compiler_->compiles, 0);
}

}  // namespace
}  // namespace attune::runtime_test
