#include <fmt/format.h>

#include <charconv>

#include "runtime/device/device.hpp"

namespace attune {

namespace {

Error not_run(const Device& device, const std::string& symbol) {
  return Error{.kind = ErrorKind::kUnsupported,
               .id = "no-gpu-code",
               .message = fmt::format("{} does not run {}", device.identity(), symbol)};
}

}  // namespace

Result<std::unique_ptr<LoadedKernel>> Device::load_recipe(const AttentionSpec&,
                                                          const LaunchRecipe& recipe,
                                                          std::span<const std::uint8_t>) {
  return not_run(*this, recipe.symbol);
}

Result<std::unique_ptr<LoadedFunction>> Device::load_function(const FunctionRecipe& recipe,
                                                              std::span<const std::uint8_t>) {
  return not_run(*this, recipe.symbol);
}

Status Device::fill_rows_outside(const RowsOutside&, StreamHandle) {
  return not_run(*this, "attune_rows_outside");
}

Status Device::copy_to_host_behind(StreamHandle, std::span<const HostCopy> copies) {
  for (const HostCopy& copy : copies) ATT_CHECK(copy_to_host(copy.to, copy.from, copy.bytes));
  return ok_status();
}

Result<std::unique_ptr<Device>> open_device(std::string_view name) {
  if (name.empty()) {
    auto current = open_current_cuda_device();
    if (current.ok()) return current;
    auto first = open_cuda_device(0);
    return first.ok() ? std::move(first) : open_cpu_device();
  }
  if (name == "cpu") return open_cpu_device();
  constexpr std::string_view kCuda = "cuda:";
  if (name.starts_with(kCuda)) {
    const std::string_view digits = name.substr(kCuda.size());
    int ordinal = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
    if (error == std::errc() && end == digits.data() + digits.size() && ordinal >= 0) {
      return open_cuda_device(ordinal);
    }
  }
  return Error{.kind = ErrorKind::kBadInput,
               .id = "device-unknown",
               .message = fmt::format("unknown device `{}`", name),
               .hint = "cuda:0, cuda:1, ... or cpu"};
}

}  // namespace attune
