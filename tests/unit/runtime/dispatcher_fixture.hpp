// What tests of the dispatcher share: kernels as an application holds them, and a compiler that can
// be held back.
#pragma once

#include <gmock/gmock.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/dispatcher.hpp"
#include "tests/unit/runtime/fakes.hpp"

namespace attune::runtime_test {

// A kernel as an application holds it.
struct Release {
  void operator()(KernelEntry* entry) const { entry->release(); }
};
using Handle = std::unique_ptr<KernelEntry, Release>;

class DispatcherTest : public EngineTest {
 protected:
  Handle get(Dispatcher& dispatcher, const ProblemShape& shape = kShape,
             Pass pass = Pass::kForward) const {
    auto entry = dispatcher.get(spec_, SpecId::from_hash(spec_hash(*spec_)), shape, pass);
    EXPECT_TRUE(entry.ok()) << render(entry.error());
    return Handle(entry.ok() ? *entry : nullptr);
  }
  static LaunchRecord launched(const KernelEntry& entry) {
    LaunchRecord record;
    att::LaunchParams params{};
    params.o = &record;
    const Status status = entry.launch(params, nullptr, nullptr);
    EXPECT_TRUE(status.ok()) << render(status.error());
    return record;
  }
  std::string symbol(const KernelPlan& plan) const { return launch_recipe(*spec_, plan).symbol; }
  static std::vector<std::string> plans_failed(const KernelEntry& entry) {
    std::vector<std::string> plans;
    for (const FailedPlan& plan : entry.failed_plans()) plans.push_back(plan.plan);
    return plans;
  }
  // What another process compiled before.
  void compile_into_cache(const KernelPlan& plan) {
    ASSERT_TRUE(workshop(opener(compiler_))->load(*spec_, plan).ok());
    compiler_->compiles = 0;
  }
  // Compiles wait until the returned promise is kept.
  std::shared_ptr<std::promise<void>> hold_compiles() {
    auto gate = std::make_shared<std::promise<void>>();
    compiler_->on_compile = [opened = gate->get_future().share()] { opened.wait(); };
    return gate;
  }
};

}  // namespace attune::runtime_test
