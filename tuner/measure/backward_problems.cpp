#include "tuner/measure/backward_problems.hpp"

#include <algorithm>
#include <utility>

#include "generator/spec/shape.hpp"
#include "runtime/engine/engine.hpp"
#include "tuner/measure/judged_check.hpp"

namespace attune {
namespace {

// Pairs of a query and a key that the oracle works out in a second or two of two cores.
constexpr std::int64_t kWholePairs = std::int64_t{1} << 20;
// Beyond these, of rows of dQ and again of rows of dK and dV, every 64th has to do: no tile of keys
// or queries that works on long sequences is smaller.
constexpr std::int64_t kSampledPairs = std::int64_t{1} << 22;
constexpr std::int64_t kManyHeads = 8;

// Of a GPU's oracle, of dQ and again of dK and dV: pairs beyond a row of every 16, and elements of
// gradients that it keeps, 8 bytes each.
constexpr std::int64_t kPairsOfDevice = std::int64_t{1} << 30;
constexpr std::int64_t kElementsOfDevice = std::int64_t{1} << 26;
// Where a row of every 16 has more pairs, every 64th has to do.
constexpr std::int64_t kLeastPairsOfDevice = std::int64_t{1} << 32;

// Of packed sequences as many of one length.
std::int64_t pairs_of(const AttentionSpec& spec, const ProblemShape& shape) {
  const ProblemShape s = typical_shape(spec, shape);
  return s.batch * s.heads * s.q_len * s.kv_len;
}

ProblemShape affordable(const AttentionSpec& spec, ProblemShape shape) {
  if (pairs_of(spec, shape) > kWholePairs && !is_packed(spec)) shape.batch = 1;
  if (pairs_of(spec, shape) > kWholePairs) {
    shape.heads = std::min(shape.heads / shape.kv_heads, kManyHeads);
    shape.kv_heads = 1;
  }
  return shape;
}

BackwardSample sample_of(const AttentionSpec& spec, const HostProblem& problem,
                         std::uint64_t seed) {
  const std::int64_t pairs = pairs_of(spec, problem.shape);
  if (pairs <= kWholePairs) return whole_sample(problem);
  const int block = pairs / 16 <= kSampledPairs ? 16 : 64;
  return stratified_sample(problem, kSampledPairs, block, seed);
}

class BackwardCheck final : public Check {
 public:
  static Result<std::unique_ptr<Check>> make(const ProblemSource& source,
                                             const LoadedKernel& forward,
                                             const HostProblem& problem, std::uint64_t seed) {
    std::unique_ptr<BackwardCheck> made(new BackwardCheck(source, forward, problem.shape, seed));
    made->sample_ = sample_of(source.spec, problem, seed);
    made->places_.shape = problem.shape;
    made->places_.sequences = problem.sequences;
    ATT_TRY(made->problem_,
            BackwardProblem::make(source.device, source.spec, problem, forward, seed));
    ATT_TRY(const HostOutput given, made->problem_->forward_output());
    const bool rounds_p = arithmetic_of(source.device.facts().target) == Arithmetic::kMatrixUnit;
    made->oracle_ = oracle_backward(source.spec, problem, given, made->problem_->output_gradients(),
                                    made->sample_, rounds_p);
    return std::unique_ptr<Check>(std::move(made));
  }

  const ProblemShape& shape() const override { return shape_; }
  TimedProblem& problem() override { return *problem_; }
  Result<Verdict> judge() override {
    ATT_TRY(const Gradients all, problem_->download());
    Verdict verdict{.wrong = wrong_gradient(all, oracle_, sample_, source_.spec, places_)};
    if (!verdict.wrong.empty() && pairs_of(source_.spec, shape_) > kWholePairs)
      verdict.wrong = "of the rows that were looked at, " + verdict.wrong;
    return verdict;
  }

 private:
  BackwardCheck(const ProblemSource& source, const LoadedKernel& forward, const ProblemShape& shape,
                std::uint64_t seed)
      : source_(source), forward_(forward), shape_(shape), seed_(seed) {}

  Result<std::unique_ptr<Check>> make_another() override {
    const std::uint64_t seed = seed_ + kAnotherSeed;
    return make(source_, forward_, random_problem(source_.spec, shape_, seed), seed);
  }

  const ProblemSource& source_;
  const LoadedKernel& forward_;
  const ProblemShape shape_;
  const std::uint64_t seed_;
  BackwardSample sample_;
  HostProblem places_;  // shape and sequences alone
  std::unique_ptr<BackwardProblem> problem_;
  BackwardOracle oracle_;
};

}  // namespace

BackwardSample rows_for_device(const AttentionSpec& spec, const ProblemShape& shape,
                               std::uint64_t seed) {
  const std::int64_t terms = std::min(shape.kv_len, shape.q_len * (shape.heads / shape.kv_heads));
  const std::int64_t pairs =
      std::min(kPairsOfDevice, kElementsOfDevice / (spec.head_dim_qk + spec.head_dim_v) * terms);
  const HostProblem places{.shape = shape};
  const std::int64_t all = pairs_of(spec, shape);
  if (all <= pairs) return whole_sample(places);
  return stratified_sample(places, pairs, all / 16 <= kLeastPairsOfDevice ? 16 : 64, seed);
}

Result<const LoadedKernel*> BackwardProblems::forward() {
  if (!forward_) {
    ATT_TRY(const PlanChoice choice,
            choose_plan(source_.spec, source_.shape, source_.device, source_.store));
    ATT_TRY(const BuiltKernel built,
            build(source_.spec, choice.plan, source_.compiler, source_.store));
    ATT_TRY(forward_, source_.device.load(source_.spec, choice.plan, built.code.image));
  }
  return forward_.get();
}

Result<TimedProblem*> BackwardProblems::timed() {
  if (!timed_) {
    ATT_CHECK(check_memory(Pass::kBackward, source_));
    ATT_TRY(const LoadedKernel* forward, this->forward());
    if (source_.launch != nullptr) {
      ATT_TRY(timed_,
              BackwardProblem::of_launch(source_.device, source_.spec, *source_.launch, *forward));
    } else {
      ATT_TRY(timed_, BackwardProblem::for_timing(source_.device, source_.spec, source_.shape,
                                                  *forward, kTimedSeed));
    }
  }
  return timed_.get();
}

Result<std::vector<Check*>> BackwardProblems::checks() {
  if (checks_.empty()) {
    ATT_TRY(const LoadedKernel* forward, this->forward());
    std::vector<ProblemShape> shapes =
        verification_shapes(source_.spec, Pass::kBackward, source_.shape);
    std::vector<std::unique_ptr<Check>> checks;
    if (source_.device.facts().target != Target::kCpu) {
      if (auto oracle = GradientOracle::make(source_.device, source_.compiler, source_.spec);
          oracle.ok()) {
        oracle_ = std::move(*oracle);
        ATT_CHECK(timed());
        if (auto whole = check_on_device(nullptr, source_.seed); whole.ok()) {
          checks.push_back(std::move(*whole));
          if (shapes.size() > 1) shapes.erase(shapes.begin());
        }
      }
    }
    std::uint64_t seed = source_.seed;
    const auto add = [&](const HostProblem& problem) -> Status {
      ATT_TRY(auto check, BackwardCheck::make(source_, *forward, problem, seed++));
      checks.push_back(std::move(check));
      return ok_status();
    };
    if (source_.launch != nullptr && pairs_of(source_.spec, source_.shape) <= kWholePairs)
      ATT_CHECK(add(host_problem(source_.spec, *source_.launch)));
    for (const ProblemShape& shape : shapes) {
      ATT_CHECK(add(random_problem(source_.spec, affordable(source_.spec, shape), seed)));
    }
    checks_ = std::move(checks);
  }
  return borrowed(checks_);
}

Result<std::unique_ptr<Check>> BackwardProblems::check_on_device(
    std::unique_ptr<BackwardProblem> own, std::uint64_t seed) {
  BackwardProblem* const problem = own ? own.get() : timed_.get();
  ATT_TRY(GradientOracle::Answer answer,
          oracle_->answer(problem->params(), rows_for_device(source_.spec, source_.shape, seed)));
  auto judge = [this, problem, answer = std::move(answer)]() -> Result<Verdict> {
    ATT_CHECK(problem->check_canaries());
    return oracle_->judge(answer, problem->params());
  };
  auto make_another = [this, seed = seed + kAnotherSeed]() -> Result<std::unique_ptr<Check>> {
    ATT_TRY(const LoadedKernel* forward, this->forward());
    ATT_TRY(auto fresh, BackwardProblem::for_timing(source_.device, source_.spec, source_.shape,
                                                    *forward, seed));
    return check_on_device(std::move(fresh), seed);
  };
  return std::unique_ptr<Check>(std::make_unique<JudgedCheck<BackwardProblem>>(
      source_.shape, problem, std::move(own), std::move(judge), std::move(make_another)));
}

}  // namespace attune
