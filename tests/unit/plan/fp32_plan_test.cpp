// fp32 on GPUs: the sm80 family's, whatever the GPU.
#include <gtest/gtest.h>

#include <set>

#include "generator/plan/family.hpp"
#include "generator/plan/plan.hpp"
#include "tests/unit/plan/plain_spec.hpp"

namespace attune {
namespace {

constexpr Target kGpuTargets[] = {Target::kSm80,  Target::kSm86,  Target::kSm89,
                                  Target::kSm90a, Target::kSm100, Target::kSm120};
constexpr ProblemShape kShape{.batch = 2, .heads = 8, .kv_heads = 2, .q_len = 2048, .kv_len = 2048};

AttentionSpec fp32_spec(int head_dim, Precision precision = Precision::kStrict) {
  AttentionSpec spec = plain_spec(head_dim);
  spec.dtype = DType::kF32;
  spec.precision = precision;
  return spec;
}

TEST(Fp32Plans, AreOfTheSm80FamilyOnEveryGpu) {
  for (const Target target : kGpuTargets) {
    for (const Pass pass : kPasses) {
      const auto families = families_for(fp32_spec(128), target, pass);
      ASSERT_TRUE(families.ok()) << render(families.error());
      EXPECT_EQ(*families, std::vector{Family::kSm80}) << to_string(target);
    }
  }
  for (const Family family : {Family::kSm90a, Family::kDecode}) {
    const Status refused =
        family_operations(family, Pass::kForward)->serves(fp32_spec(128), Target::kSm90a);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("computes in fp16 and bf16, not fp32"),
              std::string::npos)
        << refused.error().message;
  }
}

TEST(Fp32Plans, FitRoundTripAndHaveTheirOwnSymbols) {
  for (const int head_dim : {16, 40, 64, 80, 96, 128, 192, 256}) {
    for (const Precision precision : {Precision::kStrict, Precision::kTf32}) {
      const AttentionSpec spec = fp32_spec(head_dim, precision);
      for (const Target target : kGpuTargets) {
        for (const Pass pass : kPasses) {
          const DeviceFacts device = device_facts(target);
          const auto plans = legal_plans(spec, Family::kSm80, device, pass);
          const bool fits = head_dim < 256 || pass == Pass::kForward ||
                            device.shared_memory_per_block_bytes > 128 * 1024;
          EXPECT_EQ(!plans.empty(), fits) << head_dim << to_string(target) << to_string(pass);
          EXPECT_EQ(default_plan(spec, kShape, device, pass).ok(), fits);
          std::set<std::string> symbols;
          for (const KernelPlan& plan : plans) {
            const PlanResources needs = resources(spec, plan);
            EXPECT_LE(needs.shared_memory_bytes, device.shared_memory_per_block_bytes);
            int bytes = 0;
            for (const SharedMatrix& m : shared_matrices(spec, plan))
              bytes += m.stages * m.rows * m.columns * 4;
            EXPECT_LE(bytes, needs.shared_memory_bytes) << to_string(plan);
            const auto parsed = parse_plan(to_string(plan));
            ASSERT_TRUE(parsed.ok()) << to_string(plan);
            EXPECT_EQ(*parsed, plan);
            EXPECT_TRUE(symbols.insert(launch_recipe(spec, plan).symbol).second);
          }
        }
      }
    }
  }
}

TEST(Fp32Plans, CostWhatTheirProductsDo) {
  const DeviceFacts device = device_facts(Target::kSm80);
  const auto best = [&](const AttentionSpec& spec, Pass pass) {
    return cost_us(spec, *default_plan(spec, kShape, device, pass), kShape, device);
  };
  for (const Pass pass : kPasses) {
    const double two_bytes = best(plain_spec(128), pass);
    const double one_product = best(fp32_spec(128, Precision::kTf32), pass);
    const double three_products = best(fp32_spec(128), pass);
    EXPECT_GT(one_product, 1.5 * two_bytes);
    EXPECT_GT(three_products, 1.5 * one_product);
    EXPECT_LT(three_products, 10 * two_bytes);
  }
}

TEST(Fp32Plans, ChecksNameTheLimitThatIsBroken) {
  const DeviceFacts device = device_facts(Target::kSm80);
  const auto message = [&](const AttentionSpec& spec, const char* plan) {
    const auto parsed = parse_plan(plan);
    EXPECT_TRUE(parsed.ok()) << plan;
    const Status status = check_plan(spec, *parsed, device);
    return status.ok() ? std::string() : status.error().message;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_EQ(message(fp32_spec(64), "sm80 forward sm_80 q64 k16 s2 w4 c16 u1 frozen"), "");
  EXPECT_TRUE(has(message(fp32_spec(64), "sm80 forward sm_80 q64 k64 s2 w4 c64 u1 frozen"),
                  "at most 32 keys in fp32"));
  EXPECT_TRUE(has(message(fp32_spec(64), "sm80 forward sm_80 q64 k64 s2 w4 c32 u2 frozen"),
                  "operands in parts"));
  EXPECT_TRUE(
      has(message(fp32_spec(64), "sm80 forward sm_80 q64 k48 s2 w4 c16 u1 frozen"), "kv tile"));
  EXPECT_TRUE(has(message(fp32_spec(256), "sm80 forward sm_80 q16 k32 s2 w1 c16 u1 frozen"),
                  "threads for rows"));
  EXPECT_TRUE(has(message(fp32_spec(128), "sm80 backward sm_80 w4 t64 s2"), "step of 16 or 32"));
  constexpr const char* kGroups = "sm80 forward sm_80 q32 k64 s2 w8 c16 u1 frozen";
  EXPECT_EQ(message(fp32_spec(128), kGroups), "");
  EXPECT_TRUE(has(message(plain_spec(128), kGroups), "16 or 32 of the tile's 32 rows"));
  EXPECT_TRUE(has(message(fp32_spec(64), "sm80 forward sm_80 q16 k128 s2 w8 c16 u1 frozen"),
                  "16 or 32 of the tile's 16 rows"));
  EXPECT_TRUE(has(message(fp32_spec(64), "sm80 forward sm_80 q24 k64 s2 w3 c16 u1 frozen"),
                  "16 or 32 of the tile's 24 rows"));
  EXPECT_TRUE(has(message(fp32_spec(64), "sm80 forward sm_80 q32 k64 s2 w8 c32 u1 frozen"),
                  "the share of the kv tile that 4 groups"));
  AttentionSpec dropping = fp32_spec(64);
  dropping.dropout.value = 0.1;
  EXPECT_EQ(message(dropping, "sm80 forward sm_80 q64 k16 s2 w4 c16 u1 frozen"), "");
  EXPECT_EQ(message(dropping, "sm80 backward sm_80 w4 t16 s2"), "");
  AttentionSpec eight_bits = fp32_spec(64);
  eight_bits.dtype = DType::kFp8E4m3;
  EXPECT_TRUE(has(message(eight_bits, "sm80 forward sm_80 q64 k32 s2 w4 c32 u1 frozen"),
                  "fp16, bf16 and fp32, not fp8_e4m3"));
}

}  // namespace
}  // namespace attune
