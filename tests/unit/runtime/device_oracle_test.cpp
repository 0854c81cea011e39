// The GPU oracle's source compiles for every GPU spec of the library; tests/gpu runs it.
#include "runtime/reference/device_oracle.hpp"

#include <gtest/gtest.h>

#include "generator/spec/library.hpp"

namespace attune {
namespace {

struct NoKernel final : LoadedKernel {
  Status launch(const att::LaunchParams&, void*, StreamHandle) const override {
    return ok_status();
  }
  std::size_t workspace_bytes(const ProblemShape&) const override { return 0; }
};

// Takes any code and runs none.
class PaperDevice final : public Device {
 public:
  const DeviceFacts& facts() const override { return facts_; }
  std::string identity() const override { return "paper"; }
  Result<std::unique_ptr<LoadedKernel>> load(const AttentionSpec&, const KernelPlan&,
                                             std::span<const std::uint8_t>) override {
    return std::unique_ptr<LoadedKernel>(std::make_unique<NoKernel>());
  }
  Result<std::unique_ptr<LoadedKernel>> load_recipe(const AttentionSpec&, const LaunchRecipe&,
                                                    std::span<const std::uint8_t>) override {
    return std::unique_ptr<LoadedKernel>(std::make_unique<NoKernel>());
  }
  Result<void*> allocate(std::size_t) override { return Error{.id = "paper"}; }
  void free(void*) override {}
  Status copy_to_device(void*, const void*, std::size_t) override { return ok_status(); }
  Status copy_to_host(void*, const void*, std::size_t) override { return ok_status(); }
  Status fill(void*, std::uint8_t, std::size_t) override { return ok_status(); }
  Status synchronize() override { return ok_status(); }
  Result<double> time_us(const std::function<Status(StreamHandle)>&) override { return 0.0; }

 private:
  DeviceFacts facts_ = device_facts(Target::kSm80);
};

TEST(DeviceOracleSource, Compiles) {
  auto compiler = open_compiler(Target::kSm80);
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  PaperDevice device;
  for (const char* name : {"document_causal", "softcap", "sink_logits", "models/gpt2"}) {
    const auto entry = find_library_spec(name);
    ASSERT_TRUE(entry.ok()) << name;
    const auto spec = parse_spec(entry->text, entry->path);
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    const auto oracle = DeviceOracle::make(device, **compiler, *spec);
    EXPECT_TRUE(oracle.ok()) << name << ": " << render(oracle.error());
  }
}

}  // namespace
}  // namespace attune
