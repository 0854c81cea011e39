#include "generator/plan/length_class.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "generator/spec/draw_lengths.hpp"
#include "generator/spec/shape.hpp"
#include "generator/support/hash.hpp"

namespace attune {
namespace {

constexpr double kLeastFilled = 0x1p-10;

double coarse(double ratio) { return std::exp2(std::round(2 * std::log2(ratio)) / 2); }

LengthClass coarse_class(double longest, double filled, int page_size) {
  return {.longest = coarse(std::max(longest, 1.0)),
          .filled = coarse(std::clamp(filled, kLeastFilled, 1.0)),
          .page_size = page_size};
}

std::string joined(std::string lengths, int page_size, int prefix) {
  const auto add = [&](const std::string& part) {
    lengths += (lengths.empty() ? "" : "; ") + part;
  };
  if (page_size != 0) add(fmt::format("page={}", page_size));
  if (prefix != 0) add(fmt::format("prefix={}", prefix));
  return lengths;
}

std::string hash_of(std::span<const std::int32_t> values) {
  return hash128_hex({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

// A few digits: what else a problem is named by differs too.
std::string given_text(const std::string& hash) { return "lengths=given " + hash.substr(0, 8); }

}  // namespace

LengthClass length_class(std::span<const std::int32_t> keys, std::int64_t room, int page_size) {
  double all = 0, longest = 0;
  for (const std::int32_t length : keys) {
    all += length;
    longest = std::max<double>(longest, length);
  }
  const double mean = all / std::max<double>(double(keys.size()), 1);
  return coarse_class(mean > 0 ? longest / mean : 1, all / std::max<double>(double(room), 1),
                      page_size);
}

LengthClass drawn_class(const AttentionSpec& spec, const ProblemShape& shape) {
  if (!is_packed(spec)) return {};
  const int page_size = is_paged(spec) ? spec.page_size : 0;
  if (spec.lengths.kind != LengthsKind::kUnsaid) {
    std::mt19937_64 any;
    return length_class(key_lengths(spec, shape, any), key_rows(spec, shape), page_size);
  }
  const auto n = double(shape.batch);
  // Of paged ones the first has all that there is room for: draw_paged_sequences().
  if (is_paged(spec)) {
    const double all = 1 + (n - 1) * kMeanUnsaid;
    return coarse_class(n / all, all / n, page_size);
  }
  // Ends of packed sequences are drawn anywhere: the longest of n stretches of a stick that is
  // broken at random has so many times the mean on average.
  double longest = 0;
  for (std::int64_t i = 1; i <= shape.batch; ++i) longest += 1 / double(i);
  return coarse_class(longest, 1, page_size);
}

std::string lengths_label(const AttentionSpec& spec) {
  if (!is_packed(spec)) return "";
  std::string said;
  if (spec.lengths.kind == LengthsKind::kGiven) {
    said = given_text(hash_of(spec.lengths.given));
  } else if (spec.lengths.kind != LengthsKind::kUnsaid) {
    said = "lengths=" + to_string(spec.lengths);
  }
  // Pages of the usual size have the name that they had when there was no other.
  const bool usual = !is_paged(spec) || spec.page_size == AttentionSpec{}.page_size;
  return joined(said, usual ? 0 : spec.page_size, is_paged(spec) ? spec.shared_prefix : 0);
}

std::string given_lengths_label(std::span<const std::int32_t> queries,
                                std::span<const std::int32_t> keys, int page_size) {
  return joined(given_text(hash128_hex(hash_of(queries) + hash_of(keys))),
                page_size == AttentionSpec{}.page_size ? 0 : page_size, 0);
}

}  // namespace attune
