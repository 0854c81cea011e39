// A check whose problem lies in the device's memory, and whose judge is the caller's.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "tuner/measure/pass_problems.hpp"

namespace attune {

template <typename Problem>
class JudgedCheck final : public Check {
 public:
  using Judge = std::function<Result<Verdict>()>;
  using Maker = std::function<Result<std::unique_ptr<Check>>()>;

  // `own`: null where the problem is another's.
  JudgedCheck(const ProblemShape& shape, Problem* problem, std::unique_ptr<Problem> own,
              Judge judge, Maker make_another)
      : shape_(shape),
        problem_(problem),
        own_(std::move(own)),
        judge_(std::move(judge)),
        make_another_(std::move(make_another)) {}

  const ProblemShape& shape() const override { return shape_; }
  TimedProblem& problem() override { return *problem_; }
  Result<Verdict> judge() override { return judge_(); }

 private:
  Result<std::unique_ptr<Check>> make_another() override { return make_another_(); }

  const ProblemShape shape_;
  Problem* const problem_;
  const std::unique_ptr<Problem> own_;
  const Judge judge_;
  const Maker make_another_;
};

}  // namespace attune
