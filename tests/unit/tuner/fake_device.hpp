// A device and a compiler whose kernels run on the host and behave as planted, on a clock that only
// launches move.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/device.hpp"
#include "runtime/jit/compiler.hpp"
#include "tests/unit/tuner/host_attention.hpp"

namespace attune::tuner_testing {

struct Planted {
  double time_us = 100;
  bool writes_behind = false, wrong = false, faults = false, does_not_load = false;
  float wrong_where_q_begins = NAN;  // with this number, of fp32
};
using PlantedBehaviour = std::function<Planted(const KernelPlan&)>;

class FakeDevice;

// HostAttention with a planted behaviour.
class FakeKernel final : public LoadedKernel {
 public:
  FakeKernel(FakeDevice& device, const AttentionSpec& spec, Pass pass, Planted planted)
      : device_(device),
        dtype_(spec.dtype),
        dim_(spec.head_dim_qk),
        pass_(pass),
        planted_(planted) {}
  Status launch(const att::LaunchParams& p, void* workspace, StreamHandle) const override;
  std::size_t workspace_bytes(const ProblemShape&) const override { return 64; }

 private:
  FakeDevice& device_;
  const DType dtype_;
  const int dim_;
  const Pass pass_;
  const Planted planted_;
};

class FakeDevice final : public Device {
 public:
  // Plans are those of `target`.
  explicit FakeDevice(PlantedBehaviour behaviour, Target target = Target::kCpu)
      : behaviour_(std::move(behaviour)), facts_(device_facts(target)) {
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
        std::make_unique<FakeKernel>(*this, spec, plan.pass, behaviour_(plan)));
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
  const PlantedBehaviour behaviour_;
  DeviceFacts facts_;
};

inline Status FakeKernel::launch(const att::LaunchParams& p, void* workspace, StreamHandle) const {
  EXPECT_NE(workspace, nullptr);
  device_.now_us += planted_.time_us;
  if (planted_.faults) device_.faulted = true;
  if (const auto* values = static_cast<const int*>(p.tensors[0].data); values != nullptr)
    device_.tensor.assign(values, values + p.kv_len);
  HostAttention attention(p, dtype_, dim_);
  if (pass_ == Pass::kForward) {
    const float first = *static_cast<const float*>(p.q);
    attention.forward(planted_.wrong || first == planted_.wrong_where_q_begins ? 0.1 : 0);
    if (planted_.writes_behind) p.lse[p.batch * p.heads * p.q_len] = 0;
  } else {
    attention.backward(planted_.wrong);
    const std::int64_t bytes = p.batch * p.kv_heads * p.kv_len * dim_ * element_bytes(dtype_);
    if (planted_.writes_behind) static_cast<std::byte*>(p.d_v)[bytes] = std::byte{0};
  }
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

}  // namespace attune::tuner_testing
