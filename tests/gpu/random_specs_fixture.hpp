// Random specs, problems, and plans of every family: what the tests of both passes share.
// ATTUNE_RANDOM_SECONDS goes on for as long, ATTUNE_TEST_SEED says with which spec one begins,
// ATTUNE_RANDOM_RUNS how many problems a spec has, ATTUNE_RANDOM_KEYS how many keys a dense one at
// most, where there is an emulated GPU, ATTUNE_RANDOM_HUNG after how many seconds of the launches
// of one plan the process ends and says which, ATTUNE_RANDOM_PLANS a word that all plans have
// ("runs").
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>

#include "generator/plan/any_pages.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/gpu/watchdog.hpp"
#include "tests/verification/random_specs.hpp"

namespace attune::gpu_test {

inline std::uint64_t number_of(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class RandomSpecs : public testing::Test {
 protected:
  static constexpr int kLaunches = 3;
  static constexpr int kFew = 6;  // specs, where no time is given
  static constexpr ProblemShape kTypical{
      .batch = 8, .heads = 4, .kv_heads = 2, .q_len = 2000, .kv_len = 2000};

  void SetUp() override {
    if (!bank_.missing().empty()) GTEST_SKIP() << bank_.missing();
  }

  // Calls check(spec, random) for one spec after the other.
  template <typename Check>
  void for_each_spec(random_specs::Wanted wanted, const Check& check) {
    const std::uint64_t seconds = number_of("ATTUNE_RANDOM_SECONDS", 0);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    std::uint64_t seed = number_of("ATTUNE_TEST_SEED", 1);
    const std::uint64_t count = number_of("ATTUNE_RANDOM_COUNT", kFew);
    for (std::uint64_t i = 0; seconds == 0 ? i < count : std::chrono::steady_clock::now() < end;
         ++i, ++seed) {
      std::mt19937_64 random(seed);
      auto spec = parse_spec("attune: 1\n" + random_specs::draw(random, wanted), "t.yaml");
      if (!spec.ok()) {
        ++refused_[spec.error().id];
        continue;
      }
      // Of GPUs' products alone.
      if (spec->precision == Precision::kTf32 && bank_.device().target() == Target::kCpu) continue;
      spec_text_ = fmt::format("seed {}\n{}", seed, canonical_text(*spec));
      SCOPED_TRACE(spec_text_);
      check(*spec, random);
      ++specs_;
      if (seconds > 0) say();
      ASSERT_TRUE(bank_.device().synchronize().ok()) << "the device is lost";
    }
    say();
    EXPECT_GT(problems_, 0);
  }

  // While the launches of a plan, or of several, are awaited.
  Watchdog watch(const std::string& plans, const ProblemShape& shape) const {
    return Watchdog(fmt::format("{}\n{}\n{}", plans, to_string(shape), spec_text_),
                    std::chrono::seconds(number_of("ATTUNE_RANDOM_HUNG", 1800)));
  }

  void say() const {
    std::printf("%d specs, %d kernels, %d without one, %d problems;", specs_, kernels_, unbuilt_,
                problems_);
    for (const auto& [id, times] : refused_) std::printf(" %s %d", id.c_str(), times);
    std::printf("\n");
    std::fflush(stdout);
  }

  static bool is_wanted(const KernelPlan& plan) {
    const char* const word = std::getenv("ATTUNE_RANDOM_PLANS");
    return word == nullptr || to_string(plan).find(word) != std::string::npos;
  }

  // Some of each family, and the cheapest; kernels that were built.
  std::vector<KernelPlan> plans_of(const AttentionSpec& spec, const ProblemShape& shape, Pass pass,
                                   std::mt19937_64& random, std::size_t of_family) {
    const DeviceFacts& facts = bank_.device().facts();
    std::vector<KernelPlan> plans;
    const auto add = [&](const KernelPlan& plan) {
      if (plan.residues > 1 && (is_packed(spec) || shape.q_len % plan.residues != 0 ||
                                shape.kv_len % plan.residues != 0)) {
        return;
      }
      if (std::ranges::find(plans, plan) == plans.end()) plans.push_back(plan);
    };
    const auto families = families_for(spec, facts.target, pass);
    if (!families.ok()) {
      ++refused_[families.error().id];
      return {};
    }
    for (const Family family : *families) {
      std::vector<KernelPlan> legal = legal_plans(spec, family, facts, pass);
      std::erase_if(legal, [](const KernelPlan& plan) { return !is_wanted(plan); });
      for (std::size_t i = 0; i < of_family && !legal.empty(); ++i) {
        const KernelPlan& plan = legal[random() % legal.size()];
        add(plan);
        if (!is_paged(spec)) continue;
        if (const auto by_rows = plan_for_any_pages(spec, plan, facts)) add(*by_rows);
        if (const auto values = plan_for_small_boxes(spec, plan, facts)) add(*values);
      }
    }
    if (const auto by_cost = plans_by_cost(spec, shape, facts, pass);
        by_cost.ok() && !by_cost->empty() && (of_family == 0 || is_wanted(by_cost->front())))
      add(by_cost->front());
    std::vector<Request> requests;
    for (const KernelPlan& plan : plans) requests.push_back({spec, plan});
    bank_.prepare(requests);
    std::erase_if(plans, [&](const KernelPlan& plan) {
      const auto kernel = bank_.get(spec, plan);
      if (kernel.ok()) return ++kernels_, false;
      ++unbuilt_;
      EXPECT_TRUE(bank_.gives_up(spec, plan))
          << to_string(plan) << ": " << render(kernel.error()).substr(0, 500);
      return true;
    });
    return plans;
  }

  static ProblemShape random_shape(std::mt19937_64& random, bool trains) {
    const auto of = [&](std::initializer_list<std::int64_t> list) {
      return list.begin()[random() % list.size()];
    };
    ProblemShape shape{.batch = of({1, 1, 2, 3}), .kv_heads = of({1, 1, 2, 3})};
    shape.heads = shape.kv_heads * of({1, 2, 3, 4, 5, 7, 8, 16});
    shape.q_len = of({1, 1, 2, 3, 17, 31, 64, 65, 127, 128, 129, 200, 300, 500});
    shape.kv_len =
        of({1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257, 400, 700, 1000, 2100});
    if (of({0, 1, 2}) == 0) shape.kv_len = shape.q_len;
    if (shape.q_len <= 3 && of({0, 1, 2, 3}) == 0) {
      shape.kv_len = of({5000, 9000, 20011, 33000, 66001, 131072, 131079});
      // The oracle takes a second for 10^8 products.
      if (shape.kv_len > 32767) shape.batch = 1, shape.heads = shape.kv_heads * of({1, 2, 4});
    }
    // Keys of one head for all, as latent ones are.
    if (shape.q_len <= 3 && of({0, 1, 2, 3}) == 0) {
      shape.batch = shape.kv_heads = 1;
      shape.heads = of({20, 64, 128});
    }
    const auto most = static_cast<std::int64_t>(number_of("ATTUNE_RANDOM_KEYS", 200000));
    shape.kv_len = std::min(shape.kv_len, most);
    if (!trains) return shape;
    shape.batch = std::min<std::int64_t>(shape.batch, 2);
    shape.heads = shape.kv_heads * std::min<std::int64_t>(shape.heads / shape.kv_heads, 4);
    shape.kv_len = std::min<std::int64_t>(shape.kv_len, shape.q_len <= 3 ? 5000 : 400);
    return shape;
  }

  // Sums, or rows without a key, of any size.
  static void fill_tensors(const AttentionSpec& spec, HostProblem& problem,
                           std::mt19937_64& random) {
    constexpr double kLowest = std::numeric_limits<float>::lowest();
    for (std::size_t slot = 0; slot < problem.tensors.size(); ++slot) {
      const expr::TensorDecl& tensor = spec.environment.tensors[slot];
      if (tensor.type != expr::TensorType::kFloat32 || tensor.grad || tensor.dims.empty() ||
          random() % 3 != 0)
        continue;
      // Of what is added to scores, not multiplied.
      const bool is_added = tensor.dims.size() == 2 ||
                            (tensor.dims.size() == 1 && (tensor.dims[0].dim == expr::Dim::kKvLen ||
                                                         tensor.dims[0].dim == expr::Dim::kQLen));
      if (spec.score == nullptr || spec.sink != nullptr || !is_added) continue;
      const std::size_t period = 2 + random() % 70, kind = random() % 6;
      std::vector<double>& values = problem.tensors[slot].values;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool marked = i / (kind % 2 == 0 ? 1 : 40) % period == 1;
        if (kind < 2) values[i] = marked ? kLowest : 0;
        if (kind == 2 || kind == 3)
          values[i] = marked ? 0 : -std::numeric_limits<double>::infinity();
        if (kind == 4) values[i] = marked ? 1e30 : 0;
        if (kind == 5) values[i] = marked ? 0 : -1e20;
      }
    }
  }

  // K and V of one batch, or of one head, for all.
  static void repeat_keys(const AttentionSpec& spec, HostProblem& problem,
                          std::mt19937_64& random) {
    const ProblemShape& shape = problem.shape;
    const bool by_head = random() % 2 == 0;
    const auto repeat = [&](std::vector<double>& values, int dim) {
      const auto rows = static_cast<std::size_t>(shape.kv_len * dim);
      const auto heads = static_cast<std::size_t>(shape.kv_heads);
      for (std::size_t i = 0; i * rows < values.size(); ++i) {
        const std::size_t like = by_head ? i / heads * heads : i % heads;
        std::copy_n(&values[like * rows], rows, &values[i * rows]);
      }
    };
    repeat(problem.k, spec.head_dim_qk);
    repeat(problem.v, spec.head_dim_v);
  }

  KernelBank& bank_ = KernelBank::instance();
  int specs_ = 0, kernels_ = 0, unbuilt_ = 0, problems_ = 0;
  std::map<std::string, int> refused_;
  std::string spec_text_;  // of the spec at hand
};

}  // namespace attune::gpu_test
