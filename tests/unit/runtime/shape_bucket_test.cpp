#include "runtime/engine/shape_bucket.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "generator/plan/plan.hpp"
#include "generator/spec/library.hpp"

namespace attune {
namespace {

// Lengths are as likely in every octave.
class Random {
 public:
  std::int64_t up_to(std::int64_t most) {
    const double power = std::uniform_real_distribution(0.0, std::log2(double(most) + 1))(engine_);
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::exp2(power)), 1, most);
  }
  ProblemShape shape() {
    ProblemShape shape{.batch = up_to(64), .kv_heads = up_to(16)};
    shape.heads = shape.kv_heads * up_to(8);
    shape.q_len = up_to(1 << 15);
    shape.kv_len = up_to(3) == 1 ? shape.q_len : up_to(1 << 17);
    return shape;
  }

 private:
  std::mt19937_64 engine_{7};
};

TEST(ShapeBucket, HoldsAllShapesThatItStandsFor) {
  Random random;
  for (int i = 0; i < 20000; ++i) {
    const ProblemShape shape = random.shape();
    EXPECT_EQ(bucket_of(shape, Grain::kExact), shape);
    for (const Grain grain : {Grain::kFine, Grain::kCoarse}) {
      const ProblemShape bucket = bucket_of(shape, grain);
      const std::string what = to_string(shape) + " -> " + to_string(bucket);
      ASSERT_EQ(bucket_of(bucket, grain), bucket) << what;
      ASSERT_TRUE(bucket.heads == shape.heads && bucket.kv_heads == shape.kv_heads) << what;
      ASSERT_TRUE(bucket.batch >= shape.batch && bucket.q_len >= shape.q_len) << what;
      ASSERT_TRUE(bucket.kv_len >= shape.kv_len) << what;
      const double most = grain == Grain::kFine ? 1.26 : 2;
      ASSERT_LE(double(bucket.q_len), most * double(shape.q_len)) << what;
      if (shape.kv_len == shape.q_len) {
        ASSERT_EQ(bucket.kv_len, bucket.q_len) << what;
      }
      ASSERT_EQ(shape.kv_len < shape.q_len && bucket.kv_len > bucket.q_len, false) << what;
      ASSERT_EQ(shape.kv_len > shape.q_len && bucket.kv_len < bucket.q_len, false) << what;
    }
  }
}

TEST(ShapeBucket, PowersOfTwoAndSmallLengthsStandForThemselves) {
  for (std::int64_t length = 1; length <= std::int64_t{1} << 28; length *= 2) {
    const ProblemShape shape{
        .batch = 4, .heads = 8, .kv_heads = 2, .q_len = length, .kv_len = length};
    EXPECT_EQ(bucket_of(shape, Grain::kFine), shape);
    EXPECT_EQ(bucket_of(shape, Grain::kCoarse), shape);
  }
  for (std::int64_t length = 1; length <= 16; ++length) {
    const ProblemShape shape{.q_len = length, .kv_len = 17 - length};
    EXPECT_EQ(bucket_of(shape, Grain::kFine), shape);
  }
}

// A static schedule is even or not by the number of query tiles, and the last wave counts where
// there are few items.
TEST(ShapeBucket, QueryTilesAndFewItemsAreToldApart) {
  const auto bucket = [](std::int64_t batch, std::int64_t q_len) {
    return bucket_of({.batch = batch, .heads = 8, .q_len = q_len, .kv_len = 1 << 20}, Grain::kFine);
  };
  EXPECT_EQ(bucket(1, 8129).q_len, 8192);
  EXPECT_EQ(bucket(1, 8128).q_len, 8128);
  EXPECT_EQ(bucket(37, 8128).q_len, 8128);
  EXPECT_EQ(bucket(37, 64).batch, 37);
  EXPECT_EQ(bucket(37, 8128).batch, 40);
}

// By the cost model, what the bucket's choice takes at a shape over what its own would.
TEST(ShapeBucket, TheChoiceHardlyChangesWithinOne) {
  Random random;
  double log_sum = 0;
  int count = 0, bad = 0;
  for (const char* name : {"full", "causal", "sliding_window", "document_causal"}) {
    const auto library = find_library_spec(name);
    ASSERT_TRUE(library.ok());
    const auto spec = parse_spec(library->text, library->path);
    ASSERT_TRUE(spec.ok());
    for (const Target target : {Target::kSm90a, Target::kSm80}) {
      const DeviceFacts device = device_facts(target);
      for (int i = 0; i < 100; ++i) {
        ProblemShape shape = random.shape();
        if (i % 2 == 0) shape.q_len = 1;
        const auto own = default_plan(*spec, shape, device);
        const auto of_bucket = default_plan(*spec, bucket_of(shape, Grain::kFine), device);
        ASSERT_TRUE(own.ok() && of_bucket.ok());
        const double ratio =
            cost_us(*spec, *of_bucket, shape, device) / cost_us(*spec, *own, shape, device);
        log_sum += std::log(ratio);
        ++count;
        bad += ratio > 1.1 ? 1 : 0;
      }
    }
  }
  EXPECT_LT(std::exp(log_sum / count), 1.01);
  EXPECT_LE(bad, count / 100);
}

}  // namespace
}  // namespace attune
