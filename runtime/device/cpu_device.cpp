// This machine's cores as a device.
#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "runtime/device/cpu_facts.hpp"
#include "runtime/device/cpu_function.hpp"
#include "runtime/device/cpu_kernel.hpp"
#include "runtime/device/device.hpp"
#include "runtime/device/residue_kernel.hpp"
#include "runtime/device/rows_outside.hpp"
#include "runtime/jit/llvm_library.hpp"

namespace attune {
namespace {

constexpr std::size_t kCacheLineBytes = 64;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

class CpuDevice final : public Device {
 public:
  const DeviceFacts& facts() const override { return cpu_facts(); }
  Target target() const override { return Target::kCpu; }
  std::string identity() const override { return cpu_identity(); }
  // All processes of the machine have these cores.
  std::string unit() const override { return "cpu"; }

  Result<std::unique_ptr<LoadedKernel>> load(const AttentionSpec& spec, const KernelPlan& plan,
                                             std::span<const std::uint8_t> image) override {
    ATT_CHECK(check_plan(spec, plan, facts()));
    ATT_TRY(auto kernel, load_recipe(worked_spec(spec, plan), launch_recipe(spec, plan), image));
    return launched_whole(std::move(kernel), plan.residues);
  }
  Result<std::unique_ptr<LoadedKernel>> load_recipe(const AttentionSpec& spec,
                                                    const LaunchRecipe& recipe,
                                                    std::span<const std::uint8_t> image) override {
    ATT_TRY(const AttLlvmApi* module, open_llvm_module());
    return CpuKernel::load(*module, CpuPool::shared(), spec, recipe, image);
  }
  Result<std::unique_ptr<LoadedFunction>> load_function(
      const FunctionRecipe& recipe, std::span<const std::uint8_t> image) override {
    ATT_TRY(const AttLlvmApi* module, open_llvm_module());
    return CpuFunction::load(*module, CpuPool::shared(), recipe, image);
  }

  Status fill_rows_outside(const RowsOutside& rows, StreamHandle) override {
    fill_on_host(rows);
    return ok_status();
  }

  Result<void*> allocate(std::size_t bytes) override {
    // Large buffers in huge pages: strided rows of K and V would need a TLB entry each.
    const bool huge = bytes >= 2 * kHugePageBytes;
    const std::size_t unit = huge ? kHugePageBytes : kCacheLineBytes;
    const std::size_t rounded = (bytes == 0 ? unit : bytes + unit - 1) / unit * unit;
    void* memory = rounded < bytes ? nullptr : std::aligned_alloc(unit, rounded);
    if (memory == nullptr) {
      return Error{.id = "out-of-memory",
                   .message = std::to_string(bytes) + " bytes could not be allocated"};
    }
    if (huge) madvise(memory, rounded, MADV_HUGEPAGE);
    return memory;
  }
  void free(void* pointer) override { std::free(pointer); }
  Status copy_to_device(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return ok_status();
  }
  Status copy_to_host(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return ok_status();
  }
  Status fill(void* to, std::uint8_t byte, std::size_t bytes) override {
    std::memset(to, byte, bytes);
    return ok_status();
  }
  Status synchronize() override { return ok_status(); }

  Result<double> time_us(const std::function<Status(StreamHandle)>& work) override {
    const auto start = std::chrono::steady_clock::now();
    ATT_CHECK(work(nullptr));
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
        .count();
  }
};

}  // namespace

Result<std::unique_ptr<Device>> open_cpu_device() {
  if (!cpu_has_avx2()) {
    return Error{.kind = ErrorKind::kUnavailable,
                 .id = "cpu-too-old",
                 .message = "this processor has no AVX2, FMA and F16C",
                 .hint = "the cpu family needs an x86-64 processor of 2013 (Haswell) or later"};
  }
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>());
}

}  // namespace attune
