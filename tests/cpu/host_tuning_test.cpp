// A host that tunes with its own data: att_tune on the CPU family, with the workers' own processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <attune/attune.hpp>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpu/hosted.hpp"

namespace {

using namespace attune;

constexpr att_shape kShape = {1, hosted::kHeads, 1, hosted::kLength, hosted::kLength};
constexpr float kUntouched = 12345;

// Sets a variable for the workers of one test.
class Planted {
 public:
  Planted(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~Planted() { unsetenv(name_); }

 private:
  const char* name_;
};

// A launch's data, as a host has them.
struct HostData {
  explicit HostData(int document = 128) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    constexpr auto kRow = static_cast<std::size_t>(hosted::kLength * hosted::kDim);
    for (std::vector<float>* in : {&q, &k, &v, &d_o}) {
      in->resize(in == &k || in == &v ? kRow : hosted::kHeads * kRow);
      for (float& value : *in) value = normal(random);
    }
    for (std::int32_t i = 0; i < hosted::kLength; ++i) documents.push_back(i / document);
    for (std::vector<float>* out : {&o, &d_q}) out->assign(q.size(), kUntouched);
    for (std::vector<float>* out : {&d_k, &d_v}) out->assign(k.size(), kUntouched);
    lse.assign(hosted::kHeads * hosted::kLength, kUntouched);
    reach.i = 600;
    view = {.data = documents.data(),
            .sizes = sizes,
            .strides = nullptr,
            .dtype = ATT_INT32,
            .ndim = 2};
  }
  template <typename Args>
  Args inputs() {
    Args args;
    args.shape = kShape;
    args.q = q.data();
    args.k = k.data();
    args.v = v.data();
    args.o = o.data();
    args.lse = lse.data();
    args.scalars = &reach;
    args.tensor_views = &view;
    args.tensor_view_count = 1;
    return args;
  }
  ForwardArgs forward() { return inputs<ForwardArgs>(); }
  BackwardArgs backward() {
    auto args = inputs<BackwardArgs>();
    args.d_o = d_o.data();
    args.d_q = d_q.data();
    args.d_k = d_k.data();
    args.d_v = d_v.data();
    return args;
  }
  bool is_untouched() const {
    return std::ranges::all_of(std::vector{&o, &lse, &d_q, &d_k, &d_v}, [](const auto* out) {
      return std::ranges::all_of(*out, [](float x) { return x == kUntouched; });
    });
  }

  std::vector<float> q, k, v, o, lse, d_o, d_q, d_k, d_v;
  std::vector<std::int32_t> documents;
  att_scalar reach{};
  const std::int64_t sizes[2] = {1, hosted::kLength};
  att_tensor view{};
};

class HostTuning : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = hosted::missing(); !missing.empty()) GTEST_SKIP() << missing;
    auto spec = Spec::from_yaml(hosted::kYaml);
    ASSERT_TRUE(spec) << spec.error().message;
    spec_.emplace(std::move(*spec));
    open_runtime();
  }
  void open_runtime(bool use_cache = true) {
    RuntimeOptions options;
    options.device = "cpu";
    options.cache_file = file_.path();
    options.use_cache = use_cache;
    auto runtime = Runtime::create(options);
    ASSERT_TRUE(runtime) << runtime.error().message;
    runtime_.emplace(std::move(*runtime));
  }
  std::string served(Pass pass = Pass::kForward) {
    auto kernel = runtime_->kernel(*spec_, kShape, pass);
    return kernel ? kernel->plan() + ", " + kernel->source() : kernel.error().message;
  }
  static TuneOptions options(int candidates = 3) {
    TuneOptions options;
    options.max_candidates = candidates;
    options.compile_threads = 2;
    options.command = PLANTED_WORKER;
    return options;
  }

  hosted::CacheFile file_;
  std::optional<Spec> spec_;
  std::optional<Runtime> runtime_;
};

TEST_F(HostTuning, FindsTheFastestOnTheHostsDataAndServesIt) {
  HostData data;
  const std::string fastest = hosted::first_plans()[2];
  const Planted planted("ATTUNE_TEST_FASTEST", fastest);
  auto tuning = runtime_->tune(*spec_, data.forward(), options());
  ASSERT_TRUE(tuning) << tuning.error().message;
  const TuneResult result = tuning->result();
  EXPECT_EQ(result.state, ATT_TUNE_DONE);
  EXPECT_EQ(result.plan, fastest);
  EXPECT_EQ(result.best_us, 1);
  EXPECT_EQ(result.before_us, 100) << "what was served before ran too";
  EXPECT_EQ(result.measured, 3);
  EXPECT_EQ(result.rejected, 0);
  // Documents of one tile each: of four times four tiles those on the diagonal live, and all of
  // each.
  EXPECT_EQ(result.live_share, 0.5);
  EXPECT_EQ(result.full_share, 0.5);
  EXPECT_TRUE(data.is_untouched());
  EXPECT_EQ(served(), fastest + ", measured");

  // What a later runtime reads, and another search need not do again.
  open_runtime();
  EXPECT_EQ(served(), fastest + ", measured");
  const std::vector<hosted::Kind> kinds = file_.kinds();
  ASSERT_EQ(kinds.size(), 1);
  EXPECT_EQ(kinds[0].live, 0.5);
  EXPECT_EQ(kinds[0].full, 0.5);
  auto again = runtime_->tune(*spec_, data.forward(), options());
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->result().measured, 0);
  EXPECT_EQ(again->result().from_cache, 3);

  // Other data, of one document, on which another plan is the fastest: each launch has its own.
  const std::string other = hosted::first_plans()[1];
  const Planted replanted("ATTUNE_TEST_FASTEST", other);
  HostData whole(256);
  auto second = runtime_->tune(*spec_, whole.forward(), options());
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_EQ(second->result().live_share, 1);
  EXPECT_EQ(second->result().plan, other);
  EXPECT_EQ(served(), other + ", measured") << "what it was tuned on last";
  open_runtime();
  auto kernel = runtime_->kernel(*spec_, kShape);
  ASSERT_TRUE(kernel) << kernel.error().message;
  ASSERT_TRUE(runtime_->tell_shares(*kernel, 0.4, 0.3));
  EXPECT_EQ(kernel->plan(), fastest);
  ASSERT_TRUE(runtime_->tell_shares(*kernel, 0.9, 0.9));
  EXPECT_EQ(kernel->plan(), other);
  EXPECT_EQ(runtime_->tell_shares(*kernel, 0.2, 0.3).error().code, ATT_BAD_INPUT);
  EXPECT_EQ(runtime_->tell_shares(*kernel, 1.1, 0).error().code, ATT_BAD_INPUT);
}

TEST_F(HostTuning, TunesTheBackwardPass) {
  HostData data;
  auto tuning = runtime_->tune(*spec_, data.backward(), options(1));
  ASSERT_TRUE(tuning) << tuning.error().message;
  EXPECT_EQ(tuning->result().plan, hosted::first_plans(true)[0]);
  EXPECT_EQ(tuning->result().rejected, 0);
  EXPECT_EQ(tuning->result().live_share, 0.5);
  EXPECT_TRUE(data.is_untouched());
  EXPECT_EQ(served(Pass::kBackward), hosted::first_plans(true)[0] + ", measured");
}

// A candidate that crashes costs the host nothing but the candidate.
TEST_F(HostTuning, InTheBackgroundTheHostMayForgetItsDataAndCandidatesMayCrash) {
  const std::string crashes = hosted::first_plans()[0];
  const Planted planted("ATTUNE_TEST_CRASHES", crashes);
  auto data = std::make_unique<HostData>();
  TuneOptions in_background = options(2);
  in_background.background = true;
  std::thread::id tuned_on;
  in_background.progress = [&](const TuneProgress& progress) {
    EXPECT_EQ(progress.struct_size, sizeof progress);
    tuned_on = std::this_thread::get_id();
    return true;
  };
  auto tuning = runtime_->tune(*spec_, data->forward(), in_background);
  data.reset();
  ASSERT_TRUE(tuning) << tuning.error().message;
  const Status status = tuning->wait();
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(tuning->result().state, ATT_TUNE_DONE);
  EXPECT_EQ(tuning->result().rejected, 1);
  EXPECT_EQ(tuning->result().measured, 1);
  EXPECT_NE(tuning->result().plan, crashes);
  EXPECT_NE(tuned_on, std::this_thread::get_id());
  EXPECT_EQ(served(), std::string(tuning->result().plan) + ", measured");
}

TEST_F(HostTuning, EndsWithItsBudgetItsCallbackItsHandleOrItsRuntime) {
  HostData data;
  TuneOptions small = options(0);
  small.budget_ms = 1e-3;
  auto over = runtime_->tune(*spec_, data.forward(), small);
  ASSERT_TRUE(over) << over.error().message;
  EXPECT_EQ(over->result().state, ATT_TUNE_STOPPED);
  EXPECT_EQ(over->result().measured, 0);
  EXPECT_STREQ(over->result().plan, "");

  TuneOptions refused = options(0);
  refused.progress = [](const TuneProgress&) { return false; };
  auto stopped = runtime_->tune(*spec_, data.forward(), refused);
  ASSERT_TRUE(stopped) << stopped.error().message;
  EXPECT_EQ(stopped->result().state, ATT_TUNE_STOPPED);

  TuneOptions endless = options(0);
  endless.background = true;
  {
    auto dropped = runtime_->tune(*spec_, data.forward(), endless);
    ASSERT_TRUE(dropped) << dropped.error().message;
  }
  auto orphan = runtime_->tune(*spec_, data.forward(), endless);
  ASSERT_TRUE(orphan) << orphan.error().message;
  runtime_.reset();
  EXPECT_EQ(orphan->result().state, ATT_TUNE_STOPPED);
  EXPECT_TRUE(orphan->wait());
}

TEST_F(HostTuning, SaysWhatIsMissing) {
  HostData data;
  const auto code = [&](const ForwardArgs& args, const TuneOptions& options) {
    const auto tuning = runtime_->tune(*spec_, args, options);
    return tuning ? ATT_OK : tuning.error().code;
  };
  TuneOptions nowhere = options();
  nowhere.command = "/nowhere/attune";
  EXPECT_EQ(code(data.forward(), nowhere), ATT_UNAVAILABLE);
  TuneOptions negative = options();
  negative.budget_ms = -1;
  EXPECT_EQ(code(data.forward(), negative), ATT_BAD_INPUT);
  ForwardArgs empty = data.forward();
  empty.shape.batch = 0;
  EXPECT_EQ(code(empty, options()), ATT_BAD_INPUT);
  ForwardArgs without = data.forward();
  without.scalars = nullptr;
  EXPECT_EQ(code(without, options()), ATT_BAD_INPUT);
  {
    const Planted planted("ATTUNE_TEST_BUILD", "other");
    EXPECT_EQ(code(data.forward(), options(1)), ATT_UNAVAILABLE);
  }
  open_runtime(false);
  EXPECT_EQ(code(data.forward(), options()), ATT_BAD_INPUT);
}

}  // namespace
