// Shapes that move: lengths that grow step by step, tuned shapes among them, more than fit.
#include <gtest/gtest.h>

#include <future>
#include <set>

#include "runtime/engine/dispatcher.hpp"
#include "tests/unit/cache/allocations.hpp"
#include "tests/unit/runtime/fakes.hpp"

namespace attune::runtime_test {
namespace {

constexpr std::int64_t kSteps = 100000;

class GrowingTest : public EngineTest {
 protected:
  std::shared_ptr<Workshop> hopper() const {
    return std::make_shared<Workshop>(std::make_unique<FakeDevice>("hopper", Target::kSm90a),
                                      Overlay::open({}), opener(compiler_));
  }
  static ProblemShape decode(std::int64_t kv_len) {
    return {.batch = 4, .heads = 32, .kv_heads = 8, .q_len = 1, .kv_len = kv_len};
  }
  // The kernel of a shape, held by the dispatcher alone.
  const KernelEntry* get(Dispatcher& dispatcher, const ProblemShape& shape) const {
    const auto entry = dispatcher.get(spec_, id_, shape);
    if (!entry.ok()) {
      ADD_FAILURE() << render(entry.error());
      return nullptr;
    }
    (*entry)->release();
    return *entry;
  }
  static std::size_t kernels(const Dispatcher& dispatcher) {
    std::size_t count = 0;
    dispatcher.for_each([&](const KernelEntry&) { ++count; });
    return count;
  }
  const SpecId id_ = SpecId::from_hash(spec_hash(*spec_));
};

TEST_F(GrowingTest, ADecodeLoopChoosesAHandfulOfTimes) {
  Dispatcher dispatcher(hopper(), false);
  for (std::int64_t kv_len = 1001; kv_len <= 1000 + kSteps; ++kv_len)
    ASSERT_NE(get(dispatcher, decode(kv_len)), nullptr);
  EXPECT_LE(dispatcher.counters().misses, 60u);  // 8 an octave
  EXPECT_EQ(kernels(dispatcher), dispatcher.counters().misses);
  // Its kernels are few as well, whatever the buckets.
  EXPECT_LE(compiler_->compiles, 8);

  const std::uint64_t misses = dispatcher.counters().misses;
  const long before = cache_testing::allocations_of_this_thread();
  for (std::int64_t kv_len = 1001; kv_len <= 1000 + kSteps; ++kv_len)
    ASSERT_NE(get(dispatcher, decode(kv_len)), nullptr);
  EXPECT_EQ(cache_testing::allocations_of_this_thread(), before);
  EXPECT_EQ(dispatcher.counters().misses, misses);
}

TEST_F(GrowingTest, PromptsAreToldApartByTiles) {
  Dispatcher dispatcher(hopper(), false);
  for (std::int64_t length = 1; length <= 16384; ++length) {
    const ProblemShape prompt{
        .batch = 1, .heads = 32, .kv_heads = 8, .q_len = length, .kv_len = length};
    ASSERT_NE(get(dispatcher, prompt), nullptr);
  }
  // One by one to 32, 16 an octave to 1024, then 64 rows each.
  EXPECT_EQ(dispatcher.counters().misses, 32u + 5 * 16 + (16384 - 1024) / 64);
}

TEST_F(GrowingTest, ATunedShapeIsAnsweredExactly) {
  const ProblemShape tuned = decode(5000), neighbour = decode(5001);
  ASSERT_EQ(bucket_of(tuned, Grain::kFine), bucket_of(neighbour, Grain::kFine));
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const KernelEntry* bucket = get(dispatcher, neighbour);
  EXPECT_EQ(get(dispatcher, tuned), bucket);
  record_winner(other_plan(), tuned);
  ASSERT_TRUE(dispatcher.refresh().ok());
  const KernelEntry* exact = get(dispatcher, tuned);
  ASSERT_NE(exact, nullptr);
  EXPECT_NE(exact, bucket);
  EXPECT_EQ(exact->version().choice.source, PlanSource::kMeasured);
  EXPECT_EQ(exact->version().choice.plan, other_plan());
  EXPECT_EQ(get(dispatcher, neighbour), bucket);
  EXPECT_EQ(bucket->version().choice.source, PlanSource::kNearestBucket);
  const std::uint64_t misses = dispatcher.counters().misses;
  EXPECT_EQ(get(dispatcher, tuned), exact);
  EXPECT_EQ(dispatcher.counters().misses, misses);
}

TEST_F(GrowingTest, ABucketKnowsWhetherItAnswersAllOfItsShapes) {
  using Serves = KernelEntry::Serves;
  const ProblemShape tuned = decode(5000), neighbour = decode(5001);
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const KernelEntry* bucket = get(dispatcher, neighbour);
  const auto served = [&](const ProblemShape& asked) {
    EXPECT_NE(get(dispatcher, asked), nullptr);
    return bucket->serves(dispatcher.workshop().snapshot_version());
  };
  EXPECT_EQ(served(neighbour), Serves::kAll);
  // The shape that stands for the bucket has its kernel.
  record_winner(other_plan(), bucket->key.shape);
  ASSERT_TRUE(dispatcher.refresh().ok());
  EXPECT_EQ(bucket->serves(dispatcher.workshop().snapshot_version()), Serves::kUnknown);
  EXPECT_EQ(served(neighbour), Serves::kAll);
  // Nor does a neighbour of another bucket matter.
  record_winner(other_plan(), decode(9000));
  ASSERT_TRUE(dispatcher.refresh().ok());
  EXPECT_EQ(served(neighbour), Serves::kAll);
  record_winner(other_plan(), tuned);
  ASSERT_TRUE(dispatcher.refresh().ok());
  EXPECT_EQ(served(neighbour), Serves::kSome);
}

TEST_F(GrowingTest, InTheBackgroundTheKernelInUseGoesOn) {
  Dispatcher dispatcher(hopper(), true);
  const KernelEntry* first = get(dispatcher, decode(1000));
  ASSERT_NE(first, nullptr);
  dispatcher.wait_idle();
  const std::string code = first->version().plan;
  const ProblemShape prompt{.batch = 1, .heads = 32, .kv_heads = 8, .q_len = 8192, .kv_len = 8192};
  ASSERT_NE(to_string(*default_plan(*spec_, prompt, device_facts(Target::kSm90a))), code);
  std::promise<void> gate;
  compiler_->on_compile = [opened = gate.get_future().share()] { opened.wait(); };
  const KernelEntry* next = get(dispatcher, prompt);  // would wait for ever if it compiled
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->version().choice.source, PlanSource::kStandIn);
  EXPECT_EQ(next->version().plan, code);
  EXPECT_EQ(next->version().code.kernel, first->version().code.kernel);
  gate.set_value();
  dispatcher.wait_idle();
  EXPECT_EQ(next->version().choice.source, PlanSource::kCostModel);
  EXPECT_NE(next->version().plan, code);
}

TEST_F(GrowingTest, BeyondItsRoomShapesAreToldApartByPowersOfTwo) {
  constexpr std::size_t kMost = 64;
  Dispatcher dispatcher(hopper(), false, kMost);
  const auto run = [&] {
    for (std::int64_t kv_len = 1; kv_len <= 20000; kv_len += 3)
      ASSERT_NE(get(dispatcher, decode(kv_len)), nullptr);
  };
  run();
  EXPECT_LE(kernels(dispatcher), kMost + kMost / 8);
  const std::uint64_t misses = dispatcher.counters().misses;
  run();
  EXPECT_EQ(dispatcher.counters().misses, misses);
}

}  // namespace
}  // namespace attune::runtime_test
