// The one content hash of Attune.
#pragma once

#include <string>
#include <string_view>

namespace attune {

// XXH3-128 of the bytes in its canonical (big-endian) form, 32 lower-case hex digits.
std::string hash128_hex(std::string_view bytes);

}  // namespace attune
