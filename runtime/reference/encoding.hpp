// Doubles that a dtype represents exactly, to and from its bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "generator/spec/spec.hpp"

namespace attune {

// Values as round_to() made them; any other loses its low bits.
void encode(DType dtype, const double* values, std::size_t count, std::uint8_t* bytes);
void decode(DType dtype, const std::uint8_t* bytes, std::size_t count, double* values);

}  // namespace attune
