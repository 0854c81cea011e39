// Recipes of several launches on the CPU device: order, params, workspace.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "cpu_test.hpp"
#include "generator/emit/emit.hpp"
#include "generator/emit/flatten.hpp"
#include "runtime/device/workspace.hpp"

namespace attune {
namespace {

using testing_support::CpuTest;
using Content = WorkspaceRegion::Content;

class LaunchList : public CpuTest {};

// A backward pass of head dim 1 in three launches: what one leaves in the workspace the next reads.
constexpr const char* kMadeUpPass = R"(
using namespace att;

static int keys_from(const ForwardParams* p, int item) { return item + 1; }

extern "C" void made_up_rows_work(const BackwardParams*, CpuWork* work) { *work = {nullptr, 1, 0}; }
extern "C" void made_up_rows(const BackwardParams* p, int item, void*) {
  const int rows = p->batch * p->heads * p->q_len;
  for (int row = 4 * item; row < 4 * item + 4 && row < rows; ++row) {
    const float d_o = static_cast<const float*>(p->d_o)[row];
    p->row_deltas[row] = d_o * static_cast<const float*>(p->o)[row] - p->d_lse[row];
  }
}

extern "C" void made_up_work(const BackwardParams*, CpuWork* work) { *work = {keys_from, 2, 64}; }
extern "C" void made_up(const BackwardParams* p, int item, void* scratch) {
  float& sum = *static_cast<float*>(scratch);
  const int tiles = (p->kv_len + 1) / 2, head = item / tiles, group = p->heads / p->kv_heads;
  for (int key = item % tiles * 2; key < item % tiles * 2 + 2 && key < p->kv_len; ++key) {
    sum = 0;
    for (int row = 0; row < group * p->q_len; ++row) sum += p->row_deltas[head * group * p->q_len + row];
    float& kept = p->d_k_sums[head * p->kv_len + key];
    kept += sum;
    static_cast<float*>(p->d_k)[head * p->kv_len + key] = kept * static_cast<float>(key + 1);
  }
}

extern "C" void made_up_queries_work(const BackwardParams*, CpuWork* work) { *work = {nullptr, 1, 0}; }
extern "C" void made_up_queries(const BackwardParams* p, int item, void*) {
  const float* d_k = static_cast<const float*>(p->d_k);
  float all = 0;
  for (int i = 0; i < p->batch * p->kv_heads * p->kv_len; ++i) all += d_k[i];
  for (int q = 0; q < p->q_len; ++q) static_cast<float*>(p->d_q)[item * p->q_len + q] = all + item;
}
)";

TEST_F(LaunchList, ABackwardPassIsThreeLaunches) {
  const auto header = flatten_template("templates/cpu/launch.h", "");
  ASSERT_TRUE(header.ok()) << render(header.error());
  const auto code = compiler_->compile(*header + kMadeUpPass, "made_up", Target::kCpu);
  ASSERT_TRUE(code.ok()) << render(code.error());
  AttentionSpec spec;
  spec.dtype = DType::kF32;
  spec.head_dim_qk = spec.head_dim_v = 1;
  const LaunchRecipe recipe{
      .symbol = "made_up",
      .launches = {{.symbol = "made_up_rows", .item = WorkItem::kRows, .tile = 4},
                   {.symbol = "made_up",
                    .item = WorkItem::kKeyTile,
                    .tile = 2,
                    .zeroed = {Content::kKeySums}},
                   {.symbol = "made_up_queries", .item = WorkItem::kQueryTile, .tile = 64}},
      .workspace = {{.content = Content::kRowDeltas}, {.content = Content::kKeySums}}};
  const auto kernel = device_->load_recipe(spec, recipe, code->image);
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());

  const ProblemShape shape{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 3, .kv_len = 5};
  const std::size_t rows = 2 * 4 * 3, keys = 2 * 2 * 5;
  ASSERT_EQ((*kernel)->workspace_bytes(shape), rows * 4 + keys * 4);
  std::vector<float> o(rows), d_o(rows), d_lse(rows), d_q(rows), d_k(keys);
  std::iota(o.begin(), o.end(), 1.0f);
  std::ranges::fill(d_o, 2.0f);
  std::ranges::fill(d_lse, 1.0f);
  std::vector<float> workspace(rows + keys + 4, NAN);
  att::LaunchParams params{};
  params.batch = 2;
  params.heads = 4;
  params.kv_heads = 2;
  params.q_len = 3;
  params.kv_len = 5;
  params.o = o.data();
  params.d_o = d_o.data();
  params.d_lse = d_lse.data();
  params.d_q = d_q.data();
  params.d_k = d_k.data();
  for (int again = 0; again < 2; ++again) {
    const Status status = (*kernel)->launch(params, workspace.data(), nullptr);
    ASSERT_TRUE(status.ok()) << render(status.error());
    float all = 0;
    for (std::size_t head = 0; head < 4; ++head) {
      float deltas = 0;  // of two query heads with three rows each
      for (std::size_t row = head * 6; row < head * 6 + 6; ++row) deltas += 2 * o[row] - 1;
      for (std::size_t key = 0; key < 5; ++key) {
        EXPECT_EQ(d_k[head * 5 + key], deltas * static_cast<float>(key + 1));
        all += d_k[head * 5 + key];
      }
    }
    for (std::size_t row = 0; row < rows; ++row) EXPECT_EQ(d_q[row], all + float(row / 3));
    for (std::size_t i = rows + keys; i < workspace.size(); ++i) {
      EXPECT_TRUE(std::isnan(workspace[i])) << "written beyond the workspace";
    }
  }

  const Status missing = (*kernel)->launch(params, nullptr, nullptr);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().id, "workspace-missing");
}

TEST_F(LaunchList, AnUnknownSymbolIsAnError) {
  const auto header = flatten_template("templates/cpu/launch.h", "");
  const auto code = compiler_->compile(*header + kMadeUpPass, "made_up", Target::kCpu);
  ASSERT_TRUE(code.ok()) << render(code.error());
  const LaunchRecipe recipe{.symbol = "other", .launches = {{.symbol = "other"}}};
  const auto kernel = device_->load_recipe({}, recipe, code->image);
  ASSERT_FALSE(kernel.ok());
  EXPECT_EQ(kernel.error().id, "cpu-load");
}

TEST_F(LaunchList, ThePrePassCoversEveryBlockOfEveryRow) {
  const auto spec = parse_spec(
      "attune: 1\nname: t\ndtype: fp32\nhead_dim: 64\ntensors:\n"
      "  doc: {dtype: int32, dims: [batch, kv_len]}\n"
      "  level: {dtype: float32, dims: [kv_len]}\n"
      "mask: doc[b, q_idx] == doc[b, kv_idx] and level[kv_idx] < 1.0\n",
      "");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const auto plan = default_plan(*spec, {.q_len = 70, .kv_len = 70}, device_->facts());
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  const auto generated = emit(*spec, *plan);
  ASSERT_TRUE(generated.ok()) << render(generated.error());
  const auto code = compiler_->compile(generated->source, generated->symbol, Target::kCpu);
  ASSERT_TRUE(code.ok()) << render(code.error());
  LaunchRecipe recipe = launch_recipe(*spec, *plan);
  ASSERT_EQ(recipe.launches.size(), 2u);
  recipe.launches.pop_back();
  const auto kernel = device_->load_recipe(*spec, recipe, code->image);
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());

  // Rows of 70: a full block and a ragged one each.
  std::vector<int> doc(140);
  for (int i = 0; i < 140; ++i) doc[static_cast<std::size_t>(i)] = i % 70 - (i < 70 ? 3 : 1003);
  std::vector<float> level(70, 0.5f);
  level[30] = NAN;
  level[69] = -2.0f;
  att::LaunchParams params{};
  params.batch = 2;
  params.heads = params.kv_heads = 1;
  params.q_len = params.kv_len = 70;
  params.tensors[0] = {doc.data(), nullptr, {2, 70, 1, 1}};
  params.tensors[1] = {level.data(), nullptr, {70, 1, 1, 1}};
  struct {
    int doc[8];
    float level[4];
  } ranges{};
  ASSERT_EQ((*kernel)->workspace_bytes(shape_of(params)), sizeof(ranges));
  const Status status = (*kernel)->launch(params, &ranges, nullptr);
  ASSERT_TRUE(status.ok()) << render(status.error());
  EXPECT_EQ(std::vector(ranges.doc, ranges.doc + 8),
            (std::vector{-3, 60, 61, 66, -1003, -940, -939, -934}));
  EXPECT_TRUE(std::isnan(ranges.level[0]) && std::isnan(ranges.level[1]));
  EXPECT_EQ(ranges.level[2], -2.0f);
  EXPECT_EQ(ranges.level[3], 0.5f);
}

}  // namespace
}  // namespace attune
