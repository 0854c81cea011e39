// The backward pass through the C interface on the CPU, of a caller whose matrices all have strides
// of their own, with NaN wherever a kernel has no business: between rows, behind the last key and
// the last query, in rows that see no key.
#include <attune/attune.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/reference/backward.hpp"
#include "tests/cpu/cpu_test.hpp"
#include "tuner/measure/backward_problem.hpp"

namespace attune {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// With more queries than keys the first rows of a causal mask see none.
constexpr const char* kYaml =
    "attune: 1\nname: strided\ndtype: fp32\nhead_dim: {qk: 16, v: 24}\nlayout: bshd\n"
    "mask: causal\npasses: [forward, backward]\n";
constexpr ProblemShape kShape{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 70, .kv_len = 53};
constexpr att_shape kArgument = {2, 4, 2, 70, 53};
constexpr std::int64_t kRowsBehind = 3;

// NaN where no element lies. `gap`: elements between the heads of a row, a multiple of 4.
class Matrix {
 public:
  Matrix(std::int64_t heads, std::int64_t rows, std::int64_t dim, std::int64_t gap)
      : heads_(heads), rows_(rows), dim_(dim) {
    strides.head = dim + gap;
    strides.seq = heads * strides.head + gap;
    strides.batch = (rows + kRowsBehind) * strides.seq;
    data_.assign(static_cast<std::size_t>(kShape.batch * strides.batch), kNan);
  }
  void fill(const std::vector<double>& values) {
    std::size_t next = 0;
    each([&](float& element) { element = static_cast<float>(values[next++]); });
  }
  std::vector<double> values() {
    std::vector<double> found;
    each([&](float& element) { found.push_back(element); });
    return found;
  }
  // Whether anything but its elements was written.
  bool is_damaged() {
    const std::vector<float> kept = data_;
    each([](float& element) { element = kNan; });
    const bool is_clean = std::ranges::all_of(data_, [](float x) { return std::isnan(x); });
    data_ = kept;
    return !is_clean;
  }
  float* data() { return data_.data(); }

  att_strides strides{};

 private:
  template <typename Visit>
  void each(const Visit& visit) {
    for (std::int64_t b = 0; b < kShape.batch; ++b) {
      for (std::int64_t h = 0; h < heads_; ++h) {
        for (std::int64_t row = 0; row < rows_; ++row) {
          const std::int64_t first = b * strides.batch + row * strides.seq + h * strides.head;
          for (std::int64_t i = 0; i < dim_; ++i) visit(data_[static_cast<std::size_t>(first + i)]);
        }
      }
    }
  }

  std::int64_t heads_, rows_, dim_;
  std::vector<float> data_;
};

class BackwardApi : public testing_support::CpuTest {
 protected:
  void SetUp() override {
    CpuTest::SetUp();
    if (IsSkipped()) return;
    const att_runtime_options options = {sizeof options, "cpu", ""};
    ASSERT_EQ(att_runtime_create(&options, &runtime_), ATT_OK) << att_last_error();
    ASSERT_EQ(att_spec_from_yaml(kYaml, &spec_), ATT_OK) << att_last_error();
  }
  void TearDown() override {
    att_spec_destroy(spec_);
    att_runtime_destroy(runtime_);
  }

  att_runtime* runtime_ = nullptr;
  att_spec* spec_ = nullptr;
};

TEST_F(BackwardApi, TakesAnyStrides) {
  const auto spec = parse_spec(kYaml, "strided.yaml");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const HostProblem problem = random_problem(*spec, kShape, 3);
  OutputGradients given = random_output_gradients(*spec, kShape, 4);
  Matrix q(4, 70, 16, 4), k(2, 53, 16, 8), v(2, 53, 24, 0), o(4, 70, 24, 4), d_o(4, 70, 24, 12),
      d_q(4, 70, 16, 8), d_k(2, 53, 16, 0), d_v(2, 53, 24, 4);
  q.fill(problem.q);
  k.fill(problem.k);
  v.fill(problem.v);
  std::vector<float> lse(static_cast<std::size_t>(2 * 4 * 70), kNan);

  att_kernel* forward = nullptr;
  ASSERT_EQ(att_kernel_get(runtime_, spec_, &kArgument, &forward), ATT_OK) << att_last_error();
  att_forward_args first = {};
  first.struct_size = sizeof first;
  first.shape = kArgument;
  first.q = q.data(), first.k = k.data(), first.v = v.data(), first.o = o.data();
  first.lse = lse.data();
  first.q_strides = q.strides, first.k_strides = k.strides;
  first.v_strides = v.strides, first.o_strides = o.strides;
  ASSERT_EQ(att_forward(forward, &first, nullptr), ATT_OK) << att_last_error();
  att_kernel_destroy(forward);

  int dead_rows = 0;
  for (std::size_t row = 0; row < lse.size(); ++row) {
    if (lse[row] != -std::numeric_limits<float>::infinity()) continue;
    ++dead_rows;
    given.d_lse[row] = kNan;
    for (std::size_t i = 0; i < 24; ++i) given.d_o[row * 24 + i] = kNan;
  }
  EXPECT_EQ(dead_rows, 2 * 4 * (70 - 53));
  d_o.fill(given.d_o);
  const std::vector<float> d_lse(given.d_lse.begin(), given.d_lse.end());

  att_kernel* backward = nullptr;
  ASSERT_EQ(att_kernel_get_for_pass(runtime_, spec_, &kArgument, ATT_PASS_BACKWARD, &backward),
            ATT_OK)
      << att_last_error();
  att_backward_args args = {};
  args.struct_size = sizeof args;
  args.shape = kArgument;
  args.q = q.data(), args.k = k.data(), args.v = v.data(), args.o = o.data();
  args.lse = lse.data(), args.d_o = d_o.data(), args.d_lse = d_lse.data();
  args.d_q = d_q.data(), args.d_k = d_k.data(), args.d_v = d_v.data();
  args.q_strides = q.strides, args.k_strides = k.strides, args.v_strides = v.strides;
  args.o_strides = o.strides, args.d_o_strides = d_o.strides;
  args.d_q_strides = d_q.strides, args.d_k_strides = d_k.strides, args.d_v_strides = d_v.strides;
  args.workspace_bytes = att_kernel_workspace_bytes(backward, &kArgument);
  // Of float4, so that it is aligned.
  std::vector<float> workspace(args.workspace_bytes / sizeof(float) + 4, kNan);
  args.workspace = workspace.data();
  ASSERT_EQ(att_backward(backward, &args, nullptr), ATT_OK) << att_last_error();
  att_kernel_destroy(backward);

  for (Matrix* written : {&d_q, &d_k, &d_v}) EXPECT_FALSE(written->is_damaged());
  const Gradients gradients{d_q.values(), d_k.values(), d_v.values(), {}};
  constexpr bool kRoundsP = false;
  EXPECT_EQ(wrong_gradient(gradients, oracle_backward(*spec, problem, given, kRoundsP)), "");
}

}  // namespace
}  // namespace attune
