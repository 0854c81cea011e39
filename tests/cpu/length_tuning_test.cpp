// Steps of decoding whose sequences are alike, or of which one is much longer than the others: each
// kind is tuned with a host's own data, and each launch gets the plan of its kind.
#include <gtest/gtest.h>

#include <attune/attune.hpp>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/cpu/hosted.hpp"

namespace {

using namespace attune;

constexpr std::int64_t kBatch = 8, kHeads = 4, kKvHeads = 2, kDim = 16, kPage = 16;

struct Layout {
  const char* name;
  std::int64_t kv_len;
  std::vector<std::int32_t> alike, skewed;
  std::vector<std::int32_t> next_alike, next_skewed;  // some steps later
  bool is_paged() const { return std::string(name) == "paged"; }
};
void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

struct Found {
  std::string plan;
  int measured = 0;
};

std::vector<std::int32_t> one_of(std::int32_t longest, std::int32_t others) {
  std::vector<std::int32_t> lengths(kBatch, others);
  lengths[3] = longest;
  return lengths;
}

const Layout kThd{"thd",
                  512,
                  std::vector<std::int32_t>(kBatch, 64),
                  one_of(400, 16),
                  {63, 64, 60, 66, 64, 65, 64, 66},
                  one_of(398, 16)};
const Layout kPaged{"paged",
                    256,
                    std::vector<std::int32_t>(kBatch, 250),
                    one_of(256, 16),
                    std::vector<std::int32_t>(kBatch, 253),
                    one_of(250, 17)};

// What a launch with these keys is given.
struct Step {
  Step(const Layout& layout, const std::vector<std::int32_t>& lengths)
      : shape{kBatch, kHeads, kKvHeads, kBatch, layout.kv_len} {
    const std::int64_t rows = layout.is_paged() ? kBatch * layout.kv_len : layout.kv_len;
    const auto fill = [](std::int64_t count) {
      std::vector<float> values(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(i * 37 % 101) / 101;
      return values;
    };
    q = fill(kBatch * kHeads * kDim);
    k = fill(rows * kKvHeads * kDim);
    v = fill(rows * kKvHeads * kDim);
    o = fill(kBatch * kHeads * kDim);
    cu_q.resize(kBatch + 1);
    std::iota(cu_q.begin(), cu_q.end(), 0);
    args.shape = shape;
    args.q = q.data();
    args.k = k.data();
    args.v = v.data();
    args.o = o.data();
    args.cu_q = cu_q.data();
    if (layout.is_paged()) {
      used_kv = lengths;
      table.resize(static_cast<std::size_t>(rows / kPage));
      std::iota(table.begin(), table.end(), 0);
      args.used_kv = used_kv.data();
      args.page_table = table.data();
      args.page_size = kPage;
      args.pages_per_sequence = layout.kv_len / kPage;
      args.pages = rows / kPage;
    } else {
      cu_kv.resize(kBatch + 1);
      std::partial_sum(lengths.begin(), lengths.end(), cu_kv.begin() + 1);
      args.cu_kv = cu_kv.data();
    }
  }
  Shape shape;
  std::vector<float> q, k, v, o;
  std::vector<std::int32_t> cu_q, cu_kv, used_kv, table;
  ForwardArgs args;
};

class LengthTuning : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (const std::string missing = hosted::missing(); !missing.empty()) GTEST_SKIP() << missing;
    yaml_ = std::string("attune: 1\nname: decode\ndtype: fp32\nhead_dim: 16\nlayout: ") +
            GetParam().name + "\nmask: causal\n";
    auto spec = Spec::from_yaml(yaml_.c_str());
    ASSERT_TRUE(spec) << spec.error().message;
    spec_.emplace(std::move(*spec));
    open_runtime();
  }
  void open_runtime() {
    RuntimeOptions options;
    options.device = "cpu";
    options.cache_file = file_.path();
    auto runtime = Runtime::create(options);
    ASSERT_TRUE(runtime) << runtime.error().message;
    runtime_.emplace(std::move(*runtime));
  }
  // On these lengths, of which `fastest` is said to be the fastest.
  Found tune(const std::vector<std::int32_t>& lengths, const std::string& fastest) {
    setenv("ATTUNE_TEST_FASTEST", fastest.c_str(), 1);
    Step step(GetParam(), lengths);
    TuneOptions options;
    options.max_candidates = 3;
    options.compile_threads = 2;
    options.command = PLANTED_WORKER;
    auto tuning = runtime_->tune(*spec_, step.args, options);
    unsetenv("ATTUNE_TEST_FASTEST");
    EXPECT_TRUE(tuning) << tuning.error().message;
    if (!tuning) return {};
    const TuneResult result = tuning->result();
    return {result.plan, result.measured};
  }

  std::string yaml_;
  hosted::CacheFile file_;
  std::optional<Spec> spec_;
  std::optional<Runtime> runtime_;
};

TEST_P(LengthTuning, EachKindOfLengthsGetsItsOwnPlan) {
  const Layout& layout = GetParam();
  const Shape shape = Step(layout, layout.alike).shape;
  const std::vector<std::string> plans = hosted::first_plans(
      yaml_, shape.batch, shape.heads, shape.kv_heads, shape.q_len, shape.kv_len);
  ASSERT_GE(plans.size(), 2u);
  EXPECT_EQ(tune(layout.alike, plans[0]).plan, plans[0]);
  const Found skewed = tune(layout.skewed, plans[1]);
  EXPECT_EQ(skewed.plan, plans[1]);
  EXPECT_GT(skewed.measured, 0) << "times of other lengths are not its own";
  EXPECT_EQ(tune(layout.skewed, plans[1]).measured, 0) << "and those of the same are";

  open_runtime();
  auto kernel = runtime_->kernel(*spec_, shape);
  ASSERT_TRUE(kernel) << kernel.error().message;
  EXPECT_EQ(std::string(kernel->source()), "measured") << "without a word of lengths";
  const std::int64_t page = layout.is_paged() ? kPage : 0;
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(runtime_->tell_lengths(*kernel, shape, layout.next_skewed.data(), page));
    EXPECT_EQ(kernel->plan(), plans[1]);
    ASSERT_TRUE(runtime_->tell_lengths(*kernel, shape, layout.next_alike.data(), page));
    EXPECT_EQ(kernel->plan(), plans[0]);
  }
  const std::vector<hosted::LengthKind> kinds = file_.length_kinds(
      yaml_, shape.batch, shape.heads, shape.kv_heads, shape.q_len, shape.kv_len);
  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_EQ(std::min(kinds[0].longest, kinds[1].longest), 1);
  EXPECT_GT(std::max(kinds[0].longest, kinds[1].longest), 4);
  EXPECT_EQ(kinds[0].page_size, page);
}

TEST_P(LengthTuning, SaysWhatIsNoLengths) {
  const Layout& layout = GetParam();
  const Shape shape = Step(layout, layout.alike).shape;
  auto kernel = runtime_->kernel(*spec_, shape);
  ASSERT_TRUE(kernel) << kernel.error().message;
  const std::int64_t page = layout.is_paged() ? kPage : 0;
  const auto code = [&](const std::vector<std::int32_t>& lengths, std::int64_t page_size) {
    return runtime_->tell_lengths(*kernel, shape, lengths.data(), page_size).error().code;
  };
  EXPECT_EQ(code(layout.alike, page), ATT_OK);
  EXPECT_EQ(code(one_of(-1, 5), page), ATT_BAD_INPUT);
  EXPECT_EQ(code(one_of(513, 0), page), ATT_BAD_INPUT);
  // Of packed sequences kv_len is what all have together, of paged ones the most of one.
  EXPECT_EQ(
      code(std::vector<std::int32_t>(layout.alike.size(), static_cast<std::int32_t>(shape.kv_len)),
           page),
      layout.is_paged() ? ATT_OK : ATT_BAD_INPUT);
  EXPECT_EQ(code(layout.alike, layout.is_paged() ? 0 : kPage), ATT_BAD_INPUT);
  EXPECT_EQ(runtime_->tell_lengths(*kernel, shape, nullptr, page).error().code, ATT_BAD_INPUT);
}

INSTANTIATE_TEST_SUITE_P(Decode, LengthTuning, testing::Values(kThd, kPaged),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
