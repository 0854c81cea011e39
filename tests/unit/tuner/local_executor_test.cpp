// The tuner's whole path over an abstract Device and Compiler: host memory, a kernel in plain C++
// and a clock that only launches move.
#include "tuner/measure/local_executor.hpp"

#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <cstring>

#include "tests/unit/cache/fixtures.hpp"
#include "tuner/search/seeds.hpp"
#include "tuner/tuner.hpp"

namespace attune {
namespace {

struct Planted {
  double time_us = 100;
  bool writes_behind = false, wrong = false, faults = false, does_not_load = false;
};
using Behaviour = std::function<Planted(const KernelPlan&)>;

class FakeDevice;

// Attention over fp32 in the bshd layout, one head dim, mask: every key.
class FakeKernel final : public LoadedKernel {
 public:
  FakeKernel(FakeDevice& device, int dim, Planted planted)
      : device_(device), dim_(dim), planted_(planted) {}
  Status launch(const att::LaunchParams& p, void* workspace, StreamHandle) const override;
  std::size_t workspace_bytes(const ProblemShape&) const override { return 64; }

 private:
  FakeDevice& device_;
  const int dim_;
  const Planted planted_;
};

class FakeDevice final : public Device {
 public:
  explicit FakeDevice(Behaviour behaviour) : behaviour_(std::move(behaviour)) {
    facts_.l2_bytes = 1000;
  }
  ~FakeDevice() override { EXPECT_EQ(live, 0) << "memory that was not freed"; }

  const DeviceFacts& facts() const override { return facts_; }
  std::string identity() const override { return "fake / driver 1"; }
  Result<std::unique_ptr<LoadedKernel>> load(const AttentionSpec& spec, const KernelPlan& plan,
                                             std::span<const std::uint8_t> image) override {
    EXPECT_FALSE(image.empty());
    if (behaviour_(plan).does_not_load) return Error{.id = "cuda-error", .message = "planted"};
    return std::unique_ptr<LoadedKernel>(
        std::make_unique<FakeKernel>(*this, spec.head_dim_qk, behaviour_(plan)));
  }
  Result<void*> allocate(std::size_t bytes) override {
    ++live;
    return std::malloc(bytes);
  }
  void free(void* pointer) override {
    --live;
    std::free(pointer);
  }
  Status copy_to_device(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return alive();
  }
  Status copy_to_host(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return alive();
  }
  Status fill(void* to, std::uint8_t byte, std::size_t bytes) override {
    std::memset(to, byte, bytes);
    flushed = flushed || bytes == 2000;
    return alive();
  }
  Status synchronize() override { return alive(); }
  Result<double> time_us(const std::function<Status(StreamHandle)>& work) override {
    EXPECT_TRUE(flushed) << "timed from a warm cache";
    flushed = false;
    const double before = now_us;
    ATT_CHECK(work(nullptr));
    return now_us - before;
  }

  Status alive() const {
    if (faulted)
      return Error{.id = "cuda-error", .message = "an illegal memory access was encountered"};
    return ok_status();
  }

  double now_us = 0;
  std::vector<int> tensor;  // the first one of the last launch
  bool faulted = false, flushed = false;
  int live = 0;

 private:
  const Behaviour behaviour_;
  DeviceFacts facts_ = device_facts(Target::kCpu);
};

Status FakeKernel::launch(const att::LaunchParams& p, void* workspace, StreamHandle) const {
  EXPECT_NE(workspace, nullptr);
  device_.now_us += planted_.time_us;
  if (planted_.faults) device_.faulted = true;
  if (const auto* values = static_cast<const int*>(p.tensors[0].data); values != nullptr)
    device_.tensor.assign(values, values + p.kv_len);
  const auto* q = static_cast<const float*>(p.q);
  const auto* k = static_cast<const float*>(p.k);
  const auto* v = static_cast<const float*>(p.v);
  auto* o = static_cast<float*>(p.o);
  for (int b = 0; b < p.batch; ++b) {
    for (int h = 0; h < p.heads; ++h) {
      const int h_kv = h / (p.heads / p.kv_heads);
      for (int i = 0; i < p.q_len; ++i) {
        std::vector<double> score(static_cast<std::size_t>(p.kv_len));
        double sum = 0;
        for (int j = 0; j < p.kv_len; ++j) {
          double dot = 0;
          for (int d = 0; d < dim_; ++d) {
            dot += static_cast<double>(
                       q[b * p.q_stride.batch + i * p.q_stride.seq + h * p.q_stride.head + d]) *
                   k[b * p.k_stride.batch + j * p.k_stride.seq + h_kv * p.k_stride.head + d];
          }
          score[static_cast<std::size_t>(j)] = std::exp(dot * p.softmax_scale);
          sum += score[static_cast<std::size_t>(j)];
        }
        for (int d = 0; d < dim_; ++d) {
          double value = 0;
          for (int j = 0; j < p.kv_len; ++j) {
            value += score[static_cast<std::size_t>(j)] *
                     v[b * p.v_stride.batch + j * p.v_stride.seq + h_kv * p.v_stride.head + d];
          }
          o[b * p.o_stride.batch + i * p.o_stride.seq + h * p.o_stride.head + d] =
              static_cast<float>(value / sum + (planted_.wrong && i == p.q_len - 1 ? 0.1 : 0));
        }
        p.lse[(b * p.heads + h) * p.q_len + i] = static_cast<float>(std::log(sum));
      }
    }
  }
  if (planted_.writes_behind) p.lse[p.batch * p.heads * p.q_len] = 0;
  return ok_status();
}

class FakeCompiler final : public Compiler {
 public:
  std::string identity() const override { return "fake 1"; }
  bool supports(Target) const override { return true; }
  Result<CompiledKernel> compile(const std::string& source, const std::string& symbol,
                                 Target) override {
    EXPECT_NE(source.find(symbol), std::string::npos);
    return CompiledKernel{.image = {1, 2, 3}, .registers = 10};
  }
};

struct Bench {
  explicit Bench(Behaviour behaviour)
      : device(std::move(behaviour)), store(std::move(*open_store(directory.file()))) {
    auto parsed = parse_spec("attune: 1\nname: plain\ndtype: fp32\nhead_dim: 16\ntarget: [cpu]\n",
                             "plain.yaml");
    EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : render(parsed.error()));
    spec = *parsed;
  }
  Result<TuneResult> run(TuneOptions options = {.max_candidates = 12}) {
    options.compile_threads = 1;
    return tune(spec, shape, device, std::array<Compiler*, 1>{&compiler}, *store, options,
                [](const TuneProgress&) { return true; });
  }
  std::vector<KernelPlan> plans() { return *plans_by_cost(spec, shape, device.facts()); }
  MeasurementKey key() {
    return {spec_hash(spec), device.identity(), shape, std::string(kMeasurementProtocol)};
  }

  cache_testing::TemporaryDirectory directory;
  FakeDevice device;
  FakeCompiler compiler;
  std::unique_ptr<Store> store;
  AttentionSpec spec;
  ProblemShape shape{.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 5, .kv_len = 9};
};

TEST(Tune, TimesWhatIsRightAndKeepsTheFastest) {
  KernelPlan fastest;
  Bench bench(
      [&](const KernelPlan& plan) { return Planted{.time_us = plan == fastest ? 50.0 : 100.0}; });
  fastest = bench.plans()[3];
  const auto result = bench.run();
  ASSERT_TRUE(result.ok()) << render(result.error());
  EXPECT_EQ(result->plan, fastest);
  EXPECT_DOUBLE_EQ(result->median_us, 50);
  EXPECT_EQ(result->rejected, 0);
  EXPECT_EQ(bench.store->winner(bench.key()).value()->plan, to_string(fastest));
}

TEST(Tune, CulpritsNeverWin) {
  std::vector<KernelPlan> plans;
  Bench bench([&](const KernelPlan& plan) {
    Planted planted;
    for (std::size_t i = 0; i < 3; ++i) {
      if (plan != plans[i]) continue;
      planted.time_us = 1;  // the culprits would be the fastest
      planted.wrong = i == 0;
      planted.writes_behind = i == 1;
      planted.does_not_load = i == 2;
    }
    return planted;
  });
  plans = search_seeds(bench.plans());
  const auto result = bench.run();
  ASSERT_TRUE(result.ok()) << render(result.error());
  EXPECT_EQ(result->rejected, 3);
  EXPECT_DOUBLE_EQ(result->median_us, 100);
  std::map<std::string, std::string> reasons;
  const std::vector<Rejection> rejections = bench.store->rejections(bench.key()).value();
  for (const Rejection& r : rejections) reasons[r.plan] = r.reason;
  EXPECT_EQ(reasons[to_string(plans[0])], "miscompute");
  EXPECT_EQ(reasons[to_string(plans[1])], "miscompute");
  EXPECT_EQ(reasons[to_string(plans[2])], "launch");
}

TEST(Tune, AFaultIsRememberedAndTheNextRunGoesOn) {
  KernelPlan culprit;
  const auto behaviour = [&](const KernelPlan& plan) { return Planted{.faults = plan == culprit}; };
  Bench bench(behaviour);
  culprit = bench.plans()[0];
  const auto first = bench.run();
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.error().id, "device-lost");
  ASSERT_THAT(bench.store->rejections(bench.key()).value(), ::testing::SizeIs(1));
  EXPECT_EQ(bench.store->rejections(bench.key()).value()[0].reason, "fault");
  bench.device.faulted = false;  // a new process, a new context
  const auto second = bench.run();
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->rejected, 1);
  EXPECT_NE(second->plan, culprit);
}

// Runs of a tuner are compared with each other.
TEST(LocalExecutor, TimesTheSameDocumentsWhateverItsSeed) {
  const ProblemShape shape{.q_len = 200, .kv_len = 200};
  const auto spec = parse_spec(
      "attune: 1\nname: doc\ndtype: fp32\nhead_dim: 16\ntarget: [cpu]\n"
      "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\nmask: document(doc)\n",
      "doc.yaml");
  ASSERT_TRUE(spec.ok());
  std::vector<std::vector<int>> documents;
  for (const std::uint64_t seed : {3, 4}) {
    FakeDevice device([](const KernelPlan&) { return Planted{}; });
    FakeCompiler compiler;
    LocalExecutor executor(*spec, shape, device, std::array<Compiler*, 1>{&compiler}, nullptr,
                           seed);
    const Candidate candidate = plans_by_cost(*spec, shape, device.facts())->front();
    ASSERT_TRUE(executor.compile(candidate).ok());
    ASSERT_TRUE(executor.time_us(candidate).ok());
    documents.push_back(device.tensor);
  }
  EXPECT_GT(documents[0].back(), 0) << "more than one document";
  EXPECT_EQ(documents[0], documents[1]);
}

TEST(VerificationShapes, KeepLengthsAndGroupsAndAddARaggedOne) {
  const auto shapes =
      verification_shapes({.batch = 8, .heads = 32, .kv_heads = 8, .q_len = 4096, .kv_len = 8192});
  ASSERT_EQ(shapes.size(), 2u);
  EXPECT_EQ(shapes[0], (ProblemShape{2, 8, 2, 4096, 8192}));
  EXPECT_EQ(shapes[1].heads, 8);
  EXPECT_LT(shapes[1].q_len, 4096);
  const auto square =
      verification_shapes({.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 4096, .kv_len = 4096});
  EXPECT_EQ(square[1].q_len, square[1].kv_len) << "a spec may need square problems";
  EXPECT_EQ(verification_shapes({.q_len = 3, .kv_len = 4}).size(), 1u) << "small enough as it is";
}

}  // namespace
}  // namespace attune
