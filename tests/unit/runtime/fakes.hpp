// A device, a compiler and a cache directory for tests of the engine: no GPU, no LLVM.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/device/workspace.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/engine/workshop.hpp"

namespace attune::runtime_test {

// Its "machine code" is the symbol. Shared between openers: what a Workshop opens forwards here.
struct CompilerState {
  std::atomic<int> compiles{0};
  std::atomic<bool> broken{false};
  std::string version = "fake 1";
  std::string fails_at;  // the symbol that it cannot compile
  // Called at the start of each compile, from the thread that compiles.
  std::function<void()> on_compile;
};

class FakeCompiler final : public Compiler {
 public:
  explicit FakeCompiler(std::shared_ptr<CompilerState> state) : state_(std::move(state)) {}
  std::string identity() const override { return state_->version; }
  bool supports(Target) const override { return true; }
  Result<CompiledKernel> compile(const std::string&, const std::string& symbol, Target) override {
    if (state_->on_compile) state_->on_compile();
    ++state_->compiles;
    if (state_->broken || symbol == state_->fails_at)
      return Error{.id = "compile-failed", .message = "no"};
    CompiledKernel kernel;
    kernel.image.assign(symbol.begin(), symbol.end());
    kernel.registers = 99;
    return kernel;
  }

 private:
  const std::shared_ptr<CompilerState> state_;
};

inline CompilerOpener opener(std::shared_ptr<CompilerState> state) {
  return [state](Target, const std::string&) -> Result<std::unique_ptr<Compiler>> {
    return std::unique_ptr<Compiler>(std::make_unique<FakeCompiler>(state));
  };
}

// A machine with several; the first is the target's own.
inline CompilerOpener opener_of(std::vector<std::shared_ptr<CompilerState>> states) {
  return [states](Target, const std::string& family) -> Result<std::unique_ptr<Compiler>> {
    for (const auto& state : states) {
      if (family.empty() || compiler_family(state->version) == family)
        return std::unique_ptr<Compiler>(std::make_unique<FakeCompiler>(state));
    }
    return Error{.kind = ErrorKind::kUnavailable, .id = "other-missing", .message = "no " + family};
  };
}

// A machine with nothing but a driver.
inline CompilerOpener no_compiler() {
  return [](Target, const std::string&) -> Result<std::unique_ptr<Compiler>> {
    return Error{.kind = ErrorKind::kUnavailable, .id = "nvrtc-missing", .message = "no NVRTC"};
  };
}

// A launch writes the kernel's symbol and the device's name where `o` points.
struct LaunchRecord {
  std::string symbol, device;
};

class FakeKernel final : public LoadedKernel {
 public:
  FakeKernel(std::string device, const AttentionSpec& spec, LaunchRecipe recipe)
      : device_(std::move(device)), spec_(spec), recipe_(std::move(recipe)) {}
  Status launch(const att::LaunchParams& params, void*, StreamHandle) const override {
    auto& record = *static_cast<LaunchRecord*>(params.o);
    record.symbol = recipe_.symbol;
    record.device = device_;
    return ok_status();
  }
  std::size_t workspace_bytes(const ProblemShape& shape) const override {
    return attune::workspace_bytes(spec_, recipe_, shape);
  }

 private:
  const std::string device_;
  const AttentionSpec spec_;
  const LaunchRecipe recipe_;
};

class FakeDevice final : public Device {
 public:
  explicit FakeDevice(std::string name = "fake", Target target = Target::kSm80)
      : name_(std::move(name)), facts_(device_facts(target)) {}
  const DeviceFacts& facts() const override { return facts_; }
  std::string identity() const override { return name_ + " / 1 SMs / 1 MiB / driver 1"; }
  // Refuses code that is not of this plan.
  Result<std::unique_ptr<LoadedKernel>> load(const AttentionSpec& spec, const KernelPlan& plan,
                                             std::span<const std::uint8_t> image) override {
    LaunchRecipe recipe = launch_recipe(spec, plan);
    if (std::string(image.begin(), image.end()) != recipe.symbol) {
      return Error{.id = "wrong-code", .message = "code of another plan"};
    }
    return std::unique_ptr<LoadedKernel>(
        std::make_unique<FakeKernel>(name_, spec, std::move(recipe)));
  }
  Result<void*> allocate(std::size_t) override { return no(); }
  void free(void*) override {}
  Status copy_to_device(void*, const void*, std::size_t) override { return no(); }
  Status copy_to_host(void*, const void*, std::size_t) override { return no(); }
  Status fill(void*, std::uint8_t, std::size_t) override { return no(); }
  Status synchronize() override { return no(); }
  Result<double> time_us(const std::function<Status(StreamHandle)>&) override { return no(); }

 private:
  static Error no() { return {.id = "fake", .message = "a fake device has no memory"}; }
  const std::string name_;
  const DeviceFacts facts_;
};

// A directory of the test's own, removed at its end, and a causal spec.
class EngineTest : public testing::Test {
 protected:
  static constexpr ProblemShape kShape{
      .batch = 1, .heads = 8, .kv_heads = 8, .q_len = 512, .kv_len = 512};

  EngineTest() {
    auto spec = parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: causal\n", "");
    EXPECT_TRUE(spec.ok()) << render(spec.error());
    spec_ = std::make_shared<const AttentionSpec>(*std::move(spec));
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = std::filesystem::path(testing::TempDir()) /
                 (std::string("attune_") + test->test_suite_name() + "_" + test->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  ~EngineTest() override { std::filesystem::remove_all(directory_); }

  std::string cache_file() const { return (directory_ / "attune.db").string(); }
  std::shared_ptr<Workshop> workshop(CompilerOpener compilers, const std::string& device = "fake",
                                     std::vector<std::string> system_files = {}) const {
    return std::make_shared<Workshop>(
        std::make_unique<FakeDevice>(device),
        Overlay::open({.user_file = cache_file(), .system_files = std::move(system_files)}),
        std::move(compilers));
  }
  // What a sweep would leave: `plan` is the fastest on `shape`.
  void record_winner(const KernelPlan& plan, const ProblemShape& shape = kShape, double us = 10,
                     const std::string& device = "fake", const std::string& compiler = "",
                     const MaskData& data = {}) const {
    auto store = open_store(cache_file());
    ASSERT_TRUE(store.ok()) << render(store.error());
    const Status recorded = (*store)->record({.spec_hash = spec_hash(*spec_),
                                              .device = FakeDevice(device).identity(),
                                              .shape = shape,
                                              .protocol = std::string(kMeasurementProtocol),
                                              .pass = plan.pass,
                                              .data = data},
                                             {.plan = to_string(plan),
                                              .build_digest = to_string(plan) + compiler,
                                              .compiler = compiler,
                                              .median_us = us,
                                              .spread_us = 0.1,
                                              .samples = 10});
    ASSERT_TRUE(recorded.ok()) << render(recorded.error());
  }
  KernelPlan model_plan(const ProblemShape& shape = kShape) const {
    return *default_plan(*spec_, shape, device_facts(Target::kSm80));
  }
  // A legal plan that the cost model does not choose for kShape; another one for each `index`.
  KernelPlan other_plan(int index = 0) const {
    for (const KernelPlan& plan : legal_plans(*spec_, Family::kSm80, device_facts(Target::kSm80))) {
      if (plan != model_plan() && index-- == 0) return plan;
    }
    ADD_FAILURE() << "too few legal plans";
    return {};
  }

  std::shared_ptr<const AttentionSpec> spec_;
  std::filesystem::path directory_;
  std::shared_ptr<CompilerState> compiler_ = std::make_shared<CompilerState>();
};

}  // namespace attune::runtime_test
