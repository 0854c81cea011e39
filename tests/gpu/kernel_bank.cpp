#include "tests/gpu/kernel_bank.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
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
  // ATTUNE_TEST_COMPILER=llvm runs the whole suite on what another compiler makes; with it
  // ATTUNE_TEST_DEVICE=cpu runs tests of random specs where there is no GPU.
  const char* named = std::getenv("ATTUNE_TEST_DEVICE");
  auto device = named != nullptr ? open_device(named) : open_cuda_device(0);
  const char* chosen = std::getenv("ATTUNE_TEST_COMPILER");
  auto compiler = open_named_compiler(chosen != nullptr ? chosen : "nvrtc");
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

bool KernelBank::gives_up(const AttentionSpec& spec, const KernelPlan& plan) {
  if (compiler_->identity().starts_with("nvrtc")) return false;
  const auto kernel = get(spec, plan);
  return !kernel.ok() &&
         kernel.error().message.find("Potential Performance Loss") != std::string::npos;
}

namespace {

// The cheapest few plans of each family that serves the spec.
std::vector<std::vector<KernelPlan>> cheapest(const AttentionSpec& spec, const ProblemShape& shape,
                                              const DeviceFacts& facts, std::size_t few) {
  std::map<Family, std::vector<KernelPlan>> of_family;
  const auto plans = plans_by_cost(spec, shape, facts);
  if (!plans.ok()) return {};
  for (const KernelPlan& plan : *plans) {
    if (plan.residues > 1) continue;  // takes some lengths alone; residues_test.cpp is about those
    auto& chosen = of_family[plan.family()];
    if (chosen.size() < few) chosen.push_back(plan);
  }
  std::vector<std::vector<KernelPlan>> found;
  for (auto& [family, chosen] : of_family) found.push_back(std::move(chosen));
  return found;
}

}  // namespace

bool is_frozen(const KernelPlan& plan) {
  return to_string(plan).find("frozen") != std::string::npos;
}

bool will_run(std::string_view suite, const std::string& parameter) {
  const testing::UnitTest& unit = *testing::UnitTest::GetInstance();
  for (int s = 0; s < unit.total_test_suite_count(); ++s) {
    const testing::TestSuite& candidate = *unit.GetTestSuite(s);
    if (candidate.name() != suite) continue;
    for (int t = 0; t < candidate.total_test_count(); ++t) {
      const testing::TestInfo& test = *candidate.GetTestInfo(t);
      if (test.should_run() && std::string(test.name()).ends_with("/" + parameter)) return true;
    }
  }
  return false;
}

std::vector<KernelPlan> cheapest_of_families(const AttentionSpec& spec, const ProblemShape& shape,
                                             const DeviceFacts& facts) {
  std::vector<KernelPlan> chosen;
  for (const auto& plans : cheapest(spec, shape, facts, 1)) chosen.push_back(plans.front());
  return chosen;
}

std::vector<KernelPlan> plans_of_families(const AttentionSpec& spec, const ProblemShape& shape,
                                          const DeviceFacts& facts) {
  std::vector<KernelPlan> chosen;
  for (const auto& plans : cheapest(spec, shape, facts, 5)) {
    const auto built = std::ranges::find_if(plans, [&](const KernelPlan& plan) {
      return !KernelBank::instance().gives_up(spec, plan);
    });
    if (built == plans.end()) {
      ADD_FAILURE() << spec.name << ": none of the cheapest plans can be built, "
                    << to_string(plans.front()) << " first";
      continue;
    }
    if (built != plans.begin()) {
      std::printf("given up: %s: %s\n", spec.name.c_str(), to_string(plans.front()).c_str());
    }
    chosen.push_back(*built);
  }
  return chosen;
}

BackwardPlans cheapest_of_both_passes(const AttentionSpec& spec, const ProblemShape& shape,
                                      const DeviceFacts& facts) {
  const auto forward = families_for(spec, facts.target, Pass::kForward);
  const auto backward = families_for(spec, facts.target, Pass::kBackward);
  if (!forward.ok() || !backward.ok()) return {};
  const auto cheapest_of = [&](Family family, Pass pass) {
    std::vector<KernelPlan> all = legal_plans(spec, family, facts, pass);
    std::erase_if(all, [](const KernelPlan& plan) { return plan.residues > 1; });
    return *std::ranges::min_element(
        all, {}, [&](const KernelPlan& plan) { return cost_us(spec, plan, shape, facts); });
  };
  BackwardPlans plans{.forward = cheapest_of(forward->front(), Pass::kForward), .backward = {}};
  for (const Family family : *backward)
    plans.backward.push_back(cheapest_of(family, Pass::kBackward));
  return plans;
}

std::vector<Request> requests_of(const AttentionSpec& spec, const BackwardPlans& plans) {
  if (plans.backward.empty()) return {};
  std::vector<Request> requests = {{spec, plans.forward}};
  for (const KernelPlan& plan : plans.backward) requests.push_back({spec, plan});
  return requests;
}

AttentionSpec spec_of(const std::string& yaml) {
  auto spec = parse_spec("attune: 1\n" + yaml, "test.yaml");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return spec.ok() ? std::move(spec).value() : AttentionSpec{};
}

}  // namespace attune::gpu_test
