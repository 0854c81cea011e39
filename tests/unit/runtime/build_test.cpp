// From plan to code: what is compiled, what comes from the cache, and what a broken cache costs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "runtime/engine/engine.hpp"

namespace attune {
namespace {

namespace fs = std::filesystem;

// Counts; its "machine code" is the symbol.
class FakeCompiler final : public Compiler {
 public:
  std::string identity() const override { return version; }
  bool supports(Target) const override { return true; }
  Result<CompiledKernel> compile(const std::string&, const std::string& symbol, Target) override {
    ++compiles;
    if (broken) return Error{.id = "compile-failed", .message = "no"};
    CompiledKernel kernel;
    kernel.image.assign(symbol.begin(), symbol.end());
    kernel.registers = 99;
    return kernel;
  }
  std::string version = "fake 1";
  std::atomic<int> compiles{0};
  bool broken = false;
};

class Build : public testing::Test {
 protected:
  Build() {
    auto spec = parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: causal\n", "");
    EXPECT_TRUE(spec.ok()) << render(spec.error());
    spec_ = *std::move(spec);
    auto plan = default_plan(spec_, {.q_len = 512, .kv_len = 512}, device_facts(Target::kSm80));
    EXPECT_TRUE(plan.ok()) << render(plan.error());
    plan_ = *plan;
    directory_ = fs::path(testing::TempDir()) /
                 (std::string("attune_build_") +
                  testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  ~Build() override { fs::remove_all(directory_); }

  std::unique_ptr<Store> store(const StoreOptions& options = {}) {
    auto opened = open_store((directory_ / "attune.db").string(), options);
    EXPECT_TRUE(opened.ok()) << render(opened.error());
    return std::move(opened).value();
  }
  BuiltKernel built(Store* store) {
    auto kernel = build(spec_, plan_, compiler_, store);
    EXPECT_TRUE(kernel.ok()) << render(kernel.error());
    return std::move(kernel).value();
  }

  AttentionSpec spec_;
  KernelPlan plan_;
  FakeCompiler compiler_;
  fs::path directory_;
};

TEST_F(Build, CompilesEachTimeWithoutACache) {
  EXPECT_FALSE(built(nullptr).from_cache);
  EXPECT_FALSE(built(nullptr).from_cache);
  EXPECT_EQ(compiler_.compiles, 2);
}

TEST_F(Build, TheSecondBuildIsTakenFromTheCache) {
  const auto cache = store();
  const BuiltKernel first = built(cache.get());
  const BuiltKernel second = built(cache.get());
  EXPECT_EQ(compiler_.compiles, 1);
  EXPECT_TRUE(second.from_cache);
  EXPECT_EQ(second.code.image, first.code.image);
  EXPECT_EQ(second.code.registers, 99);
  EXPECT_EQ(second.symbol, first.symbol);
}

TEST_F(Build, AnotherCompilerVersionOrPlanIsOtherCode) {
  const auto cache = store();
  built(cache.get());
  compiler_.version = "fake 2";
  EXPECT_FALSE(built(cache.get()).from_cache);
  std::get<Sm80Plan>(plan_.tile).frozen_max = !std::get<Sm80Plan>(plan_.tile).frozen_max;
  EXPECT_FALSE(built(cache.get()).from_cache);
  EXPECT_EQ(compiler_.compiles, 3);
}

TEST_F(Build, ACacheThatCannotBeWrittenCostsACompile) {
  store();  // made, closed
  int warnings = 0;
  const auto cache = store({.read_only = true, .warn = [&](const Error&) { ++warnings; }});
  EXPECT_FALSE(built(cache.get()).from_cache);
  EXPECT_FALSE(built(cache.get()).from_cache);
  EXPECT_EQ(compiler_.compiles, 2);
}

TEST_F(Build, AFailureIsTheCompilersAndIsNotStored) {
  const auto cache = store();
  compiler_.broken = true;
  const auto failed = build(spec_, plan_, compiler_, cache.get());
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().id, "compile-failed");
  compiler_.broken = false;
  EXPECT_FALSE(built(cache.get()).from_cache);
}

TEST_F(Build, ThePlanComesFromTheCacheWhenItIsLegalThere) {
  class FakeDevice final : public Device {
   public:
    const DeviceFacts& facts() const override { return facts_; }
    std::string identity() const override { return "fake / 1 SMs / 1 MiB / driver 1"; }
    Result<std::unique_ptr<LoadedKernel>> load(const AttentionSpec&, const KernelPlan&,
                                               std::span<const std::uint8_t>) override {
      return no();
    }
    Result<void*> allocate(std::size_t) override { return no(); }
    void free(void*) override {}
    Status copy_to_device(void*, const void*, std::size_t) override { return no(); }
    Status copy_to_host(void*, const void*, std::size_t) override { return no(); }
    Status fill(void*, std::uint8_t, std::size_t) override { return no(); }
    Status synchronize() override { return no(); }
    Result<double> time_us(const std::function<Status(StreamHandle)>&) override { return no(); }

   private:
    static Error no() { return {.id = "fake", .message = "fake"}; }
    DeviceFacts facts_ = device_facts(Target::kSm80);
  } device;
  const auto cache = store();
  const ProblemShape shape = {.q_len = 512, .kv_len = 512};
  const auto plans = legal_plans(spec_, Family::kSm80, device.facts());
  ASSERT_GT(plans.size(), 2u);
  const KernelPlan tuned = plans.front() == plan_ ? plans.back() : plans.front();
  const auto choose = [&](const ProblemShape& asked) {
    auto choice = choose_plan(spec_, asked, device, cache.get());
    EXPECT_TRUE(choice.ok()) << render(choice.error());
    return std::move(choice).value();
  };
  EXPECT_EQ(choose(shape).source, PlanSource::kCostModel);
  const MeasurementKey key{.spec_hash = spec_hash(spec_),
                           .device = device.identity(),
                           .shape = shape,
                           .protocol = std::string(kMeasurementProtocol)};
  const auto record = [&](const std::string& plan, const std::string& digest, double us) {
    ASSERT_TRUE(cache
                    ->record(key, {.plan = plan,
                                   .build_digest = digest,
                                   .median_us = us,
                                   .spread_us = 0.1,
                                   .samples = 10})
                    .ok());
  };
  record(to_string(tuned), "a", 50);
  EXPECT_EQ(choose(shape).source, PlanSource::kMeasured);
  EXPECT_EQ(choose(shape).plan, tuned);
  EXPECT_EQ(choose(shape).file, cache->path());
  EXPECT_EQ(choose({.q_len = 640, .kv_len = 512}).source, PlanSource::kNearestBucket);
  // What a later version of Attune wrote is passed over for the next best.
  record("sm80 forward sm_80 q9999 warp-drive", "b", 1);
  EXPECT_EQ(choose(shape).source, PlanSource::kMeasured);
  EXPECT_EQ(choose(shape).plan, tuned);
}

}  // namespace
}  // namespace attune
