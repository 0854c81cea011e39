#include "tests/gpu/kernel_bank.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "runtime/support/parallel.hpp"

namespace attune::gpu_test {
namespace {

std::string key_of(const AttentionSpec& spec, const KernelPlan& plan) {
  return spec_hash(spec) + ' ' + to_string(plan);
}

}  // namespace

KernelBank& KernelBank::instance() {
  static KernelBank bank;
  return bank;
}

KernelBank::KernelBank() {
  auto device = open_cuda_device(0);
  // ATTUNE_TEST_COMPILER=llvm runs the whole suite on what the other compiler makes.
  const char* chosen = std::getenv("ATTUNE_TEST_COMPILER");
  auto compiler = chosen != nullptr && std::string_view(chosen) == "llvm" ? open_llvm_compiler()
                                                                          : open_nvrtc_compiler();
  if (!device.ok()) {
    missing_ = "no GPU: " + device.error().message;
  } else if (!compiler.ok()) {
    missing_ = "no compiler: " + compiler.error().message;
  } else {
    device_ = std::move(device).value();
    compiler_ = std::move(compiler).value();
  }
}

void KernelBank::prepare(const std::vector<Request>& requests) {
  if (!missing_.empty()) return;
  std::map<std::string, const Request*> wanted;
  for (const Request& request : requests) {
    const std::string key = key_of(request.spec, request.plan);
    if (!kernels_.contains(key)) wanted.emplace(key, &request);
  }
  const std::vector<std::pair<std::string, const Request*>> list(wanted.begin(), wanted.end());
  std::mutex mutex;
  parallel_for(static_cast<std::int64_t>(list.size()), [&](std::int64_t i) {
    const auto& [key, request] = list[static_cast<std::size_t>(i)];
    const auto make = [&]() -> Result<std::shared_ptr<LoadedKernel>> {
      ATT_TRY(const BuiltKernel built, build(request->spec, request->plan, *compiler_, nullptr));
      ATT_TRY(std::unique_ptr<LoadedKernel> loaded,
              device_->load(request->spec, request->plan, built.code.image));
      return std::shared_ptr<LoadedKernel>(std::move(loaded));
    };
    auto kernel = make();
    const std::lock_guard lock(mutex);
    kernels_.emplace(key, std::move(kernel));
  });
}

Result<std::shared_ptr<LoadedKernel>> KernelBank::get(const AttentionSpec& spec,
                                                      const KernelPlan& plan) {
  prepare({{spec, plan}});
  return kernels_.at(key_of(spec, plan));
}

std::vector<KernelPlan> plans_of_families(const AttentionSpec& spec, const ProblemShape& shape,
                                          const DeviceFacts& facts) {
  std::vector<KernelPlan> chosen;
  const auto families = families_for(spec, facts.target);
  if (!families.ok()) return chosen;
  for (const Family family : *families) {
    const std::vector<KernelPlan> plans = legal_plans(spec, family, facts);
    const auto cost = [&](const KernelPlan& plan) { return cost_us(spec, plan, shape, facts); };
    const auto best = std::ranges::min_element(plans, {}, cost);
    if (best != plans.end()) chosen.push_back(*best);
  }
  return chosen;
}

AttentionSpec spec_of(const std::string& yaml) {
  auto spec = parse_spec("attune: 1\n" + yaml, "test.yaml");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return spec.ok() ? std::move(spec).value() : AttentionSpec{};
}

}  // namespace attune::gpu_test
