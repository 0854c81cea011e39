// Paged sequences that begin with the same pages, which specs with `shared_prefixes` read once.
#include "tests/verification/shared_prefix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "generator/emit/emit.hpp"
#include "runtime/support/parallel.hpp"
#include "templates/shared_prefix.h"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/gpu/replayed.hpp"
#include "tests/verification/editing_compiler.hpp"
#include "tests/verification/paged_checks.hpp"

namespace attune::gpu_test {
namespace {

// Items of 16 and of 32 rows, Q in registers and in shared memory, steps of both sizes, few pieces
// and many.
constexpr const char* kPlans[] = {"q16 k16 s3 w4 p32", "q32 k16 s3 w4 p64", "q16 k32 s2 w4 p3",
                                  "q32 k32 s4 w8 p1"};

std::vector<Request> requests_of(const AttentionSpec& spec) {
  const DeviceFacts& facts = KernelBank::instance().device().facts();
  std::vector<Request> requests;
  for (const char* text : kPlans) {
    const auto plan =
        parse_plan(fmt::format("decode forward {} {}", to_string(facts.target), text));
    EXPECT_TRUE(plan.ok()) << render(plan.error());
    if (plan.ok() && check_plan(spec, *plan, facts).ok()) requests.push_back({spec, *plan});
  }
  EXPECT_GE(requests.size(), 2u);
  return requests;
}

class GpuSharedPrefix : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!bank().missing().empty()) GTEST_SKIP() << bank().missing();
  }
  static KernelBank& bank() { return KernelBank::instance(); }
};

// One test: compiling the kernels and the oracle are most of what it takes. 117 random batches.
TEST_P(GpuSharedPrefix, RandomBatchesAreWhatTheOracleSays) {
  std::vector<std::pair<AttentionSpec, std::vector<Request>>> all;
  std::vector<Request> requests;
  for (const char* lines : shared_prefix::kSpecs) {
    const AttentionSpec spec = spec_of(shared_prefix::yaml_of(GetParam(), lines));
    all.emplace_back(spec, requests_of(spec));
    requests.insert(requests.end(), all.back().second.begin(), all.back().second.end());
  }
  bank().prepare(requests);
  std::uint64_t seed = 100;
  for (const auto& [spec, of_spec] : all) {
    std::vector<paged::PagedCase> cases;
    for (int i = 0; i < 13; ++i, ++seed) {
      std::mt19937_64 numbers(seed);
      HostProblem problem = shared_prefix::random_shared(spec, numbers);
      std::vector<Row> rows = sample_rows(problem, 200, seed);
      cases.push_back(paged::case_of(spec, Arithmetic::kMatrixUnit, std::move(problem),
                                     paged::kCacheOrders[seed % std::size(paged::kCacheOrders)],
                                     std::move(rows), fmt::format("seed {}", seed)));
    }
    // Every case by two plans, which take turns.
    for (std::size_t i = 0; i < of_spec.size(); ++i) {
      const KernelPlan& plan = of_spec[i].plan;
      SCOPED_TRACE(fmt::format("{}\n{}", canonical_text(spec), to_string(plan)));
      const auto kernel = bank().get(spec, plan);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      std::vector<paged::PagedCase> own;
      for (std::size_t j = i % 2; j < cases.size(); j += 2) own.push_back(cases[j]);
      paged::check_cases(bank().device(), **kernel, spec, own);
      if (HasFatalFailure()) return;
    }
  }
}

// Sequences that share nothing, lengths around pages, no keys, tables of no caller.
TEST_P(GpuSharedPrefix, OtherBatchesAreServedToo) {
  for (const char* lines : {shared_prefix::kSpecs[0], shared_prefix::kSpecs[4]}) {
    const AttentionSpec spec = spec_of(shared_prefix::yaml_of(GetParam(), lines));
    const std::vector<Request> requests = requests_of(spec);
    bank().prepare(requests);
    const auto cases = paged::paged_cases(spec, Arithmetic::kMatrixUnit, 4, 9);
    const auto garbage = paged::garbage_problems(spec);
    std::vector<HostProblem> shared_garbage;
    std::mt19937_64 random(7);
    for (int run = 0; run < 20; ++run)
      shared_garbage.push_back(shared_prefix::garbage_shared(spec, run, random));
    for (const Request& request : requests) {
      SCOPED_TRACE(fmt::format("{}\n{}", canonical_text(spec), to_string(request.plan)));
      const auto kernel = bank().get(spec, request.plan);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      paged::check_cases(bank().device(), **kernel, spec, cases);
      paged::check_empty(bank().device(), **kernel, spec);
      paged::check_garbage(bank().device(), **kernel, spec, garbage);
      for (const HostProblem& problem : shared_garbage) {
        const Status status = packed::run_garbage(bank().device(), **kernel, spec, problem);
        EXPECT_TRUE(status.ok()) << render(status.error());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GpuSharedPrefix, testing::Values("bf16", "fp16"),
                         [](const auto& test) { return std::string(test.param); });

// Teams of several prefix items, with units of 64 and of 128 keys; the same to the bit at every
// launch.
TEST(SharedPrefix, LongPrefixesOfManySequences) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec =
      spec_of(shared_prefix::yaml_of("bf16", "head_dim: 64\nmask: causal\n"));
  const std::vector<Request> requests = requests_of(spec);
  bank.prepare(requests);
  std::uint64_t seed = 1;
  for (const auto& [batch, common, page_size] :
       {std::tuple{33, 3000, 16}, std::tuple{3, 66001, 64}, std::tuple{19, 5000, 1}}) {
    const std::vector<std::int32_t> queries(static_cast<std::size_t>(batch), 1);
    std::vector<std::int32_t> keys;
    for (int b = 0; b < batch; ++b) keys.push_back(common + 17 * b);
    const ProblemShape shape{
        .batch = batch, .heads = 4, .kv_heads = 1, .q_len = batch, .kv_len = keys.back()};
    const HostProblem problem =
        shared_prefix::shared_problem(spec, shape, queries, keys, page_size, common, ++seed);
    const std::vector<Row> rows = sample_rows(problem, 100, seed);
    const ForwardOracle exact = oracle_forward(spec, problem, rows, Arithmetic::kMatrixUnit);
    for (const Request& request : requests) {
      SCOPED_TRACE(fmt::format("{} x {}, {}", batch, common, to_string(request.plan)));
      const auto kernel = bank.get(spec, request.plan);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      const auto first = packed::run_packed(bank.device(), **kernel, spec, problem, rows);
      ASSERT_TRUE(first.ok()) << render(first.error());
      EXPECT_EQ(compare(*first, exact).wrong, "");
      for (int again = 0; again < 2; ++again) {
        const auto next = packed::run_packed(bank.device(), **kernel, spec, problem, rows);
        ASSERT_TRUE(next.ok()) << render(next.error());
        EXPECT_EQ(first->o, next->o) << "not the same to the bit";
        EXPECT_EQ(first->lse, next->lse) << "not the same to the bit";
      }
    }
  }
}

// What the kernel in front lists, sequence by sequence, for specs without a mask.
class HostTwin {
 public:
  HostTwin(const HostProblem& problem, const DecodePlan& plan, int ctas_at_once)
      : problem_(problem), plan_(plan) {
    const ProblemShape& shape = problem.shape;
    const int batch = static_cast<int>(shape.batch);
    records_.resize(static_cast<std::size_t>(batch));
    common_.resize(records_.size());
    for (int b = 0; b + 1 < batch; ++b) common_[at(b)] = common(b);
    for (int b = 0; b < batch; ++b) {
      if (common_[at(b)] == 0 || (b > 0 && common_[at(b - 1)] > 0)) continue;
      att::share_prefixes(
          b, batch, plan.tile_q, [&](int i) { return common_[at(i)]; },
          [&](int i) { return rows(i); },
          [&](int i) -> att::SharedSequence& { return records_[at(i)]; });
    }
    deal(ctas_at_once);
  }
  std::vector<att::SharedPieceItem> list;

 private:
  static std::size_t at(int b) { return static_cast<std::size_t>(b); }
  int q_len(int b) const { return static_cast<int>(problem_.sequences.q_len(b)); }
  int kv_len(int b) const { return static_cast<int>(problem_.sequences.kv_len(b)); }
  int group() const { return static_cast<int>(problem_.shape.heads / problem_.shape.kv_heads); }
  int rows(int b) const { return att::shared_rows(group(), q_len(b), plan_.tile_q); }
  static int units(int keys) { return att::tile_count(keys, att::kSharedUnitKeys); }

  int common(int b) const {
    if (rows(b) == 0 || rows(b + 1) == 0) return 0;
    int keys = 0;
    const int most = std::min(kv_len(b), kv_len(b + 1));
    while (keys < most && problem_.pages.page_of(b, keys) == problem_.pages.page_of(b + 1, keys)) {
      ++keys;
    }
    return keys < att::kLeastSharedKeys ? 0 : keys;
  }

  void deal(int ctas_at_once) {
    const ProblemShape& shape = problem_.shape;
    const int batch = static_cast<int>(shape.batch), kv_heads = static_cast<int>(shape.kv_heads);
    const auto grid = [&](int b) {
      return att::packed_tiles(group(), 1, std::max(q_len(b), 1), plan_.tile_q);
    };
    const auto items = [&](int b) { return q_len(b) == 0 ? 0 : grid(b).per_kv_head(); };
    long long all = 0;
    for (int b = 0; b < batch; ++b) {
      const att::SharedSequence& of = records_[at(b)];
      if (q_len(b) == 0) continue;
      all += static_cast<long long>(items(b)) * units(kv_len(b) - of.keys);
      if (of.keys > 0 && of.first == b) all += units(of.keys);
    }
    const long long at_once = std::max(ctas_at_once / kv_heads, 1);
    const long long full = std::max(att::kMostPieces / kv_heads / 2, 1);
    const long long target =
        std::max((9 * all + 8 * at_once - 1) / (8 * at_once), (all + full - 1) / full) +
        att::kLeastPieceUnits - 1;
    const auto pieces = [&](int of) {
      return static_cast<int>(std::clamp<long long>((of + target - 1) / target, 1, plan_.pieces));
    };
    // Whatever has no room for its results, and all behind it, is not cut and shares nothing.
    const int room = att::shared_result_room(batch, kv_heads);
    std::vector<int> results(records_.size());
    int sum = 0;
    for (int b = 0; b < batch; ++b) {
      const att::SharedSequence& of = records_[at(b)];
      const int own = q_len(b) == 0 ? 1 : pieces(units(kv_len(b) - of.keys));
      if (of.keys > 0 && of.team == b) sum += of.team_size * pieces(units(of.keys));
      if (of.keys > 0 || own > 1) sum += items(b) * own;
      results[at(b)] = sum;
    }
    std::vector<att::SharedSequence> records = records_;
    for (int b = 0; b < batch; ++b) {
      att::SharedSequence& of = records[at(b)];
      const int own = q_len(b) == 0 ? 1 : pieces(units(kv_len(b) - of.keys));
      const bool shares = of.keys > 0 && results[at(records_[at(of.team)].team_end - 1)] <= room;
      of.own_pieces = (of.keys > 0 ? shares : results[at(b)] <= room) ? own : 1;
      of.prefix_pieces = shares ? pieces(units(of.keys)) : 0;
      if (!shares) of.keys = 0;
    }
    for (int b = 0; b < batch; ++b) {
      const att::SharedSequence& of = records[at(b)];
      if (of.keys > 0 && of.team == b) {
        for (int piece = 0; piece < of.prefix_pieces; ++piece) {
          for (int first = b; first < of.team_end; first += records[at(first)].members) {
            list.push_back({first, records[at(first)].members, 0, 0, piece});
          }
        }
      }
      for (int item = 0; item < items(b); ++item) {
        for (int piece = 0; piece < of.own_pieces; ++piece) {
          list.push_back({b, 0, item / grid(b).head_parts, item % grid(b).head_parts, piece});
        }
      }
    }
  }

  const HostProblem& problem_;
  const DecodePlan& plan_;
  std::vector<att::SharedSequence> records_;
  std::vector<int> common_;
};

std::string text_of(const att::SharedPieceItem& item) {
  if (item.sequence < 0) return "none";
  return fmt::format("{} +{} tile {} part {} piece {}", item.sequence, item.members, item.tile,
                     item.part, item.piece);
}

TEST(SharedPrefix, TheListIsWhatTheHostMakesOfTheProblem) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec = spec_of(shared_prefix::yaml_of("bf16", "head_dim: 64\n"));
  struct Listed {
    Request request;
    std::shared_ptr<LoadedKernel> kernel;
    int ctas_at_once = 0;
  };
  std::vector<Listed> plans;
  const std::vector<Request> requests = requests_of(spec);
  bank.prepare(requests);
  for (const Request& request : requests) {
    const auto kernel = bank.get(spec, request.plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    const auto generated = emit(spec, request.plan);
    ASSERT_TRUE(generated.ok());
    constexpr std::string_view kConstant = "constexpr int kCtasAtOnce = ";
    plans.push_back({request, *kernel,
                     std::stoi(generated->source.substr(generated->source.find(kConstant) +
                                                        kConstant.size()))});
  }
  int sharing = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    std::mt19937_64 random(seed);
    HostProblem problem = shared_prefix::random_shared(spec, random);
    problem.sequences.used_q.clear();
    const ProblemShape& shape = problem.shape;
    Replayed launched(bank.device(), spec, problem);
    launched.put(problem);
    for (const auto& [request, kernel, ctas_at_once] : plans) {
      SCOPED_TRACE(fmt::format("{}, seed {}", to_string(request.plan), seed));
      const auto& tile = std::get<DecodePlan>(request.plan.tile);
      void* const workspace = launched.allocate(kernel->workspace_bytes(shape));
      const Status status = kernel->launch(launched.params(), workspace, nullptr);
      ASSERT_TRUE(status.ok()) << render(status.error());
      std::int64_t offset = 0;
      for (const WorkspaceRegion& region : launch_recipe(spec, request.plan).workspace) {
        if (region.content == WorkspaceRegion::Content::kPieceItems) break;
        offset += region_bytes(spec, region, shape);
      }
      std::vector<att::SharedPieceItem> found(static_cast<std::size_t>(att::shared_item_count(
          shape.q_len, shape.batch, shape.heads, shape.kv_heads, std::int64_t{tile.tile_q})));
      ASSERT_TRUE(bank.device().synchronize().ok());
      ASSERT_TRUE(bank.device()
                      .copy_to_host(found.data(), static_cast<const char*>(workspace) + offset,
                                    found.size() * sizeof(att::SharedPieceItem))
                      .ok());
      const HostTwin twin(problem, tile, ctas_at_once);
      ASSERT_LE(twin.list.size(), found.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(text_of(found[i]), i < twin.list.size() ? text_of(twin.list[i]) : "none") << i;
        sharing += i < twin.list.size() && twin.list[i].members > 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(sharing, 100);
}

TEST(SharedPrefix, PlantedFaultsAreFound) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec = spec_of(shared_prefix::yaml_of(
      "bf16",
      "head_dim: 64\nmask: causal\nscore: score - slope[h] * (q_pos - kv_idx)\n"
      "tensors: {slope: {dtype: float32, dims: [heads]}}\n"));
  const KernelPlan plan = requests_of(spec).front().plan;
  const ProblemShape shape{.batch = 6, .heads = 4, .kv_heads = 2, .q_len = 8, .kv_len = 1500};
  HostProblem problem = shared_prefix::shared_problem(
      spec, shape, {1, 1, 2, 1, 1, 2}, {1500, 1400, 1300, 1200, 1290, 1100}, 16, 1024, 3);
  // Slopes that leave a prefix its weight.
  for (double& slope : problem.tensors.front().values) slope = 1e-3;
  const std::vector<Row> rows = all_rows(problem);
  const ForwardOracle exact = oracle_forward(spec, problem, rows, Arithmetic::kMatrixUnit);
  const planted::Fault faults[] = {
      {"none", {}},
      {"rows of a prefix item have the first sequence's lengths",
       {{"return table.rows[index[m][half]].context(p, h_kv);",
         "Context c = table.rows[index[m][half]].context(p, h_kv);\n"
         "    c.kv_len = table.rows[0].kv_len;\n    c.q_len = table.rows[0].q_len;\n"
         "    return c;"}}},
      {"a prefix is counted twice",
       {{"work.begin = work.is_prefix ? 0 : keys;", "work.begin = 0;"}}},
      {"a prefix is a unit too short",
       {{"work.end = work.is_prefix ? keys : first.sequence.kv_len;",
         "work.end = work.is_prefix ? keys - 64 : first.sequence.kv_len;"}}},
      {"rows of the prefix are another sequence's",
       {{"return row - member.first_row + (i < member.prefix_pieces ? member.prefix_row : 0);",
         "return row - member.first_row;"}}},
      {"the first piece of the prefix is left out",
       {{"if (first + i >= count) continue;",
         "if (first + i >= count || first + i == 0) continue;"}}},
      {"queries of a prefix item are the first sequence's",
       {{"const SharedRow& of = table.rows[valid ? row : 0];",
         "const SharedRow& of = table.rows[0];"}}},
      {"pages are not compared",
       {{"const int* const right = left + table.pages_per_sequence;",
         "const int* const right = left + (b == 1 ? 0 : table.pages_per_sequence);"}}}};
  constexpr std::size_t kFaults = std::size(faults);
  std::vector<Result<BuiltKernel>> built(kFaults, Error{});
  parallel_for(static_cast<std::int64_t>(kFaults), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    planted::EditingCompiler editing(bank.compiler(), faults[at]);
    built[at] = build(spec, plan, editing, nullptr);
  });
  for (const planted::Fault& fault : faults) {
    SCOPED_TRACE(fault.name);
    HostProblem given = problem;
    const bool is_last = &fault == std::end(faults) - 1;
    if (is_last) {
      // Sequence 2 begins with what sequence 0 ends with.
      const std::int64_t each = given.pages.per_sequence;
      std::copy_n(given.pages.table.begin() + 65, 28, given.pages.table.begin() + 2 * each);
    }
    const ForwardOracle right =
        is_last ? oracle_forward(spec, given, rows, Arithmetic::kMatrixUnit) : exact;
    const Result<BuiltKernel>& of_fault = built[static_cast<std::size_t>(&fault - faults)];
    ASSERT_TRUE(of_fault.ok()) << render(of_fault.error());
    const auto kernel = bank.device().load(spec, plan, of_fault->code.image);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    const auto output = packed::run_packed(bank.device(), **kernel, spec, given, rows);
    ASSERT_TRUE(output.ok()) << render(output.error());
    const std::string wrong = compare(*output, right).wrong;
    if (fault.edits.empty()) {
      EXPECT_EQ(wrong, "");
    } else {
      EXPECT_NE(wrong, "");
    }
  }
}

}  // namespace
}  // namespace attune::gpu_test
