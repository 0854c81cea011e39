// Hashes, UUIDs and times: what the cache names its rows by.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cache/store.hpp"

namespace attune::cache {

// XXH3-128, 32 lower-case hex digits.
std::string content_hash(std::span<const std::uint8_t> bytes);
// Of a sequence of fields; each is preceded by its length, so that ("ab", "c") differs from ("a",
// "bc").
std::string fields_hash(std::span<const std::string_view> fields);

std::string env_digest(const MeasurementKey& key);
std::string problem_digest(const MeasurementKey& key);
// Names a candidate that was measured or rejected without a build key.
std::string candidate_digest(std::string_view spec_hash, std::string_view plan,
                             std::string_view build_digest);

// A pass as rows name it; nullopt: a later version's.
std::string pass_name(Pass pass);
std::optional<Pass> pass_of(std::string_view name);

// A device's identity up to " / driver ": what other drivers' measurements are still good for.
std::string_view hardware_of(std::string_view device);

std::string make_uuid();  // version 4
std::string utc_now();    // "2025-03-09T12:34:56.789012Z"
std::int64_t unix_milliseconds();

}  // namespace attune::cache
