// Several GPUs in one process: runtimes side by side, launched from any thread whatever context is
// current there, on streams of their own, by graphs, and while both are tuned on. Gradients of a
// deterministic spec are the same to the bit on either.
#include <attune/attune.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "runtime/device/device.hpp"
#include "tests/gpu/driver.hpp"
#include "tests/unit/cache/fixtures.hpp"

namespace attune::gpu_test {
namespace {

using Bf16 = std::uint16_t;

float to_float(Bf16 value) { return std::bit_cast<float>(std::uint32_t{value} << 16); }

constexpr att_shape kShape = {2, 4, 2, 300, 300};
constexpr std::size_t kQueries = 2 * 300 * 4 * 64;
constexpr std::size_t kKeys = 2 * 300 * 2 * 64;
constexpr const char* kSpec = "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: causal\n";
constexpr const char* kGradientsSpec =
    "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: causal\npasses: [forward, backward]\n"
    "deterministic: true\n";

// One GPU with a runtime, a kernel of each pass and the arguments of their launches.
class Gpu {
 public:
  // Without a file's name nothing is remembered.
  Gpu(int ordinal, const att_spec* spec, const att_spec* of_gradients, const char* file = "")
      : spec_(spec) {
    auto device = open_cuda_device(ordinal);
    EXPECT_TRUE(device.ok()) << render(device.error());
    device_ = std::move(device).value();
    const std::string name = "cuda:" + std::to_string(ordinal);
    const att_runtime_options options = {sizeof options, name.c_str(), file, 0};
    EXPECT_EQ(att_runtime_create(&options, &runtime_), ATT_OK) << att_last_error();
    (void)driver<CUresult(CUcontext*)>("cuCtxGetCurrent")(&context_);
    status = att_kernel_get(runtime_, spec, &kShape, &kernel_);
    if (status != ATT_OK) return;
    args_.struct_size = sizeof args_;
    args_.shape = kShape;
    args_.q = random_values(kQueries, 1);
    args_.k = random_values(kKeys, 2);
    args_.v = random_values(kKeys, 3);
    args_.o = allocate(kQueries * sizeof(Bf16));
    args_.lse = static_cast<float*>(allocate(kQueries / 64 * sizeof(float)));
    args_.workspace = allocate(att_kernel_workspace_bytes(kernel_, &kShape) + 16);
    status =
        att_kernel_get_for_pass(runtime_, of_gradients, &kShape, ATT_PASS_BACKWARD, &backward_);
    if (status != ATT_OK) return;
    backward_args_.struct_size = sizeof backward_args_;
    backward_args_.shape = kShape;
    backward_args_.q = args_.q;
    backward_args_.k = args_.k;
    backward_args_.v = args_.v;
    backward_args_.o = args_.o;
    backward_args_.lse = args_.lse;
    backward_args_.d_o = random_values(kQueries, 4);
    backward_args_.d_q = allocate(kQueries * sizeof(Bf16));
    backward_args_.d_k = allocate(kKeys * sizeof(Bf16));
    backward_args_.d_v = allocate(kKeys * sizeof(Bf16));
    backward_args_.workspace = allocate(att_kernel_workspace_bytes(backward_, &kShape) + 16);
  }
  ~Gpu() {
    for (void* buffer : buffers_) device_->free(buffer);
    att_kernel_destroy(kernel_);
    att_kernel_destroy(backward_);
    att_runtime_destroy(runtime_);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  bool launch(CUstream stream = nullptr) { return att_forward(kernel_, &args_, stream) == ATT_OK; }
  void make_current() const {
    EXPECT_EQ(driver<CUresult(CUcontext)>("cuCtxSetCurrent")(context_), 0);
  }
  // In the background, on the arguments of launch().
  att_tuning* tune() {
    att_tune_options options = {};
    options.struct_size = sizeof options;
    options.max_candidates = 2;
    options.command = "/proc/self/exe";
    options.background = 1;
    att_tuning* tuning = nullptr;
    EXPECT_EQ(att_tune(runtime_, spec_, &args_, &options, &tuning), ATT_OK) << att_last_error();
    return tuning;
  }
  // Again, as a host may at every step.
  bool get_kernel() {
    att_kernel* kernel = nullptr;
    if (att_kernel_get(runtime_, spec_, &kShape, &kernel) != ATT_OK) return false;
    att_kernel_destroy(kernel_);
    kernel_ = kernel;
    return true;
  }
  std::string source() const { return att_kernel_source(kernel_); }
  std::vector<Bf16> result() {
    EXPECT_TRUE(device_->synchronize().ok());
    std::vector<Bf16> o(kQueries);
    EXPECT_TRUE(device_->copy_to_host(o.data(), args_.o, o.size() * sizeof(Bf16)).ok());
    EXPECT_TRUE(device_->fill(args_.o, 0xFF, o.size() * sizeof(Bf16)).ok());
    EXPECT_TRUE(device_->synchronize().ok());
    return o;
  }
  // Behind a forward launch whose result nobody has taken.
  bool launch_backward() { return att_backward(backward_, &backward_args_, nullptr) == ATT_OK; }
  std::vector<Bf16> gradients() {
    EXPECT_TRUE(device_->synchronize().ok());
    std::vector<Bf16> all(kQueries + 2 * kKeys);
    Bf16* to = all.data();
    for (const auto& [from, count] : {std::pair{backward_args_.d_q, kQueries},
                                      {backward_args_.d_k, kKeys},
                                      {backward_args_.d_v, kKeys}}) {
      EXPECT_TRUE(device_->copy_to_host(to, from, count * sizeof(Bf16)).ok());
      EXPECT_TRUE(device_->fill(from, 0xFF, count * sizeof(Bf16)).ok());
      to += count;
    }
    return all;
  }
  const std::string& name() const { return device_->facts().name; }
  std::string backward_plan() const { return att_kernel_plan(backward_); }
  std::string plan() const { return att_kernel_plan(kernel_); }

  att_status status = ATT_OK;

 private:
  void* allocate(std::size_t bytes) {
    buffers_.push_back(*device_->allocate(bytes));
    EXPECT_TRUE(device_->fill(buffers_.back(), 0xFF, bytes).ok());
    return buffers_.back();
  }
  void* random_values(std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Bf16> values(count);
    // Of either sign, from 0.5 to 2.
    for (Bf16& x : values) x = static_cast<Bf16>((random() & 0x80FF) + 0x3F00);
    void* buffer = allocate(count * sizeof(Bf16));
    EXPECT_TRUE(device_->copy_to_device(buffer, values.data(), count * sizeof(Bf16)).ok());
    return buffer;
  }

  const att_spec* const spec_;
  std::unique_ptr<Device> device_;
  CUcontext context_ = nullptr;
  att_runtime* runtime_ = nullptr;
  att_kernel *kernel_ = nullptr, *backward_ = nullptr;
  att_forward_args args_ = {};
  att_backward_args backward_args_ = {};
  std::vector<void*> buffers_;
};

// Empty, or why a test is skipped.
std::string no_two_gpus() {
  const auto count = cuda_device_count();
  if (!count.ok()) return "no GPU: " + count.error().message;
  return *count < 2 ? "needs two GPUs, found " + std::to_string(*count) : "";
}

struct Specs {
  Specs() {
    EXPECT_EQ(att_spec_from_yaml(kSpec, &forward), ATT_OK) << att_last_error();
    EXPECT_EQ(att_spec_from_yaml(kGradientsSpec, &gradients), ATT_OK) << att_last_error();
  }
  ~Specs() {
    att_spec_destroy(forward);
    att_spec_destroy(gradients);
  }
  Specs(const Specs&) = delete;
  Specs& operator=(const Specs&) = delete;
  att_spec *forward = nullptr, *gradients = nullptr;
};

TEST(Devices, TwoGpusInOneProcessGiveTheSameResult) {
  if (const std::string missing = no_two_gpus(); !missing.empty()) GTEST_SKIP() << missing;
  Specs specs;
  {
    Gpu first(0, specs.forward, specs.gradients), second(1, specs.forward, specs.gradients);
    if (first.status == ATT_UNAVAILABLE) GTEST_SKIP() << att_last_error();
    ASSERT_EQ(first.status, ATT_OK);
    ASSERT_EQ(second.status, ATT_OK);
    // GPUs of one kind have one plan.
    if (first.name() == second.name()) {
      ASSERT_EQ(first.plan(), second.plan());
      ASSERT_EQ(first.backward_plan(), second.backward_plan());
    }
    if (first.plan() == second.plan() && first.backward_plan() == second.backward_plan()) {
      const auto gradients_of = [](Gpu& gpu) {
        EXPECT_TRUE(gpu.launch() && gpu.launch_backward()) << att_last_error();
        return gpu.gradients();
      };
      const std::vector<Bf16> gradients = gradients_of(first);
      EXPECT_NE(gradients, std::vector<Bf16>(gradients.size(), 0xFFFF)) << "nothing was written";
      EXPECT_EQ(gradients_of(second), gradients) << first.backward_plan();
      EXPECT_EQ(gradients_of(first), gradients);
    }
    // The second GPU's context is current here, and none in the threads below.
    ASSERT_TRUE(first.launch()) << att_last_error();
    ASSERT_TRUE(second.launch()) << att_last_error();
    const std::vector<Bf16> expected = first.result();
    if (first.plan() == second.plan()) {
      EXPECT_EQ(second.result(), expected);
    }
    const std::vector<Bf16> expected_of_second = [&] {
      EXPECT_TRUE(second.launch());
      return second.result();
    }();
    std::vector<char> launched(4, 1);
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < launched.size(); ++i) {
        threads.emplace_back([&, i] {
          for (int launch = 0; launch < 50; ++launch) {
            if (!(i % 2 == 0 ? first : second).launch()) launched[i] = 0;
          }
        });
      }
    }
    EXPECT_EQ(launched, std::vector<char>(4, 1));
    EXPECT_EQ(first.result(), expected);
    EXPECT_EQ(second.result(), expected_of_second);
  }
}

// What makes them here: a stream belongs to the context that is current when it is made.
class Graphs {
 public:
  Graphs(Gpu& first, Gpu& second)
      : stream_((first.make_current(), std::make_unique<Stream>())),
        other_((second.make_current(), std::make_unique<Stream>())),
        // Captured while the other GPU's context is current.
        graph_(*stream_, [&](CUstream on) { EXPECT_TRUE(first.launch(on)) << att_last_error(); }),
        other_graph_((first.make_current(), *other_),
                     [&](CUstream on) { EXPECT_TRUE(second.launch(on)) << att_last_error(); }) {}
  void launch() const {
    graph_.launch(*stream_);
    other_graph_.launch(*other_);
  }
  CUstream stream() const { return stream_->get(); }
  CUstream other() const { return other_->get(); }

 private:
  const std::unique_ptr<Stream> stream_, other_;
  const Graph graph_, other_graph_;
};

TEST(Devices, TwoGpusInTurnsByStreamsAndGraphs) {
  if (const std::string missing = no_two_gpus(); !missing.empty()) GTEST_SKIP() << missing;
  Specs specs;
  Gpu first(0, specs.forward, specs.gradients), second(1, specs.forward, specs.gradients);
  if (first.status == ATT_UNAVAILABLE) GTEST_SKIP() << att_last_error();
  ASSERT_EQ(first.status, ATT_OK);
  ASSERT_EQ(second.status, ATT_OK);
  ASSERT_TRUE(first.launch() && second.launch()) << att_last_error();
  const std::vector<Bf16> expected = first.result(), expected_of_second = second.result();
  const Graphs graphs(first, second);
  for (int turn = 0; turn < 20; ++turn) {
    SCOPED_TRACE(turn);
    (turn % 2 == 0 ? first : second).make_current();
    ASSERT_TRUE(first.launch(graphs.stream())) << att_last_error();
    ASSERT_TRUE(second.launch(graphs.other())) << att_last_error();
    ASSERT_EQ(first.result(), expected);
    ASSERT_EQ(second.result(), expected_of_second);
    graphs.launch();
    ASSERT_EQ(second.result(), expected_of_second);
    ASSERT_EQ(first.result(), expected);
  }
  // The stream of another GPU is an error, and harms neither.
  EXPECT_FALSE(first.launch(graphs.other()));
  EXPECT_FALSE(second.launch(graphs.stream()));
  ASSERT_TRUE(first.launch() && second.launch()) << att_last_error();
  EXPECT_EQ(first.result(), expected);
  EXPECT_EQ(second.result(), expected_of_second);
}

TEST(Devices, TwoGpusAreTunedOnWhileBothLaunch) {
  if (const std::string missing = no_two_gpus(); !missing.empty()) GTEST_SKIP() << missing;
  Specs specs;
  const cache_testing::TemporaryDirectory directory;
  const std::string file = directory.file();  // of both
  Gpu first(0, specs.forward, specs.gradients, file.c_str());
  Gpu second(1, specs.forward, specs.gradients, file.c_str());
  if (first.status == ATT_UNAVAILABLE) GTEST_SKIP() << att_last_error();
  ASSERT_EQ(first.status, ATT_OK);
  ASSERT_EQ(second.status, ATT_OK);
  ASSERT_TRUE(first.launch() && second.launch()) << att_last_error();
  const std::vector<Bf16> expected = first.result(), expected_of_second = second.result();
  att_tuning* tunings[] = {first.tune(), second.tune()};
  const auto is_running = [](const att_tuning* tuning) {
    att_tune_result result = {};
    result.struct_size = sizeof result;
    EXPECT_EQ(att_tuning_result(tuning, &result), ATT_OK) << att_last_error();
    return result.state == ATT_TUNE_RUNNING;
  };
  int launches = 0;
  // A plan that takes the place of another may round otherwise, by a few units in the last place.
  const auto is_close = [](const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const float x = to_float(a[i]), y = to_float(b[i]);
      if (!(std::abs(x - y) <= 0.02f)) return false;
    }
    return true;
  };
  do {
    ASSERT_TRUE(first.launch() && second.launch()) << att_last_error();
    ASSERT_TRUE(is_close(first.result(), expected)) << "launch " << launches;
    ASSERT_TRUE(is_close(second.result(), expected_of_second)) << "launch " << launches;
    ++launches;
  } while (is_running(tunings[0]) || is_running(tunings[1]));
  for (att_tuning* tuning : tunings) {
    EXPECT_EQ(att_tuning_wait(tuning), ATT_OK) << att_last_error();
    att_tuning_destroy(tuning);
  }
  for (Gpu* gpu : {&first, &second}) {
    ASSERT_TRUE(gpu->get_kernel()) << att_last_error();
    EXPECT_EQ(gpu->source(), "measured");
    ASSERT_TRUE(gpu->launch()) << att_last_error();
  }
  EXPECT_TRUE(is_close(first.result(), expected));
  EXPECT_TRUE(is_close(second.result(), expected_of_second));
}

}  // namespace
}  // namespace attune::gpu_test
