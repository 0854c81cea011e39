// A spec's text, with dropout's seed on the device.
#pragma once

#include <string>
#include <string_view>

#include "generator/support/result.hpp"

namespace attune {

// The text of a valid spec with `seed: device` in its `dropout`, all else as it stands.
// "spec-dropout" where nothing is dropped.
Result<std::string> with_device_seed(std::string_view yaml);

}  // namespace attune
