#include "tuner/search/compile_ahead.hpp"

#include <gmock/gmock.h>

#include <latch>

#include "tests/unit/tuner/fake_executor.hpp"

namespace attune {
namespace {

using namespace tuner_testing;

// The first compile lasts until it is let go.
class Gated final : public Executor {
 public:
  Result<CompiledFacts> compile(const Candidate& candidate) override {
    order.push_back(candidate);
    if (order.size() == 1) {
      began.count_down();
      gate.wait();
    }
    return CompiledFacts{};
  }
  Result<std::string> build_digest(const Candidate&) override { return std::string(); }
  Status verify(const Candidate&) override { return ok_status(); }
  Result<double> time_us(const Candidate&) override { return 1.0; }
  void release(const Candidate&) override {}
  std::string conditions() override { return "{}"; }

  std::latch began{1}, gate{1};
  std::vector<Candidate> order;  // of compiles; one thread's
};

TEST(CompileAhead, WhatIsAskedForLastGoesFirstAndNothingTwice) {
  const Candidate a = sm80_plan(16, 64, 2, 4), b = sm80_plan(32, 64, 2, 4),
                  c = sm80_plan(64, 64, 2, 4), d = sm80_plan(128, 64, 2, 4);
  Gated executor;
  {
    CompileAhead ahead(executor, 1);
    ahead.submit(std::vector{a, b, c});
    executor.began.wait();
    ahead.submit(std::vector{a, d, c});
    executor.gate.count_down();
    std::vector<Candidate> awaited{a, b, c, d};
    while (!awaited.empty()) std::erase(awaited, ahead.take_any(awaited).first);
  }
  EXPECT_THAT(executor.order, ::testing::ElementsAre(a, d, c, b));
}

// A finalist that had been released, say, because others were better, which fail since.
TEST(CompileAhead, WhatWasTakenCanBeAskedForAgain) {
  const std::vector<Candidate> one{sm80_plan(16, 64, 2, 4)};
  Gated executor;
  executor.gate.count_down();
  {
    CompileAhead ahead(executor, 1);
    for (int time = 0; time < 2; ++time) {
      ahead.submit(one);
      EXPECT_TRUE(ahead.take_any(one).second.ok());
    }
  }
  EXPECT_THAT(executor.order, ::testing::SizeIs(2));
}

}  // namespace
}  // namespace attune
