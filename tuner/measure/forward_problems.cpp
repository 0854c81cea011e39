#include "tuner/measure/forward_problems.hpp"

#include <algorithm>
#include <utility>

#include "runtime/support/memory.hpp"
#include "tuner/measure/judged_check.hpp"
#include "tuner/measure/memory_need.hpp"

namespace attune {
namespace {

// Pairs of a query and a key that an oracle may work out for one problem beyond a row of every 16
// queries: a quarter of a second of two cores, half a second of an H200.
constexpr std::int64_t kPairsOnHost = std::int64_t{1} << 21;
constexpr std::int64_t kPairsOnDevice = std::int64_t{1} << 31;
// Elements of O that the GPU's oracle keeps at most, at 8 bytes each, likewise.
constexpr std::int64_t kElementsOnDevice = std::int64_t{1} << 27;

constexpr std::int64_t kLeastRows = 1024;  // of packed sequences, where these are long

// Of packed sequences, which may begin and end anywhere, rows at random.
std::vector<Row> checked_rows(const HostProblem& problem, std::uint64_t seed) {
  if (problem.sequences.empty()) return stratified_rows(problem.shape, kPairsOnHost, seed);
  const std::int64_t rows = kPairsOnHost / problem.shape.kv_len;
  return sample_rows(problem, static_cast<int>(std::max(kLeastRows, rows)), seed);
}

}  // namespace

Status ForwardProblems::make_timed() {
  if (timed_) return ok_status();
  ATT_CHECK(check_memory(Pass::kForward, source_));
  if (source_.launch != nullptr) {
    ATT_TRY(timed_, DeviceProblem::of_launch(source_.device, source_.spec, *source_.launch));
  } else {
    ATT_TRY(timed_,
            DeviceProblem::for_timing(source_.device, source_.spec, source_.shape, kTimedSeed));
  }
  return ok_status();
}

Result<TimedProblem*> ForwardProblems::timed() {
  ATT_CHECK(make_timed());
  return timed_.get();
}

Result<std::vector<Check*>> ForwardProblems::checks() {
  if (checks_.empty()) {
    std::vector<ProblemShape> shapes =
        verification_shapes(source_.spec, Pass::kForward, source_.shape);
    std::vector<std::unique_ptr<Check>> checks;
    ATT_CHECK(make_timed());
    // Where the GPU's oracle works, the shape itself is checked, with the numbers that are timed.
    if (auto oracle = DeviceOracle::make(source_.device, source_.compiler, source_.spec);
        oracle.ok()) {
      oracle_ = std::move(*oracle);
      if (auto whole = check_on_device(nullptr, source_.seed); whole.ok()) {
        checks.push_back(std::move(*whole));
        if (shapes.size() > 1) shapes.erase(shapes.begin());
      }
    }
    std::uint64_t seed = source_.seed;
    if (checks.empty() && can_afford_launch()) {
      ATT_TRY(auto check, check_on_host(host_problem(source_.spec, *source_.launch), seed++));
      checks.push_back(std::move(check));
    }
    for (const ProblemShape& shape : shapes) {
      ATT_TRY(auto check, check_on_host(random_problem(source_.spec, shape, seed), seed));
      checks.push_back(std::move(check));
      ++seed;
    }
    checks_ = std::move(checks);
  }
  return borrowed(checks_);
}

Result<std::unique_ptr<Check>> ForwardProblems::check_on_device(std::unique_ptr<DeviceProblem> own,
                                                                std::uint64_t seed) {
  DeviceProblem* const problem = own ? own.get() : timed_.get();
  const std::int64_t pairs =
      std::min(kPairsOnDevice, kElementsOnDevice / source_.spec.head_dim_v * source_.shape.kv_len);
  ATT_TRY(DeviceOracle::Answer answer,
          oracle_->answer(problem->params(), stratified_rows(source_.shape, pairs, seed)));
  auto judge = [this, problem, answer = std::move(answer)]() -> Result<Verdict> {
    ATT_CHECK(problem->check_canaries());
    return oracle_->judge(answer, problem->params());
  };
  auto make_another = [this, seed = seed + kAnotherSeed]() -> Result<std::unique_ptr<Check>> {
    ATT_TRY(auto fresh,
            DeviceProblem::for_timing(source_.device, source_.spec, source_.shape, seed));
    return check_on_device(std::move(fresh), seed);
  };
  return std::unique_ptr<Check>(std::make_unique<JudgedCheck<DeviceProblem>>(
      source_.shape, problem, std::move(own), std::move(judge), std::move(make_another)));
}

bool ForwardProblems::can_afford_launch() const {
  if (source_.launch == nullptr) return false;
  const DeviceFacts& facts = source_.device.facts();
  const auto rows = static_cast<double>(kPairsOnHost);
  return check_fits(need_of_run(source_.spec, source_.shape, rows), source_.shape, facts,
                    available_memory_bytes())
      .ok();
}

Result<std::unique_ptr<Check>> ForwardProblems::check_on_host(const HostProblem& problem,
                                                              std::uint64_t seed) {
  const ProblemShape shape = problem.shape;
  const auto rows = checked_rows(problem, seed);
  ATT_TRY(auto own, DeviceProblem::upload(source_.device, source_.spec, problem));
  DeviceProblem* const on_device = own.get();
  auto judge =
      [on_device, rows,
       oracle = oracle_forward(source_.spec, problem, rows,
                               arithmetic_of(source_.device.facts().target))]() -> Result<Verdict> {
    ATT_TRY(const HostOutput out, on_device->download(rows));
    return compare(out, oracle);
  };
  auto make_another = [this, shape, seed = seed + kAnotherSeed] {
    return check_on_host(random_problem(source_.spec, shape, seed), seed);
  };
  return std::unique_ptr<Check>(std::make_unique<JudgedCheck<DeviceProblem>>(
      shape, on_device, std::move(own), std::move(judge), std::move(make_another)));
}

}  // namespace attune
