// Random specs by random plans of every family, not only those that the cost model chooses, on
// random and hostile numbers. A few at every run.
#include <cmath>
#include <optional>

#include "tests/gpu/canary_device.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/gpu/random_specs_fixture.hpp"
#include "tests/verification/packed_checks.hpp"
#include "tests/verification/paged_checks.hpp"
#include "tests/verification/scattered.hpp"
#include "tests/verification/shared_prefix.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune::gpu_test {
namespace {

using random_specs::Wanted;

// Whose work comes off a counter may round a row that leaves its range in other ways.
bool repeats(const AttentionSpec& spec, const KernelPlan& plan) {
  return spec.deterministic || to_string(plan).find("longest") == std::string::npos;
}

bool is_same_output(const HostOutput& a, const HostOutput& b) {
  const auto same = [](double x, double y) { return x == y || (x != x && y != y); };
  return std::ranges::equal(a.o, b.o, same) && std::ranges::equal(a.lse, b.lse, same);
}

class RandomPlans : public RandomSpecs {
 protected:
  void check_dense(const AttentionSpec& spec, const ProblemShape& shape, std::mt19937_64& random,
                   const std::vector<KernelPlan>& plans) {
    of_any_plan_.reset();
    HostProblem problem = random_problem(spec, shape, random());
    const std::string what = random_specs::make_hostile(spec, problem, random);
    fill_tensors(spec, problem, random);
    if (spec.kv_dtype || random() % 3 == 0) {
      std::vector<KernelPlan> repeating, others;
      for (const KernelPlan& plan : plans)
        (repeats(spec, plan) ? repeating : others).push_back(plan);
      const Watchdog watchdog = watch(to_string(plans.front()) + " and others", shape);
      if (!repeating.empty()) {
        EXPECT_TRUE(judge(spec, problem, repeating, kLaunches)) << what;
      }
      if (!others.empty()) {
        EXPECT_TRUE(judge(spec, problem, others, 1)) << what;
      }
    } else {
      if (random() % 4 == 0) repeat_keys(spec, problem, random);
      check_apart(spec, problem, plans, random, what);
    }
    ++problems_;
  }

  // Launches of one kernel; `launch` gives nothing where the plan refuses the problem. Of a
  // batch-invariant spec all plans give the same bits.
  template <typename Launch>
  void check_launches(const AttentionSpec& spec, const KernelPlan& plan, const ForwardOracle& exact,
                      const Launch& launch) {
    HostOutput first;
    for (int i = 0; i < (repeats(spec, plan) ? kLaunches : 1); ++i) {
      std::optional<Result<HostOutput>> out = launch();
      if (!out) return;
      ASSERT_TRUE(out->ok()) << render(out->error());
      const std::string wrong = compare(**out, exact).wrong;
      EXPECT_EQ(wrong, "");
      if (!wrong.empty()) return;
      if (i > 0) {
        EXPECT_TRUE(is_same_output(**out, first)) << "another launch, other bits";
      }
      first = *std::move(*out);
    }
    if (!spec.batch_invariant) return;
    if (!of_any_plan_) of_any_plan_ = first;
    EXPECT_TRUE(is_same_output(first, *of_any_plan_)) << "another plan, other bits";
  }

  // Every matrix by strides of its own.
  void check_apart(const AttentionSpec& spec, const HostProblem& problem,
                   const std::vector<KernelPlan>& plans, std::mt19937_64& random,
                   const std::string& what) {
    constexpr std::int64_t kPairs = 1 << 23;  // that the oracle has a second or so for
    std::vector<Row> rows = all_rows(problem);
    if (static_cast<std::int64_t>(rows.size()) * problem.shape.kv_len > kPairs)
      rows = sample_rows(problem, kMaxRows, random());
    check_apart(spec, problem, plans, random, what, rows, oracle_forward(spec, problem, rows));
  }
  void check_apart(const AttentionSpec& spec, const HostProblem& problem,
                   const std::vector<KernelPlan>& plans, std::mt19937_64& random,
                   const std::string& what, const std::vector<Row>& rows,
                   const ForwardOracle& exact) {
    CanaryDevice device(bank_.device());
    const auto on_device = DeviceProblem::upload(device, spec, problem);
    ASSERT_TRUE(on_device.ok()) << render(on_device.error());
    for (const KernelPlan& plan : plans) {
      SCOPED_TRACE(fmt::format("{}, {}, {}", to_string(plan), what, to_string(problem.shape)));
      const auto kernel = bank_.get(spec, plan);
      const Watchdog watchdog = watch(to_string(plan), problem.shape);
      const std::uint64_t seed = random();
      const auto launch = [&](bool with_lse) -> std::optional<Result<HostOutput>> {
        std::mt19937_64 placing(seed);
        EXPECT_TRUE((*on_device)->poison().ok());
        auto apart = verification::Scattered::make(device, spec, (*on_device)->params(),
                                                   Pass::kForward, placing);
        if (!apart.ok()) return apart.error();
        KernelWorkspace workspace(device, problem.shape, KernelWorkspace::Fresh::kPoison);
        att::LaunchParams params = apart->params();
        if (!with_lse) params.lse = nullptr;
        if (const Status done = workspace.launch(**kernel, params, nullptr); !done.ok()) {
          if (done.error().id != kStridesUnsupported &&
              !(is_paged(spec) && paged::refuses_pages(done.error(), problem.pages.size)))
            return done.error();
          ++refused_["strides"];
          return std::nullopt;
        }
        if (const Status gathered = apart->gather(); !gathered.ok()) return gathered.error();
        EXPECT_EQ(device.damage(), "") << apart->text();
        return (*on_device)->download(rows);
      };
      check_launches(spec, plan, exact, [&] { return launch(true); });
      if (seed % 3 != 0) continue;
      const std::optional<Result<HostOutput>> o_alone = launch(false);
      if (!o_alone) continue;
      ASSERT_TRUE(o_alone->ok()) << render(o_alone->error());
      EXPECT_EQ(judge(exact.o, (*o_alone)->o).wrong, "") << "without LSE";
      EXPECT_TRUE(std::ranges::all_of((*o_alone)->lse, [](double x) { return std::isnan(x); }));
    }
  }

  void check_sequences(const AttentionSpec& spec, std::mt19937_64& random,
                       const std::vector<KernelPlan>& plans) {
    of_any_plan_.reset();
    const std::uint64_t seed = random();
    HostProblem problem;
    packed::Cache cache;
    if (is_paged(spec)) {
      problem = spec.shared_prefixes && random() % 2 == 0
                    ? shared_prefix::random_shared(spec, random)
                    : paged::random_paged(spec, random, 3000);
    } else {
      problem = packed::random_packed(spec, random);
    }
    std::string what = random_specs::make_hostile(spec, problem, random);
    fill_tensors(spec, problem, random);
    if (is_paged(spec)) {
      const auto order = spec.v_in_k ? paged::CacheOrder::kTokensFirst
                                     : paged::kCacheOrders[seed % std::size(paged::kCacheOrders)];
      const bool in_one_array =
          order == paged::CacheOrder::kInterleaved && spec.head_dim_qk != spec.head_dim_v;
      if (!spec.v_in_k)
        cache =
            paged::cache_in(in_one_array ? paged::CacheOrder::kHeadsFirst : order, spec, problem);
      what += fmt::format(", pages of {}, order {}", problem.pages.size, static_cast<int>(order));
    } else {
      packed::spoil_foreign(spec, problem, -1);
    }
    const std::vector<Row> rows = sample_rows(problem, kMaxRows, seed);
    const ForwardOracle exact = oracle_forward(spec, problem, rows);
    for (const KernelPlan& plan : plans) {
      SCOPED_TRACE(fmt::format("{}, {}, {}", to_string(plan), what, to_string(problem.shape)));
      const auto kernel = bank_.get(spec, plan);
      const Watchdog watchdog = watch(to_string(plan), problem.shape);
      check_launches(spec, plan, exact, [&]() -> std::optional<Result<HostOutput>> {
        auto out = packed::run_packed(bank_.device(), **kernel, spec, problem, rows,
                                      cache.k.empty() ? nullptr : &cache);
        if (out.ok() || !is_paged(spec) || !paged::refuses_pages(out.error(), problem.pages.size))
          return out;
        ++refused_["pages"];
        return std::nullopt;
      });
    }
    check_apart(spec, problem, plans, random, what, rows, exact);
    ++problems_;
  }

  std::optional<HostOutput> of_any_plan_;  // of the problem at hand
};

TEST_F(RandomPlans, AreRight) {
  for_each_spec(Wanted::kForward, [&](const AttentionSpec& spec, std::mt19937_64& random) {
    const ProblemShape shape = is_packed(spec) ? kTypical : random_shape(random, false);
    const std::vector<KernelPlan> plans = plans_of(spec, shape, Pass::kForward, random, 2);
    if (plans.empty()) return;
    for (std::uint64_t run = 0; run < number_of("ATTUNE_RANDOM_RUNS", 3); ++run) {
      if (is_packed(spec)) {
        check_sequences(spec, random, plans);
      } else {
        std::vector<KernelPlan> whole = plans;
        if (run > 0) std::erase_if(whole, [](const auto& plan) { return plan.residues > 1; });
        if (!whole.empty())
          check_dense(spec, run == 0 ? shape : random_shape(random, false), random, whole);
      }
    }
  });
}

}  // namespace
}  // namespace attune::gpu_test
