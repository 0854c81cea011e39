// A thousand random batches of packed sequences and of sequences in pages, of up to 5000 keys each,
// by every family that serves the spec. Numbers are others at every run; ATTUNE_TEST_SEED repeats
// one.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "generator/plan/any_pages.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/packed_checks.hpp"
#include "tests/verification/paged_checks.hpp"

namespace attune::gpu_test {
namespace {

constexpr int kBatches = 46;  // of each of 22 specs
static_assert(kBatches * (std::size(packed::kSpecs) + std::size(paged::kSpecs)) >= 1000);

constexpr int kLongest = 5000;
// Of packed sequences one batch in so many has a few long ones: its tokens are as many as its keys.
constexpr int kOneInSoMany = 8, kFew = 3;

constexpr ProblemShape kTypical{
    .batch = 8, .heads = 4, .kv_heads = 2, .q_len = 2000, .kv_len = 2000};

struct Case {
  std::string name;
  std::string yaml;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> cases() {
  std::vector<Case> found;
  const auto add = [&](const char* kind, std::span<const char* const> specs) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      found.push_back(
          {fmt::format("{}{}", kind, i),
           fmt::format("name: t\ndtype: {}\n{}", i % 2 == 0 ? "bf16" : "fp16", specs[i])});
    }
  };
  add("Packed", packed::kSpecs);
  add("Paged", paged::kSpecs);
  return found;
}

std::uint64_t first_seed() {
  const char* text = std::getenv("ATTUNE_TEST_SEED");
  return text == nullptr ? std::random_device()() : std::strtoull(text, nullptr, 10);
}

class RandomBatches : public testing::TestWithParam<Case> {};

TEST_P(RandomBatches, AreRightByEveryFamily) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec = spec_of(GetParam().yaml);
  std::vector<Request> requests;
  for (const KernelPlan& plan : plans_of_families(spec, kTypical, bank.device().facts())) {
    requests.push_back({spec, plan});
    const DeviceFacts& facts = bank.device().facts();
    for (const auto& twin :
         {plan_for_any_pages(spec, plan, facts), plan_for_small_boxes(spec, plan, facts)})
      if (twin) requests.push_back({spec, *twin});
  }
  bank.prepare(requests);
  const std::uint64_t first = first_seed();
  std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + kBatches - 1));
  // Each family's kernel has the same problem: to make it takes longer than to launch it.
  const auto check = [&](const auto& problem) {
    for (const Request& request : requests) {
      SCOPED_TRACE(to_string(request.plan));
      const auto kernel = bank.get(spec, request.plan);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      check_case(bank.device(), **kernel, spec, problem);
    }
  };
  for (std::uint64_t seed = first; seed < first + kBatches && !HasFailure(); ++seed) {
    if (is_paged(spec)) {
      check(paged::random_case(spec, Arithmetic::kMatrixUnit, seed, kLongest));
    } else if (seed % kOneInSoMany == 0) {
      check(packed::random_case(spec, Arithmetic::kMatrixUnit, seed, kFew, kLongest + 1));
    } else {
      check(packed::random_case(spec, Arithmetic::kMatrixUnit, seed));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, RandomBatches, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace attune::gpu_test
