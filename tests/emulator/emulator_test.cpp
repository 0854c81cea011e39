// The emulated GPU finds what a kernel does wrong: it runs small ones whose faults are known.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "runtime/device/device.hpp"
#include "runtime/jit/compiler.hpp"

namespace attune::emulator {
namespace {

// Copies 32 words to shared memory with cp.async, waits as `wait` says, and writes them out.
std::string copying_kernel(const std::string& wait) {
  return R"(
struct Params { const int* from; int* to; };
extern "C" __global__ void copy(const __grid_constant__ Params p) {
  __shared__ int held[32];
  unsigned long long address;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(held + threadIdx.x));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((unsigned)address),
               "l"(p.from + threadIdx.x), "r"(4));
  asm volatile("cp.async.commit_group;" ::: "memory");
)" + wait +
         R"(
  p.to[threadIdx.x] = held[31 - threadIdx.x];
})";
}

constexpr const char* kWait = R"(
  asm volatile("cp.async.wait_group %0;" ::"n"(0) : "memory");
  __syncthreads();)";

class Emulator : public testing::Test {
 protected:
  void SetUp() override {
    auto device = open_cuda_device(0);
    ASSERT_TRUE(device.ok()) << render(device.error());
    device_ = std::move(*device);
    ASSERT_NE(device_->facts().name.find("emulated"), std::string::npos) << "a real GPU";
    auto compiler = open_nvrtc_compiler();
    ASSERT_TRUE(compiler.ok()) << render(compiler.error());
    compiler_ = std::move(*compiler);
  }
  void TearDown() override { unsetenv("ATTUNE_EMULATOR_ORDER"); }

  // Of one CTA of 32 threads, which gets two pieces of memory of 32 words: i in word i, and -1.
  Status run(const std::string& source, const char* symbol, const char* order) {
    setenv("ATTUNE_EMULATOR_ORDER", order, 1);
    ATT_TRY(const CompiledKernel code, compiler_->compile(source, symbol, Target::kSm90a));
    ATT_TRY(const auto function, device_->load_function({symbol, 32}, code.image));
    int words[32];
    for (int i = 0; i < 32; ++i) words[i] = i;
    ATT_TRY(void* const from, device_->allocate(sizeof words));
    ATT_TRY(void* const to, device_->allocate(sizeof words));
    ATT_CHECK(device_->copy_to_device(from, words, sizeof words));
    ATT_CHECK(device_->fill(to, 0xFF, sizeof words));
    void* const params[] = {from, to};
    Status status = function->launch(params, 1, nullptr);
    if (status.ok()) status = device_->copy_to_host(out_, to, sizeof out_);
    device_->free(from);
    device_->free(to);
    return status;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Compiler> compiler_;
  int out_[32] = {};
};

TEST_F(Emulator, RunsAKernelInEveryOrder) {
  for (const char* order : {"early", "late", "1", "2"}) {
    const Status status = run(copying_kernel(kWait), "copy", order);
    ASSERT_TRUE(status.ok()) << render(status.error());
    for (int i = 0; i < 32; ++i) EXPECT_EQ(out_[i], 31 - i) << order;
  }
}

TEST_F(Emulator, ReadsWhatIsNotThereYetWhenCopiesAreLate) {
  ASSERT_TRUE(run(copying_kernel("__syncthreads();"), "copy", "early").ok());
  EXPECT_EQ(out_[0], 31);
  ASSERT_TRUE(run(copying_kernel("__syncthreads();"), "copy", "late").ok());
  EXPECT_EQ(out_[0], -1);
}

TEST_F(Emulator, AWaitForNobodyIsAFault) {
  const std::string wait = R"(if (threadIdx.x < 16) __syncthreads();)";
  EXPECT_FALSE(run(copying_kernel(wait), "copy", "early").ok());
}

TEST_F(Emulator, LanesThatPartAreAFault) {
  const std::string part = std::string(kWait) + R"(
  if (threadIdx.x < 16) {
    int other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(other) : "r"(1), "r"(1));
  } else {
    asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
  })";
  EXPECT_FALSE(run(copying_kernel(part), "copy", "early").ok());
}

TEST_F(Emulator, AnAddressThatIsNobodysIsAFault) {
  const std::string beyond = std::string(kWait) + R"(
  int value;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(value) : "l"(p.from + 32));)";
  EXPECT_FALSE(run(copying_kernel(beyond), "copy", "early").ok());
}

TEST_F(Emulator, OneArrivalTooManyIsAFault) {
  const auto arrivals = [](int expected) {
    return std::string(kWait) + R"(
  __shared__ unsigned long long barrier;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(&barrier));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((unsigned)address), "r"()" +
           std::to_string(expected) + R"() : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::
                 "r"((unsigned)address), "r"(16) : "memory");
  }
  __syncthreads();
  if (threadIdx.x == 1) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"((unsigned)address) : "memory");
  })";
  };
  EXPECT_TRUE(run(copying_kernel(arrivals(3)), "copy", "early").ok());
  EXPECT_FALSE(run(copying_kernel(arrivals(1)), "copy", "early").ok());
}

TEST_F(Emulator, AnInstructionThatIsNotKnownDoesNotCompile) {
  const std::string unknown = R"(asm volatile("bar.arrive.everywhere 0;" ::: "memory");)";
  const Status status = run(copying_kernel(unknown), "copy", "early");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(render(status.error()).find("bar_arrive_everywhere"), std::string::npos);
}

}  // namespace
}  // namespace attune::emulator
