#include "cache/keys.hpp"

#include <fmt/format.h>
#include <sys/random.h>

#include <array>
#include <chrono>
#include <ctime>
#include <random>

#include "generator/support/hash.hpp"

namespace attune {

std::string compiler_family(std::string_view identity) {
  return std::string(identity.substr(0, identity.find(' ')));
}

std::string BuildKey::digest() const {
  const std::array<std::string_view, 5> fields{spec_hash, plan, body_hash, compiler, target};
  return cache::fields_hash(fields);
}

}  // namespace attune

namespace attune::cache {

std::string content_hash(std::span<const std::uint8_t> bytes) {
  return hash128_hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::string fields_hash(std::span<const std::string_view> fields) {
  std::string text;
  for (std::string_view field : fields) {
    text += fmt::format("{}:", field.size());
    text += field;
  }
  return hash128_hex(text);
}

std::string env_digest(const MeasurementKey& key) {
  const std::array<std::string_view, 2> fields{key.device, key.protocol};
  return fields_hash(fields);
}

std::string problem_digest(const MeasurementKey& key) {
  const ProblemShape& s = key.shape;
  const std::string shape =
      fmt::format("{},{},{},{},{}", s.batch, s.heads, s.kv_heads, s.q_len, s.kv_len);
  // The forward pass has the name that it had when there was no other.
  if (!key.data.label.empty()) {
    return fields_hash(
        std::array<std::string_view, 4>{key.spec_hash, shape, pass_name(key.pass), key.data.label});
  }
  if (key.pass == Pass::kForward)
    return fields_hash(std::array<std::string_view, 2>{key.spec_hash, shape});
  return fields_hash(std::array<std::string_view, 3>{key.spec_hash, shape, pass_name(key.pass)});
}

std::string candidate_digest(std::string_view spec_hash, std::string_view plan,
                             std::string_view build_digest) {
  if (!build_digest.empty()) return std::string(build_digest);
  const std::array<std::string_view, 2> fields{spec_hash, plan};
  return fields_hash(fields);
}

std::string pass_name(Pass pass) { return pass == Pass::kForward ? "forward" : "backward"; }

std::optional<Pass> pass_of(std::string_view name) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    if (pass_name(pass) == name) return pass;
  }
  return std::nullopt;
}

std::string_view hardware_of(std::string_view device) {
  return device.substr(0, device.find(" / driver "));
}

std::string make_uuid() {
  std::array<std::uint8_t, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    std::random_device source;
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(source());
  }
  bytes[6] = static_cast<std::uint8_t>((bytes[6] & 0x0f) | 0x40);
  bytes[8] = static_cast<std::uint8_t>((bytes[8] & 0x3f) | 0x80);
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", bytes[i]);
  }
  return text;
}

std::string utc_now() {
  std::timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  std::tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:06}Z", text.data(), now.tv_nsec / 1000);
}

std::int64_t unix_milliseconds() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

}  // namespace attune::cache
