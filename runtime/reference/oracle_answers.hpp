// What the oracles on a device share: memory for answers, and how these come back.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "runtime/device/device.hpp"
#include "runtime/reference/oracle.hpp"

namespace attune {

// Memory of `device`, which must outlive the result.
Result<std::shared_ptr<void>> allocate_shared_on(Device& device, std::size_t bytes);

// `count` pairs of a value and its limit, fp32, from the device's memory.
Result<Expected> read_pairs(Device& device, const char* name, std::size_t width, const void* data,
                            std::size_t count);

// The verdict on `rows` rows from how far off each is, fp32, in the device's memory; `describe`
// says what is wrong with the row that is farthest off, where one is. Synchronises.
Result<Verdict> verdict_of_rows(Device& device, const void* worst, std::size_t rows,
                                const std::function<Result<std::string>(std::size_t)>& describe);

}  // namespace attune
