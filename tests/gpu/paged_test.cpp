// Paged sequences, every family that serves them.
#include <dlfcn.h>

#include <cstring>

#include "runtime/device/cuda_api.hpp"
#include "runtime/reference/element_bits.hpp"
#include "runtime/support/problem_layout.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/paged_checks.hpp"

namespace attune::gpu_test {
namespace {

constexpr ProblemShape kTypical{
    .batch = 8, .heads = 4, .kv_heads = 2, .q_len = 2000, .kv_len = 2000};

// Steps of both sizes; one piece, and more than there are units.
constexpr const char* kDecodePlans[] = {"q16 k16 s3 w4 p1", "q16 k32 s2 w4 p3", "q16 k16 s4 w8 p12",
                                        "q32 k32 s3 w4 p4", "q16 k16 s3 w8 p8 cluster"};

std::vector<KernelPlan> decode_plans(const AttentionSpec& spec) {
  const DeviceFacts& facts = KernelBank::instance().device().facts();
  std::vector<KernelPlan> plans;
  for (const char* text : kDecodePlans) {
    const auto plan =
        parse_plan(fmt::format("decode forward {} {}", to_string(facts.target), text));
    EXPECT_TRUE(plan.ok()) << render(plan.error());
    if (plan.ok() && check_plan(spec, *plan, facts).ok()) plans.push_back(*plan);
  }
  return plans;
}

class GpuPaged : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!KernelBank::instance().missing().empty()) GTEST_SKIP() << KernelBank::instance().missing();
  }

  // The cheapest plan of every family, and some others.
  static std::vector<Request> requests_of(const AttentionSpec& spec) {
    KernelBank& bank = KernelBank::instance();
    const DeviceFacts& facts = bank.device().facts();
    std::vector<Request> requests;
    for (const KernelPlan& plan : plans_of_families(spec, kTypical, facts)) {
      requests.push_back({spec, plan});
      if (plan.family() == Family::kDecode) continue;
      const std::vector<KernelPlan> legal = legal_plans(spec, plan.family(), facts);
      const KernelPlan& other = legal[legal.size() / 2];
      if (!bank.gives_up(spec, other)) requests.push_back({spec, other});
    }
    for (const KernelPlan& plan : decode_plans(spec)) requests.push_back({spec, plan});
    return requests;
  }
};

// One test: compiling the kernels and the oracle are most of what it takes.
TEST_P(GpuPaged, EveryKernelOnEveryKindOfBatch) {
  KernelBank& bank = KernelBank::instance();
  std::vector<std::pair<AttentionSpec, std::vector<Request>>> all;
  std::vector<Request> requests;
  for (const char* lines : paged::kSpecs) {
    const AttentionSpec spec = spec_of(fmt::format("name: t\ndtype: {}\n{}", GetParam(), lines));
    all.emplace_back(spec, requests_of(spec));
    requests.insert(requests.end(), all.back().second.begin(), all.back().second.end());
  }
  bank.prepare(requests);
  std::uint64_t seed = 100;
  for (const auto& [spec, of_spec] : all) {
    const auto cases = paged::paged_cases(spec, Arithmetic::kMatrixUnit, 4, seed += 1000);
    for (const Request& request : of_spec) {
      SCOPED_TRACE(fmt::format("{}\n{}", canonical_text(spec), to_string(request.plan)));
      const auto kernel = bank.get(spec, request.plan);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      paged::check_cases(bank.device(), **kernel, spec, cases);
      if (spec.sink == nullptr) paged::check_empty(bank.device(), **kernel, spec);
      paged::check_garbage(bank.device(), **kernel, spec);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GpuPaged, testing::Values("bf16", "fp16"),
                         [](const auto& test) { return std::string(test.param); });

AttentionSpec paged_spec(const char* lines) {
  return spec_of(fmt::format("name: t\ndtype: bf16\nlayout: paged\n{}", lines));
}

// Sequences of one, some and many pieces beside one another; the same to the bit at every launch.
TEST(PagedDecode, LongSequencesBesideShortOnes) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const std::vector<std::int32_t> queries = {1, 1, 3, 0, 1, 2, 17, 5, 1};
  const std::vector<std::int32_t> keys = {30000, 3, 500, 100, 0, 7001, 900, 4, 64};
  const ProblemShape shape{.batch = 9, .heads = 6, .kv_heads = 2, .q_len = 31, .kv_len = 30000};
  std::uint64_t seed = 3;
  for (const char* lines :
       {"head_dim: 128\n", "head_dim: 64\nmask: causal\n",
        "head_dim: 64\nmask: causal and (q_pos - kv_idx < 700 or kv_idx < 4)\n"}) {
    const AttentionSpec spec = paged_spec(lines);
    std::vector<Request> requests;
    for (const KernelPlan& plan : decode_plans(spec)) requests.push_back({spec, plan});
    bank.prepare(requests);
    for (const std::int64_t page_size : {1, 16, 64}) {
      const HostProblem problem =
          paged::paged_problem(spec, shape, queries, keys, page_size, ++seed);
      const std::vector<Row> rows = all_rows(problem);
      const ForwardOracle exact = oracle_forward(spec, problem, rows, Arithmetic::kMatrixUnit);
      for (const Request& request : requests) {
        SCOPED_TRACE(fmt::format("{}{}, pages of {}", lines, to_string(request.plan), page_size));
        const auto kernel = bank.get(spec, request.plan);
        ASSERT_TRUE(kernel.ok()) << render(kernel.error());
        const auto first = packed::run_packed(bank.device(), **kernel, spec, problem, rows);
        ASSERT_TRUE(first.ok()) << render(first.error());
        EXPECT_EQ(compare(*first, exact).wrong, "");
        const auto second = packed::run_packed(bank.device(), **kernel, spec, problem, rows);
        ASSERT_TRUE(second.ok()) << render(second.error());
        EXPECT_EQ(first->o, second->o) << "not the same to the bit";
      }
    }
  }
}

// What the tests need of the driver beyond cuda_api.hpp.
template <typename Function>
Function* driver(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// A problem whose numbers are replaced in place by those of others of its shape and cache.
class Replayed {
 public:
  Replayed(Device& device, const AttentionSpec& spec, const HostProblem& problem)
      : device_(device), spec_(spec), params_(params_of(spec, problem.shape)) {
    const ProblemShape& s = problem.shape;
    const std::size_t o_values = static_cast<std::size_t>(s.q_len * s.heads * spec.head_dim_v);
    o_bytes_ = o_values * 2;
    lse_bytes_ = static_cast<std::size_t>(s.q_len * s.heads) * sizeof(float);
    const packed::Cache cache = cache_of(problem);
    params_.q = allocate(problem.q.size() * 2);
    params_.k = allocate(cache.k.size());
    params_.v = allocate(cache.v.size());
    params_.o = allocate(o_bytes_);
    params_.lse = static_cast<float*>(allocate(lse_bytes_));
    params_.softmax_scale = static_cast<float>(spec.softmax_scale.value);
    // Host order: heads first.
    params_.q_stride = {0, spec.head_dim_qk, s.q_len * spec.head_dim_qk};
    params_.o_stride = {0, spec.head_dim_v, s.q_len * spec.head_dim_v};
    params_.k_stride = cache.k_stride;
    params_.v_stride = cache.v_stride;
    params_.sequences.cu_q = ints(problem.sequences.cu_q.size());
    params_.sequences.used_kv = ints(problem.sequences.used_kv.size());
    const HostPages& pages = problem.pages;
    params_.page_table =
        page_table_of(ints(pages.table.size()), {pages.per_sequence, pages.size, pages.count});
  }
  ~Replayed() {
    for (void* buffer : buffers_) device_.free(buffer);
  }
  Replayed(const Replayed&) = delete;
  Replayed& operator=(const Replayed&) = delete;

  const att::LaunchParams& params() const { return params_; }
  void* allocate(std::size_t bytes) {
    buffers_.push_back(*device_.allocate(bytes));
    EXPECT_TRUE(device_.fill(buffers_.back(), 0xFF, bytes).ok());
    return buffers_.back();
  }
  void put(const HostProblem& problem) {
    const packed::Cache cache = cache_of(problem);
    copy(params_.q, encode(spec_.dtype, problem.q));
    copy(params_.k, cache.k);
    copy(params_.v, cache.v);
    copy(params_.sequences.cu_q, std::as_bytes(std::span(problem.sequences.cu_q)));
    copy(params_.sequences.used_kv, std::as_bytes(std::span(problem.sequences.used_kv)));
    copy(params_.page_table.entries, std::as_bytes(std::span(problem.pages.table)));
    EXPECT_TRUE(device_.fill(params_.o, 0xFF, o_bytes_).ok());
    EXPECT_TRUE(device_.fill(params_.lse, 0xFF, lse_bytes_).ok());
    EXPECT_TRUE(device_.synchronize().ok());
  }
  HostOutput rows(const HostProblem& problem, const std::vector<Row>& rows) {
    std::vector<std::byte> o(o_bytes_), lse(lse_bytes_);
    EXPECT_TRUE(device_.synchronize().ok());
    EXPECT_TRUE(device_.copy_to_host(o.data(), params_.o, o_bytes_).ok());
    EXPECT_TRUE(device_.copy_to_host(lse.data(), params_.lse, lse_bytes_).ok());
    const std::size_t row_bytes = static_cast<std::size_t>(spec_.head_dim_v) * 2;
    HostOutput output;
    for (const Row& row : rows) {
      const auto at = static_cast<std::size_t>(row.h * problem.shape.q_len +
                                               problem.sequences.q_first(row.b) + row.q_idx);
      const auto values =
          decode(spec_.dtype, std::span<const std::byte>(o).subspan(at * row_bytes, row_bytes));
      output.o.insert(output.o.end(), values.begin(), values.end());
      float one = 0;
      std::memcpy(&one, &lse[at * sizeof one], sizeof one);
      output.lse.push_back(one);
    }
    return output;
  }

 private:
  packed::Cache cache_of(const HostProblem& problem) const {
    return paged::cache_in(paged::CacheOrder::kTokensFirst, spec_, problem);
  }
  int* ints(std::size_t count) { return static_cast<int*>(allocate(count * sizeof(int))); }
  void copy(const void* to, std::span<const std::byte> bytes) {
    EXPECT_TRUE(device_.copy_to_device(const_cast<void*>(to), bytes.data(), bytes.size()).ok());
  }

  Device& device_;
  const AttentionSpec& spec_;
  att::LaunchParams params_;
  std::size_t o_bytes_ = 0, lse_bytes_ = 0;
  std::vector<void*> buffers_;
};

// A launch that was captured once serves other lengths, other tables and other keys.
void check_replays(const AttentionSpec& spec, const KernelPlan& plan, std::int64_t page_size) {
  KernelBank& bank = KernelBank::instance();
  const auto kernel = bank.get(spec, plan);
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  const ProblemShape shape{.batch = 5, .heads = 8, .kv_heads = 2, .q_len = 40, .kv_len = 3000};
  const std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>> lengths[] = {
      {{1, 1, 1, 1, 1}, {100, 3000, 17, 1, 64}},
      {{1, 1, 1, 1, 1}, {101, 2, 18, 0, 65}},
      {{8, 0, 30, 1, 1}, {3000, 3000, 3000, 3000, 2999}},
      {{0, 0, 0, 0, 40}, {0, 0, 0, 0, 1500}},
      {{3, 2, 1, 3, 2}, {1, 100, 1000, 10, 700}}};
  std::vector<HostProblem> problems;
  const std::int64_t pages = 5 * (3000 / page_size + 1) + 3;
  std::uint64_t seed = 1;
  for (const auto& [queries, keys] : lengths) {
    problems.push_back(paged::paged_problem(spec, shape, queries, keys, page_size, ++seed));
    paged::add_idle_pages(spec, problems.back(), pages);
  }
  Replayed replayed(bank.device(), spec, problems.front());
  void* const workspace = replayed.allocate((*kernel)->workspace_bytes(shape) + 16);
  replayed.put(problems.front());
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  ASSERT_EQ(driver<CUresult(CUstream*, unsigned)>("cuStreamCreate")(&stream, 1), 0);
  ASSERT_EQ(driver<CUresult(CUstream, int)>("cuStreamBeginCapture_v2")(stream, 0), 0);
  const Status launched = (*kernel)->launch(replayed.params(), workspace, stream);
  ASSERT_EQ(driver<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture")(stream, &graph), 0);
  ASSERT_TRUE(launched.ok()) << render(launched.error());
  ASSERT_EQ(driver<CUresult(CUgraphExec*, CUgraph, unsigned long long)>(
                "cuGraphInstantiateWithFlags")(&executable, graph, 0),
            0);
  for (std::size_t i = 0; i < problems.size(); ++i) {
    SCOPED_TRACE(i);
    replayed.put(problems[i]);
    ASSERT_EQ(driver<CUresult(CUgraphExec, CUstream)>("cuGraphLaunch")(executable, stream), 0);
    const std::vector<Row> rows = all_rows(problems[i]);
    const HostOutput output = replayed.rows(problems[i], rows);
    EXPECT_EQ(
        compare(output, oracle_forward(spec, problems[i], rows, Arithmetic::kMatrixUnit)).wrong,
        "");
  }
  driver<CUresult(CUgraphExec)>("cuGraphExecDestroy")(executable);
  driver<CUresult(CUgraph)>("cuGraphDestroy")(graph);
  driver<CUresult(CUstream)>("cuStreamDestroy_v2")(stream);
}

TEST(PagedGraph, ReplaysWithOtherLengthsAndTables) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  for (const char* lines : {"head_dim: 128\nmask: causal\n", "head_dim: 64\n"}) {
    const AttentionSpec spec = paged_spec(lines);
    std::vector<Request> requests;
    for (const KernelPlan& plan : plans_of_families(spec, kTypical, bank.device().facts())) {
      requests.push_back({spec, plan});
    }
    EXPECT_GE(requests.size(), 2u) << "decode and sm80";
    bank.prepare(requests);
    for (const Request& request : requests) {
      for (const std::int64_t page_size : {1, 16, 64}) {
        SCOPED_TRACE(fmt::format("{}{}, pages of {}", lines, to_string(request.plan), page_size));
        if (request.plan.family() == Family::kSm90a && page_size % 16 != 0) continue;
        check_replays(spec, request.plan, page_size);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace attune::gpu_test
