// The checking mode on the CPU: wrong offsets, lengths and tables are refused with it, and nothing
// is launched; without it they are served as docs/packed.md and docs/paged.md promise.
#include <attune/attune.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace attune::c_api_test {
namespace {

using testing::HasSubstr;

constexpr int kDim = 8, kHeads = 2;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// Rows of memory before and behind what a launch is given: NaN, and nobody's.
constexpr std::size_t kForeign = 64;
constexpr std::size_t kRow = std::size_t{kHeads} * kDim;

// Rows [heads, dim] of a tensor between foreign ones, aligned as launches want it.
class Rows {
 public:
  Rows(std::size_t count, float value) : count_(count), memory_(count + 2 * kForeign) {
    for (Line& line : memory_) std::ranges::fill(line.values, kNan);
    std::fill_n(data(), count * kRow, value);
  }
  float* data() { return memory_[kForeign].values; }
  bool is_finite() {
    return std::all_of(data(), data() + count_ * kRow, [](float x) { return std::isfinite(x); });
  }
  bool is(float value) {
    return std::all_of(data(), data() + count_ * kRow,
                       [value](float x) { return std::isnan(value) ? std::isnan(x) : x == value; });
  }
  bool has_foreign_rows_untouched() {
    const float* const first = memory_.front().values;
    const float* const end = first + memory_.size() * kRow;
    const auto is_nan = [](float x) { return std::isnan(x); };
    return std::all_of(first, static_cast<const float*>(data()), is_nan) &&
           std::all_of(static_cast<const float*>(data()) + count_ * kRow, end, is_nan);
  }
  std::vector<float> values() { return {data(), data() + count_ * kRow}; }

 private:
  struct alignas(64) Line {
    float values[kRow];
  };
  std::size_t count_;
  std::vector<Line> memory_;
};

struct Wrong {
  const char* what;  // the message has it
  std::function<void()> plant;
};

class CApiCheck : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("ATTUNE_CHECK");
    checked_ = runtime(1);
    plain_ = runtime(0);
    ASSERT_TRUE(checked_ != nullptr && plain_ != nullptr) << att_last_error();
  }
  void TearDown() override {
    for (att_kernel* kernel : kernels_) att_kernel_destroy(kernel);
    for (att_append_kernel* kernel : appends_) att_append_kernel_destroy(kernel);
    for (att_spec* spec : specs_) att_spec_destroy(spec);
    for (att_runtime* runtime : runtimes_) att_runtime_destroy(runtime);
    unsetenv("ATTUNE_CHECK");
  }

  att_runtime* runtime(int check) {
    att_runtime_options options = {};
    options.struct_size = sizeof options;
    options.device = "cpu";
    options.cache_file = "";
    options.check = check;
    att_runtime* made = nullptr;
    (void)att_runtime_create(&options, &made);
    runtimes_.push_back(made);
    return made;
  }
  // Null where the CPU has no compiler.
  att_kernel* kernel(att_runtime* runtime, const std::string& lines, const att_shape& shape,
                     int pass = ATT_PASS_FORWARD) {
    const std::string yaml = "attune: 1\nname: t\ndtype: fp32\nhead_dim: 8\n" + lines;
    att_spec* spec = nullptr;
    EXPECT_EQ(att_spec_from_yaml(yaml.c_str(), &spec), ATT_OK) << att_last_error();
    specs_.push_back(spec);
    att_kernel* made = nullptr;
    const att_status status = att_kernel_get_for_pass(runtime, spec, &shape, pass, &made);
    EXPECT_TRUE(status == ATT_OK || status == ATT_UNAVAILABLE) << att_last_error();
    kernels_.push_back(made);
    if (made != nullptr) {
      const std::size_t needed = att_kernel_workspace_bytes(made, &shape) + 64;
      workspace_.resize(std::max(workspace_.size(), needed));
    }
    return made;
  }
  void* workspace() {
    void* first = workspace_.data();
    std::size_t room = workspace_.size();
    return std::align(64, 1, first, room);
  }

  // Two pages of four rows for each of three sequences of 1, 0 and 3 queries on 6, 2 and 8 keys.
  att_forward_args paged_arguments() {
    att_forward_args args = {};
    args.struct_size = sizeof args;
    args.shape = {3, kHeads, kHeads, 5, 8};
    args.q = q_.data();
    args.k = k_.data();
    args.v = v_.data();
    args.o = o_.data();
    args.cu_q = cu_q_.data();
    args.used_kv = used_kv_.data();
    args.page_table = table_.data();
    args.pages_per_sequence = 2;
    args.page_size = 4;
    args.pages = 6;
    return args;
  }
  std::vector<Wrong> wrong_pages() {
    return {{"entry 1 of sequence 2 in `page_table` is page 6, and the cache has 6 pages",
             [this] { table_[5] = 6; }},
            {"entry 0 of sequence 0 in `page_table` is page 2147483647",
             [this] { table_[0] = std::numeric_limits<std::int32_t>::max(); }},
            {"entry 0 of sequence 2 in `page_table` is page -2147483648",
             [this] { table_[4] = std::numeric_limits<std::int32_t>::min(); }},
            {"`used_kv` of sequence 2 is 9, not in 0 to 8", [this] { used_kv_[2] = 9; }},
            {"`used_kv` of sequence 1 is -1", [this] { used_kv_[1] = -1; }},
            {"`cu_q` begins with -3", [this] { cu_q_[0] = -3; }},
            {"`cu_q` descends: sequence 1", [this] { cu_q_[2] = 0; }},
            {"sequence 2 ends at 6, and shape.q_len is 5", [this] { cu_q_[3] = 6; }}};
  }
  void be_good() {
    cu_q_ = {0, 1, 1, 4};
    used_kv_ = {6, 2, 8};
    table_ = {4, 1, 99, 99, 0, 3};
  }

  att_runtime *checked_ = nullptr, *plain_ = nullptr;
  std::vector<att_runtime*> runtimes_;
  std::vector<att_spec*> specs_;
  std::vector<att_kernel*> kernels_;
  std::vector<att_append_kernel*> appends_;
  std::vector<std::byte> workspace_;
  std::vector<std::int32_t> cu_q_ = {0, 1, 1, 4}, used_kv_ = {6, 2, 8},
                            table_ = {4, 1, 99, 99, 0, 3};
  Rows q_{5, 1}, k_{24, 0.5}, v_{24, 2}, o_{5, kNan};
};

TEST_F(CApiCheck, ForwardOverPages) {
  const att_forward_args args = paged_arguments();
  const std::string lines = "layout: paged\nmask: causal\n";
  att_kernel* const checked = kernel(checked_, lines, args.shape);
  att_kernel* const plain = kernel(plain_, lines, args.shape);
  if (plain == nullptr) GTEST_SKIP() << att_last_error();
  att_forward_args run = args;
  run.workspace = workspace();
  ASSERT_EQ(att_forward(plain, &run, nullptr), ATT_OK) << att_last_error();
  const std::vector<float> expected = o_.values();
  EXPECT_EQ(expected[0], 2);
  o_ = Rows(5, kNan);
  run.o = o_.data();
  ASSERT_EQ(att_forward(checked, &run, nullptr), ATT_OK) << att_last_error();
  EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + 4 * kRow, o_.data()));
  for (const auto& [what, plant] : wrong_pages()) {
    plant();
    o_ = Rows(5, kNan);
    run.o = o_.data();
    EXPECT_EQ(att_forward(checked, &run, nullptr), ATT_BAD_INPUT) << what;
    EXPECT_THAT(att_last_error(), HasSubstr(what));
    EXPECT_TRUE(o_.is(kNan)) << what << ": something was launched";
    o_ = Rows(5, 7);
    run.o = o_.data();
    EXPECT_EQ(att_forward(plain, &run, nullptr), ATT_OK) << what << ": " << att_last_error();
    EXPECT_TRUE(o_.is_finite()) << what << ": something else was read";
    EXPECT_TRUE(o_.has_foreign_rows_untouched()) << what;
    be_good();
  }
  // What engines pad with.
  table_ = {4, -1, -1, -1, -1, -1};
  used_kv_ = {6, 0, 0};
  EXPECT_EQ(att_forward(checked, &run, nullptr), ATT_OK) << att_last_error();
  // Nothing is looked at where there is nothing to launch.
  run.shape.batch = 0;
  table_[0] = 99;
  EXPECT_EQ(att_forward(checked, &run, nullptr), ATT_OK) << att_last_error();
}

TEST_F(CApiCheck, TheErrorHasItsId) {
  const att_forward_args args = paged_arguments();
  att_kernel* const checked = kernel(checked_, "layout: paged\n", args.shape);
  if (checked == nullptr) GTEST_SKIP() << att_last_error();
  table_[1] = -7;
  EXPECT_EQ(att_forward(checked, &args, nullptr), ATT_BAD_INPUT);
  EXPECT_STREQ(att_last_error(),
               "error: entry 1 of sequence 0 in `page_table` is page -7, and the cache has 6 pages "
               "[page-out-of-range]\n"
               "      = it is page_table[1], where keys 4 to 5 of 6 lie\n");
}

TEST_F(CApiCheck, PackedSequencesForwardAndBackward) {
  std::vector<std::int32_t> cu_kv = {0, 6, 8, 16}, used_q = {1, 0, 2}, used_kv = {6, 1, 7};
  const att_shape shape = {3, kHeads, kHeads, 5, 16};
  const std::string lines = "layout: thd\nmask: causal\npasses: [forward, backward]\n";
  att_kernel* const checked = kernel(checked_, lines, shape);
  att_kernel* const plain = kernel(plain_, lines, shape);
  att_kernel* const checked_back = kernel(checked_, lines, shape, ATT_PASS_BACKWARD);
  att_kernel* const plain_back = kernel(plain_, lines, shape, ATT_PASS_BACKWARD);
  if (plain == nullptr) GTEST_SKIP() << att_last_error();
  ASSERT_NE(plain_back, nullptr) << att_last_error();
  Rows lse(5, 7), d_q(5, kNan), d_k(16, kNan), d_v(16, kNan);
  att_forward_args forward = {};
  forward.struct_size = sizeof forward;
  forward.shape = shape;
  forward.q = q_.data(), forward.k = k_.data(), forward.v = v_.data();
  forward.lse = lse.data();
  forward.workspace = workspace();
  forward.cu_q = cu_q_.data(), forward.cu_kv = cu_kv.data();
  forward.used_q = used_q.data(), forward.used_kv = used_kv.data();
  att_backward_args backward = {};
  backward.struct_size = sizeof backward;
  backward.shape = shape;
  backward.q = q_.data(), backward.k = k_.data(), backward.v = v_.data();
  backward.lse = lse.data();
  backward.workspace = workspace();
  backward.cu_q = forward.cu_q, backward.cu_kv = forward.cu_kv;
  backward.used_q = forward.used_q, backward.used_kv = forward.used_kv;
  // Outputs of one value; the launches' statuses.
  const auto run = [&](att_kernel* first, att_kernel* second, float value) {
    o_ = Rows(5, value), d_q = Rows(5, value), d_k = Rows(16, value), d_v = Rows(16, value);
    forward.o = o_.data();
    backward.o = backward.d_o = o_.data();
    backward.d_q = d_q.data(), backward.d_k = d_k.data(), backward.d_v = d_v.data();
    const att_status before = att_forward(first, &forward, nullptr);
    EXPECT_EQ(att_backward(second, &backward, nullptr), before) << att_last_error();
    return before;
  };
  ASSERT_EQ(run(plain, plain_back, 7), ATT_OK) << att_last_error();
  const std::vector<float> o = o_.values(), of_q = d_q.values(), of_v = d_v.values();
  ASSERT_EQ(run(checked, checked_back, 7), ATT_OK) << att_last_error();
  EXPECT_EQ(o_.values(), o);
  EXPECT_EQ(d_q.values(), of_q);
  EXPECT_EQ(d_v.values(), of_v);
  const auto good = std::tuple(cu_q_, cu_kv, used_q, used_kv);
  const std::vector<Wrong> wrong = {
      {"`cu_kv` descends: sequence 1 begins at 6 and ends at 5", [&] { cu_kv[2] = 5; }},
      {"sequence 2 ends at 17, and shape.kv_len is 16", [&] { cu_kv[3] = 17; }},
      {"`cu_q` begins with 1", [&] { cu_q_[0] = 1; }},
      {"sequence 2 ends at 2147483647",
       [&] { cu_q_[3] = std::numeric_limits<std::int32_t>::max(); }},
      {"`used_q` of sequence 2 is 4, not in 0 to 3", [&] { used_q[2] = 4; }},
      {"`used_kv` of sequence 1 is -1, not in 0 to 2", [&] { used_kv[1] = -1; }}};
  for (const auto& [what, plant] : wrong) {
    plant();
    EXPECT_EQ(run(checked, checked_back, kNan), ATT_BAD_INPUT) << what;
    EXPECT_THAT(att_last_error(), HasSubstr(what));
    EXPECT_TRUE(o_.is(kNan) && d_q.is(kNan) && d_k.is(kNan) && d_v.is(kNan)) << what;
    EXPECT_EQ(run(plain, plain_back, 7), ATT_OK) << what << ": " << att_last_error();
    EXPECT_TRUE(o_.is_finite()) << what;
    for (Rows* rows : {&o_, &d_q, &d_k, &d_v}) {
      EXPECT_TRUE(rows->has_foreign_rows_untouched()) << what;
    }
    std::tie(cu_q_, cu_kv, used_q, used_kv) = good;
  }
}

TEST_F(CApiCheck, Append) {
  att_append_options options = {};
  options.struct_size = sizeof options;
  options.dtype = options.cache_dtype = ATT_FP32;
  options.head_dim_qk = options.head_dim_v = kDim;
  for (att_runtime* runtime : {checked_, plain_}) {
    att_append_kernel* made = nullptr;
    const att_status status = att_append_kernel_get(runtime, &options, &made);
    if (status == ATT_UNAVAILABLE) GTEST_SKIP() << att_last_error();
    ASSERT_EQ(status, ATT_OK) << att_last_error();
    appends_.push_back(made);
  }
  Rows k_cache(24, kNan), v_cache(24, kNan);
  att_append_args args = {};
  args.struct_size = sizeof args;
  args.layout = ATT_PAGED;
  args.shape = {3, kHeads, kHeads, 5, 8};
  args.k = k_.data();
  args.v = v_.data();
  args.cu_q = cu_q_.data();
  args.used_kv = used_kv_.data();
  args.page_table = table_.data();
  args.pages_per_sequence = 2;
  args.page_size = 4;
  args.pages = 6;
  const auto run = [&](const att_append_kernel* kernel) {
    k_cache = Rows(24, kNan), v_cache = Rows(24, kNan);
    args.k_cache = k_cache.data(), args.v_cache = v_cache.data();
    return att_append(kernel, &args, nullptr);
  };
  ASSERT_EQ(run(appends_[0]), ATT_OK) << att_last_error();
  // Key 5 of sequence 0 is row 1 of page 1, key 7 of sequence 2 row 3 of page 3.
  EXPECT_EQ(k_cache.data()[5 * kRow], 0.5);
  EXPECT_EQ(v_cache.data()[15 * kRow], 2);
  std::vector<Wrong> wrong = wrong_pages();
  // Older keys' pages are not looked at; new tokens must have been counted.
  for (Wrong& one : wrong) {
    if (one.what == std::string("entry 0 of sequence 0 in `page_table` is page 2147483647")) {
      one = {"sequence 2 has 3 new tokens, and 2 keys with them", [this] { used_kv_[2] = 2; }};
    }
    if (one.what == std::string("entry 0 of sequence 2 in `page_table` is page -2147483648")) {
      one.plant = [this] {
        table_[4] = std::numeric_limits<std::int32_t>::min();
        used_kv_[2] = 6;
      };
    }
  }
  for (const auto& [what, plant] : wrong) {
    plant();
    EXPECT_EQ(run(appends_[0]), ATT_BAD_INPUT) << what;
    EXPECT_THAT(att_last_error(), HasSubstr(what));
    EXPECT_TRUE(k_cache.is(kNan) && v_cache.is(kNan)) << what;
    EXPECT_EQ(run(appends_[1]), ATT_OK) << what << ": " << att_last_error();
    EXPECT_TRUE(k_cache.has_foreign_rows_untouched() && v_cache.has_foreign_rows_untouched())
        << what;
    be_good();
  }
  table_ = {99, -1, -1, -1, -1, -1};
  EXPECT_EQ(run(appends_[0]), ATT_OK) << att_last_error();
  EXPECT_TRUE(k_cache.is(kNan) && v_cache.is(kNan)) << "no token had a page";
  // A cache that is not packed, and lengths that are no device's.
  args.layout = ATT_BSHD;
  args.page_table = nullptr;
  args.pages_per_sequence = args.page_size = args.pages = 0;
  EXPECT_EQ(run(appends_[0]), ATT_OK) << att_last_error();
  used_kv_[0] = 9;
  EXPECT_EQ(run(appends_[0]), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("`used_kv` of sequence 0 is 9, not in 0 to 8"));
  args.used_kv = nullptr;
  EXPECT_EQ(run(appends_[0]), ATT_OK) << att_last_error();
}

TEST_F(CApiCheck, LaunchesWithoutSequencesAreWhatTheyWere) {
  const att_shape shape = {1, kHeads, kHeads, 5, 24};
  att_kernel* const checked = kernel(checked_, "", shape);
  if (checked == nullptr) GTEST_SKIP() << att_last_error();
  att_forward_args args = {};
  args.struct_size = sizeof args;
  args.shape = shape;
  args.q = q_.data(), args.k = k_.data(), args.v = v_.data(), args.o = o_.data();
  args.workspace = workspace();
  EXPECT_EQ(att_forward(checked, &args, nullptr), ATT_OK) << att_last_error();
}

TEST_F(CApiCheck, TheEnvironmentAsksForItWhenARuntimeIsCreated) {
  const auto says = [&](int check) {
    att_runtime* const made = runtime(check);
    std::string text(att_runtime_status(made, nullptr, 0), ' ');
    att_runtime_status(made, text.data(), text.size());
    return text.find("\"check\": true") != text.npos;
  };
  for (const char* off : {"", "0"}) {
    setenv("ATTUNE_CHECK", off, 1);
    EXPECT_FALSE(says(0)) << off;
    EXPECT_TRUE(says(1)) << off;
  }
  for (const char* on : {"1", "true", "2"}) {
    setenv("ATTUNE_CHECK", on, 1);
    EXPECT_TRUE(says(0)) << on;
  }
  const att_forward_args args = paged_arguments();
  table_[0] = 6;
  att_kernel* const asked = kernel(runtimes_.back(), "layout: paged\n", args.shape);
  if (asked == nullptr) GTEST_SKIP() << att_last_error();
  unsetenv("ATTUNE_CHECK");
  EXPECT_EQ(att_forward(asked, &args, nullptr), ATT_BAD_INPUT);
  EXPECT_FALSE(says(0));
}

}  // namespace
}  // namespace attune::c_api_test
