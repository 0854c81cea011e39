// What a spec may ask for. Specs are untrusted: every size has a bound, and docs/spec.md names
// each.
#pragma once

#include <cstddef>
#include <cstdint>

namespace attune {

constexpr std::size_t kMaxSpecBytes = std::size_t{1} << 20;
constexpr int kMaxYamlNesting = 16;
constexpr std::size_t kMaxYamlEntries = 256;  // of one mapping or sequence
constexpr std::size_t kMaxYamlNodes = 10000;
constexpr std::size_t kMaxNameLength = 64;

constexpr int kMinHeadDim = 8;
constexpr int kMaxHeadDim = 256;
inline constexpr int kMaxSharedHeadDimQk = 576;  // with v_in_k
inline constexpr int kMaxSharedHeadDimV = 512;
constexpr int kHeadDimStep = 8;
inline constexpr int kFp8HeadDimStep = 16;  // rows of K and V are multiples of 16 bytes

constexpr std::int64_t kMaxTensorDim = std::int64_t{1} << 24;
// Of a dim that is computed from a size, (size * factor + offset) // divisor.
constexpr std::int64_t kMaxDimFactor = 4;
constexpr std::int64_t kMaxDimOffset = std::int64_t{1} << 20;  // either sign
constexpr std::int64_t kMaxDimDivisor = std::int64_t{1} << 20;
constexpr std::size_t kMaxTuneShapes = 64;
constexpr std::int64_t kMaxBatch = std::int64_t{1} << 16;
constexpr std::int64_t kMaxHeads = std::int64_t{1} << 12;
constexpr std::int64_t kMaxPageSize = std::int64_t{1} << 16;

}  // namespace attune
