// Hopper's forward plans that copy K and V row by row from pages of any size: random batches by
// tiles of all kinds, and faults planted in the copies.
#include <fmt/format.h>

#include "tests/gpu/kernel_bank.hpp"
#include "tests/gpu/page_row_faults.hpp"
#include "tests/gpu/planting.hpp"
#include "tests/verification/paged_checks.hpp"

namespace attune::gpu_test {
namespace {

// Tiles whose last 32 rows are 16, stages of all numbers, pieces, heads abreast.
constexpr const char* kTiles[] = {"w2 k128 s2 b2 qreg c1 longest g16 frozen tma rows",
                                  "w3 k64 s3 b1 c1 longest g16 frozen tma heads rows",
                                  "w2 k80 s2 b1 c1 longest g16 frozen tma heads rows p16",
                                  "w1 k64 s4 b1 qreg c1 persistent g1 frozen tma rows",
                                  "w2 k64 s2 b1 c1 longest g8 frozen tma rows p16",
                                  "w2 k128 s2 b2 qreg c1 longest g16 frozen tma vrows",
                                  "w3 k64 s3 b1 c1 longest g16 frozen tma heads vrows",
                                  "w2 k80 s2 b1 c1 longest g16 frozen tma heads vrows p16",
                                  "w2 k64 s2 b1 c1 longest g8 frozen tma vrows p16"};

class PageRows : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    if (bank.device().facts().target != Target::kSm90a) GTEST_SKIP() << "the plans are for sm_90a";
  }
  static AttentionSpec spec() {
    return spec_of(fmt::format("name: t\ndtype: bf16\nlayout: paged\n{}\n", GetParam()));
  }
  // The plans that the spec has registers for.
  static std::vector<Request> requests(const AttentionSpec& spec,
                                       CopiedRows rows = CopiedRows::kAll) {
    std::vector<Request> requests;
    for (const char* tile : kTiles) {
      const KernelPlan plan = parse_plan(fmt::format("sm90a forward sm_90a {}", tile)).value();
      if (std::get<Sm90aPlan>(plan.tile).copied_rows == rows &&
          check_plan(spec, plan, KernelBank::instance().device().facts()).ok())
        requests.push_back({spec, plan});
    }
    EXPECT_FALSE(requests.empty());
    return requests;
  }
};

constexpr const char* kSpecs[] = {
    "head_dim: 128\nmask: causal", "head_dim: 64",
    "head_dim: 80\nmask: causal and (q_pos - kv_idx < 90 or kv_idx < 4)",
    "head_dim: 256\nmask: causal", "head_dim: {qk: 192, v: 128}\nmask: causal"};

TEST_P(PageRows, AreRight) {
  KernelBank& bank = KernelBank::instance();
  const std::vector<Request> all = requests(spec());
  bank.prepare(all);
  for (std::uint64_t seed = 40; seed < 56 && !HasFailure(); ++seed) {
    const paged::PagedCase problem = paged::random_case(spec(), Arithmetic::kMatrixUnit, seed);
    for (const Request& request : all) {
      SCOPED_TRACE(to_string(request.plan));
      const auto kernel = bank.get(request.spec, request.plan);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      check_case(bank.device(), **kernel, request.spec, problem);
    }
  }
}

// In pages of 16 rows and more, whose K comes by boxes.
TEST_P(PageRows, OfValuesAreRight) {
  KernelBank& bank = KernelBank::instance();
  const std::vector<Request> all = requests(spec(), CopiedRows::kValues);
  bank.prepare(all);
  const auto cases = paged::paged_cases(spec(), Arithmetic::kMatrixUnit, 12, 90);
  const auto garbage = paged::garbage_problems(spec(), 10);
  for (const Request& request : all) {
    SCOPED_TRACE(to_string(request.plan));
    const auto kernel = bank.get(request.spec, request.plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    paged::check_cases(bank.device(), **kernel, request.spec, cases);
    paged::check_garbage(bank.device(), **kernel, request.spec, garbage);
  }
}

TEST_P(PageRows, FaultsAreSeen) {
  AttentionSpec of_pages = spec();
  of_pages.page_size = 3;
  const ProblemShape shape = {.batch = 3, .heads = 6, .kv_heads = 2, .q_len = 450, .kv_len = 1333};
  EXPECT_TRUE(
      are_found(planted::page_row_faults(), of_pages, shape, requests(of_pages).front().plan));
  of_pages.page_size = 16;
  EXPECT_TRUE(are_found(planted::value_row_faults(), of_pages, shape,
                        requests(of_pages, CopiedRows::kValues).front().plan));
}

INSTANTIATE_TEST_SUITE_P(Specs, PageRows, testing::ValuesIn(kSpecs),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

}  // namespace
}  // namespace attune::gpu_test
