// The judge of gradients finds every fault that is planted in the CPU's backward kernels, in either
// of their forms, and none in the kernels as they are. So does the oracle that GPUs get, on cores.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "runtime/reference/gradient_oracle.hpp"
#include "tests/cpu/cpu_test.hpp"
#include "tests/verification/editing_compiler.hpp"
#include "tuner/measure/backward_problem.hpp"

namespace attune {
namespace {

using planted::EditingCompiler;
using planted::Fault;

// A window that drops out and learns a sink, and a bias by distance where the form can; two query
// heads a K/V head.
constexpr const char* kYaml =
    "attune: 1\nname: t\ndtype: bf16\nhead_dim: 32\nmask: sliding_window(200)\ndropout: 0.1\n"
    "sink: sinks[h]\ntensors:\n  sinks: {dtype: float32, dims: [heads], grad: true}\n";
constexpr const char* kBias =
    "  bias: {dtype: float32, dims: [heads, 64], grad: true}\n"
    "score: score + bias[h, min(63, max(0, q_idx - kv_idx))]\n";
constexpr ProblemShape kShape{.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 512, .kv_len = 512};

struct Form {
  const char* name;
  const char* plan;
  bool learns_bias;
};
void PrintTo(const Form& form, std::ostream* out) { *out << form.name; }
constexpr Form kForms[] = {{"Tiles", "cpu backward cpu t128 s64 u8 c1 v32", true},
                           {"WholeHeads", "cpu backward cpu t128 s64 u8 c1 v32 heads", true},
                           {"Parts", "cpu backward cpu t64 s64 u8 c1 v32 heads parts", false}};

const std::string kInTile =
    "(kOf == Lanes::kKeys && box.row0 <= 300 && 300 < box.row0 + box.rows && box.lane0 <= 250 && "
    "250 < box.lane0 + box.lanes && c.h == 1)";

std::vector<Fault> faults_of_keys(bool learns_bias) {
  const std::string in_tile = kInTile + " ? 0 : ";
  std::vector<Fault> faults = {
      {"dV of a tile left out",
       {{"add_transposed<kRowsOfV, kVectors>(tile.y.data, tile.y.stride, &scratch.p[0][0], "
         "kBlockLanes,\n                                       box.rows,",
         "add_transposed<kRowsOfV, kVectors>(tile.y.data, tile.y.stride, &scratch.p[0][0], "
         "kBlockLanes, " +
             in_tile + "box.rows,"}}},
      {"dK of a tile left out",
       {{"add_transposed<kRowsOfQk, kVectors>(tile.x.data, tile.x.stride, &scratch.d[0][0], "
         "kBlockLanes,\n                                      box.rows,",
         "add_transposed<kRowsOfQk, kVectors>(tile.x.data, tile.x.stride, &scratch.d[0][0], "
         "kBlockLanes, " +
             in_tile + "box.rows,"}}},
      {"the last query head of a group left out",
       {{"for (int h = first.h; h < first.h + group; ++h) {",
         "for (int h = first.h; h < first.h + group - 1; ++h) {"}}},
      {"another head of the group twice",
       {{"walk_head<Lanes::kKeys>(p, context_of(p, item, h, item.h), item.own,",
         "walk_head<Lanes::kKeys>(p, context_of(p, item, h & ~1, item.h), item.own,"}}},
      {"D of the row before",
       {{"tile.deltas = p.row_deltas + first;",
         "tile.deltas = p.row_deltas + first - (first > 0);"}}},
      {"the gradient of the LSE forgotten",
       {{"p.d_lse == nullptr ? product : product - p.d_lse[lse_row]", "product"}}},
      {"one of 32 dropout bits shifted",
       {{"bytes[i * kLength + j] < below", "bytes[(i == 5 ? 6 : i) * kLength + j] < below"}}},
      {"the mask a key too wide",
       {{"(!spec::kHasMask || mask(c, q_idx, kv_idx))",
         "(!spec::kHasMask || mask(c, q_idx - 1, kv_idx))"}}},
      {"the gradient of the sinks forgotten",
       {{"sums[i] -= math_exp2((logit - p.row_references[row]) * kLog2E) * p.row_deltas[row];",
         ""}}},
  };
  if (learns_bias) {
    faults.push_back({"dbias of a tile left out",
                      {{"if (kOf == Lanes::kKeys) {\n    add_learned(",
                        "if (kOf == Lanes::kKeys && !" + kInTile + ") {\n    add_learned("}}});
  }
  return faults;
}

// Of the sums that an item of a part has to itself.
std::vector<Fault> faults_of_parts() {
  return {{"the last part's dQ left out",
           {{"for (int part = 1; part < parts; ++part)",
             "for (int part = 1; part < parts - 1; ++part)"}}},
          {"a part's first tile left out",
           {{"for (int tile = item.part; tile <",
             "for (int tile = item.part == 2 ? 6 : item.part; tile <"}}},
          {"tiles of two parts", {{"kTile); tile += parts) {", "kTile); tile += parts / 2) {"}}},
          {"sums of dQ as they were found", {{"sums[j] = 0.0f;", "sums[j] += 1.0f;"}}}};
}

// Of dQ, whose sums the two forms make in different places.
Fault fault_of_queries(bool whole_heads) {
  if (whole_heads) {
    return {"dQ of a tile left out",
            {{"if (kOf == Lanes::kKeys && plan::kWholeHeads) {",
              "if (kOf == Lanes::kKeys && plan::kWholeHeads && !" + kInTile + ") {"}}};
  }
  return {"dQ of a tile left out",
          {{"add_tile<kOf, kVectors>(p, c, tile, block, scratch);",
            "if (kOf == Lanes::kKeys || c.h != 1 || tile.box.row0 != 256 || tile.box.lane0 > 300 "
            "|| tile.box.lane0 + tile.box.lanes <= 300) "
            "add_tile<kOf, kVectors>(p, c, tile, block, scratch);"}}};
}

class BackwardPlanted : public testing_support::CpuTest,
                        public testing::WithParamInterface<Form> {};

TEST_P(BackwardPlanted, FaultsAreFound) {
  const Form& form = GetParam();
  const auto spec = parse_spec(std::string(kYaml) + (form.learns_bias ? kBias : ""), "t.yaml");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const auto plan = parse_plan(form.plan);
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  const auto forward_plan = default_plan(*spec, kShape, device_->facts());
  ASSERT_TRUE(forward_plan.ok()) << render(forward_plan.error());
  const auto forward = load(*spec, *forward_plan, *compiler_);
  ASSERT_NE(forward, nullptr);
  const HostProblem problem = random_problem(*spec, kShape, 6);
  const auto on_device = BackwardProblem::make(*device_, *spec, problem, *forward, 7);
  ASSERT_TRUE(on_device.ok()) << render(on_device.error());
  constexpr bool kRoundsP = false;
  const BackwardOracle oracle =
      oracle_backward(*spec, problem, (*on_device)->output_gradients(), kRoundsP);
  const auto of_device = GradientOracle::make(*device_, *compiler_, *spec);
  ASSERT_TRUE(of_device.ok()) << render(of_device.error());
  const auto answer = (*of_device)->answer((*on_device)->params(), whole_sample(problem));
  ASSERT_TRUE(answer.ok()) << render(answer.error());
  // By either oracle.
  using Wrong = std::pair<std::string, std::string>;
  const auto wrong = [&](Compiler& compiler) -> Wrong {
    const auto backward = load(*spec, *plan, compiler);
    if (backward == nullptr) return {"no kernel", "no kernel"};
    const auto gradients = (*on_device)->run(*backward);
    EXPECT_TRUE(gradients.ok()) << render(gradients.error());
    const auto verdict = (*of_device)->judge(*answer, (*on_device)->params());
    EXPECT_TRUE(verdict.ok()) << render(verdict.error());
    if (!gradients.ok() || !verdict.ok()) return {"no gradients", "no gradients"};
    return {wrong_gradient(*gradients, oracle), verdict->wrong};
  };
  EXPECT_EQ(wrong(*compiler_), Wrong()) << "without a fault";
  std::vector<Fault> faults = faults_of_keys(form.learns_bias);
  const auto& tile = std::get<CpuBackwardPlan>(plan->tile);
  faults.push_back(fault_of_queries(tile.whole_heads));
  if (tile.in_parts) std::ranges::copy(faults_of_parts(), std::back_inserter(faults));
  for (const Fault& fault : faults) {
    EditingCompiler compiler(*compiler_, fault);
    const auto [by_host, by_device] = wrong(compiler);
    EXPECT_NE(by_host, "") << fault.name;
    EXPECT_NE(by_device, "") << fault.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, BackwardPlanted, testing::ValuesIn(kForms),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace attune
