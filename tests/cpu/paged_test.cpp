// Paged sequences on the CPU family.
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/reference/element_bits.hpp"
#include "runtime/support/problem_layout.hpp"
#include "tests/cpu/cpu_test.hpp"
#include "tests/verification/paged_checks.hpp"
#include "tests/verification/shared_prefix.hpp"

namespace attune {
namespace {

constexpr ProblemShape kTypical{
    .batch = 8, .heads = 4, .kv_heads = 2, .q_len = 2000, .kv_len = 2000};

class CpuPaged : public testing_support::CpuTest {
 protected:
  // Two plans.
  std::vector<KernelPlan> plans_of(const AttentionSpec& spec) {
    const std::vector<KernelPlan> plans = legal_plans(spec, Family::kCpu, device_->facts());
    const auto cheapest = default_plan(spec, kTypical, device_->facts());
    EXPECT_TRUE(cheapest.ok()) << render(cheapest.error());
    return {*cheapest, plans.front()};
  }
};

// One test: compiling the kernels and the oracle are most of what it takes. The specs' dtypes go
// round.
TEST_F(CpuPaged, EveryKernelOnEveryKindOfBatch) {
  int number = 0;
  std::uint64_t seed = 100;
  for (const char* lines : paged::kSpecs) {
    const char* const dtypes[] = {"fp32", "bf16", "fp16"};
    const std::string yaml =
        fmt::format("attune: 1\nname: t\ndtype: {}\n{}", dtypes[number++ % 3], lines);
    SCOPED_TRACE(yaml);
    const auto spec = parse_spec(yaml, "");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    const auto cases = paged::paged_cases(*spec, Arithmetic::kVector, 3, seed += 1000);
    const auto garbage = paged::garbage_problems(*spec);
    for (const KernelPlan& plan : plans_of(*spec)) {
      SCOPED_TRACE(to_string(plan));
      const LoadedKernel* kernel = kernel_of(*spec, plan);
      ASSERT_NE(kernel, nullptr);
      paged::check_cases(*device_, *kernel, *spec, cases);
      if (spec->sink == nullptr) paged::check_empty(*device_, *kernel, *spec);
      paged::check_garbage(*device_, *kernel, *spec, garbage);
    }
  }
}

// Reading a prefix once is the GPU's; the spec is served, and right.
TEST_F(CpuPaged, SequencesThatShareAPrefix) {
  const auto spec = parse_spec(
      fmt::format("attune: 1\n{}", shared_prefix::yaml_of("fp32", shared_prefix::kSpecs[5])), "");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const LoadedKernel* kernel = kernel_of(*spec, plans_of(*spec).front());
  ASSERT_NE(kernel, nullptr);
  std::vector<paged::PagedCase> cases;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    std::mt19937_64 numbers(seed);
    HostProblem problem = shared_prefix::random_shared(*spec, numbers);
    std::vector<Row> rows = sample_rows(problem, paged::kJudgedRows, seed);
    cases.push_back(paged::case_of(*spec, Arithmetic::kVector, std::move(problem),
                                   paged::CacheOrder::kTokensFirst, std::move(rows),
                                   fmt::format("seed {}", seed)));
  }
  paged::check_cases(*device_, *kernel, *spec, cases);
}

// Memory that ends, or begins, where no access is allowed.
class Fenced {
 public:
  Fenced(const std::vector<std::byte>& bytes, bool at_end) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    room_ = (bytes.size() + page - 1) / page * page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, room_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    length_ = room_ + 2 * page;
    EXPECT_EQ(mprotect(base_ + page, room_, PROT_READ | PROT_WRITE), 0);
    data_ = base_ + page + (at_end ? room_ - bytes.size() : 0);
    std::ranges::copy(bytes, data_);
  }
  ~Fenced() { munmap(base_, length_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  template <typename T = std::byte>
  T* data() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte *base_ = nullptr, *data_ = nullptr;
  std::size_t room_ = 0, length_ = 0;
};

std::vector<std::byte> bytes_of(const std::vector<std::int32_t>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// Whatever lengths and tables say, no byte beside the cache and the table is read: the process
// would end.
TEST_F(CpuPaged, ReadsNothingBesideTheCache) {
  const auto spec = parse_spec(
      "attune: 1\nname: t\ndtype: bf16\nlayout: paged\nhead_dim: 64\nmask: causal\n", "");
  ASSERT_TRUE(spec.ok());
  const auto plan = default_plan(*spec, kTypical, device_->facts());
  ASSERT_TRUE(plan.ok());
  const LoadedKernel* kernel = kernel_of(*spec, *plan);
  ASSERT_NE(kernel, nullptr);
  int run = 0;
  for (const HostProblem& problem : paged::garbage_problems(*spec, 60)) {
    const ProblemShape& s = problem.shape;
    const packed::Cache cache =
        paged::cache_in(paged::kCacheOrders[run % std::size(paged::kCacheOrders)], *spec, problem);
    const bool at_end = run++ % 2 == 0;
    const Fenced k(cache.k, at_end), v(cache.v.empty() ? cache.k : cache.v, at_end);
    const Fenced table(bytes_of(problem.pages.table), at_end);
    const Fenced q(encode(spec->dtype, problem.q), at_end);
    const Fenced o(std::vector<std::byte>(static_cast<std::size_t>(s.q_len * s.heads * 64 * 2)),
                   at_end);
    const Fenced cu_q(bytes_of(problem.sequences.cu_q), at_end);
    const Fenced lengths(bytes_of(problem.sequences.used_kv), at_end);
    att::LaunchParams params = params_of(*spec, s);
    params.q = q.data();
    params.k = k.data() + cache.k_at;
    params.v = (cache.v.empty() ? k : v).data() + cache.v_at;
    params.o = o.data();
    params.k_stride = cache.k_stride;
    params.v_stride = cache.v_stride;
    params.softmax_scale = 0.125f;
    params.sequences.cu_q = cu_q.data<int>();
    params.sequences.used_kv = lengths.data<int>();
    params.page_table =
        page_table_of(table.data<std::int32_t>(),
                      {problem.pages.per_sequence, problem.pages.size, problem.pages.count});
    std::vector<std::byte> workspace(kernel->workspace_bytes(s) + 64);
    void* at = workspace.data();
    std::size_t room = workspace.size();
    std::align(64, kernel->workspace_bytes(s), at, room);
    ASSERT_TRUE(kernel->launch(params, at, nullptr).ok());
    ASSERT_TRUE(device_->synchronize().ok());
  }
}

}  // namespace
}  // namespace attune
