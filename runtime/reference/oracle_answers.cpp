#include "runtime/reference/oracle_answers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace attune {

Result<std::shared_ptr<void>> allocate_shared_on(Device& device, std::size_t bytes) {
  ATT_TRY(void* data, device.allocate(std::max<std::size_t>(bytes, 1)));
  return std::shared_ptr<void>(data, [&device](void* pointer) { device.free(pointer); });
}

Result<Expected> read_pairs(Device& device, const char* name, std::size_t width, const void* data,
                            std::size_t count) {
  std::vector<float> pairs(2 * count);
  ATT_CHECK(device.copy_to_host(pairs.data(), data, pairs.size() * sizeof(float)));
  Expected expected{.name = name, .width = width, .values = {}, .limits = {}};
  for (std::size_t i = 0; i < count; ++i) {
    expected.values.push_back(pairs[2 * i]);
    expected.limits.push_back(pairs[2 * i + 1]);
  }
  return expected;
}

Result<Verdict> verdict_of_rows(Device& device, const void* worst, std::size_t rows,
                                const std::function<Result<std::string>(std::size_t)>& describe) {
  ATT_CHECK(device.synchronize());
  std::vector<float> ratios(rows);
  ATT_CHECK(device.copy_to_host(ratios.data(), worst, rows * sizeof(float)));
  const auto at = std::ranges::max_element(ratios);
  Verdict verdict{.worst = at == ratios.end() ? 0 : *at, .wrong = {}};
  if (verdict.worst <= 1) return verdict;
  ATT_TRY(verdict.wrong, describe(static_cast<std::size_t>(at - ratios.begin())));
  verdict.wrong +=
      fmt::format("; {} of {} rows are off",
                  std::ranges::count_if(ratios, [](float ratio) { return ratio > 1; }), rows);
  return verdict;
}

}  // namespace attune
