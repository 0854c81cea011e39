// What must hold for any bytes whatsoever given to the spec parser; libFuzzer and the deterministic
// mutation test share it.
#pragma once

#include <string>
#include <string_view>

namespace attune {

// Empty when all is well, else what is not.
std::string check_spec_bytes(std::string_view bytes);

}  // namespace attune
