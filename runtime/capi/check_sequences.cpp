#include "runtime/capi/check_sequences.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace attune {
namespace {

constexpr std::int32_t kNoPage = -1;

Error wrong(const char* id, std::string message, std::string hint) {
  return {.kind = ErrorKind::kBadInput,
          .id = id,
          .message = std::move(message),
          .hint = std::move(hint)};
}

// Ascending from 0 to at most `total`, which is what the launch calls `size`.
Status check_offsets(const char* name, std::span<const std::int32_t> offsets, std::int64_t total,
                     const char* size) {
  if (offsets.empty()) return ok_status();
  if (offsets.front() != 0) {
    return wrong("offsets-out-of-range", fmt::format("`{}` begins with {}", name, offsets.front()),
                 "offsets ascend from 0");
  }
  for (std::size_t b = 0; b + 1 < offsets.size(); ++b) {
    const std::int32_t begin = offsets[b], end = offsets[b + 1];
    if (end < begin) {
      return wrong("offsets-descend",
                   fmt::format("`{}` descends: sequence {} begins at {} and ends at {}", name, b,
                               begin, end),
                   fmt::format("they are `{}[{}]` and the next one", name, b));
    }
    if (end > total) {
      return wrong(
          "offsets-out-of-range",
          fmt::format("`{}` leads out of the tensors: sequence {} ends at {}, and {} is {}", name,
                      b, end, size, total),
          fmt::format("it is `{}[{}]`", name, b + 1));
    }
  }
  return ok_status();
}

std::int64_t at(std::span<const std::int32_t> values, std::int64_t index) {
  return values[static_cast<std::size_t>(index)];
}

// Rows between a sequence's offsets, which have been checked.
std::int64_t span_of(std::span<const std::int32_t> offsets, std::int64_t b) {
  return at(offsets, b + 1) - at(offsets, b);
}

class Checker {
 public:
  explicit Checker(const GivenSequences& given) : given_(given) {}

  Status check_sequence(std::int64_t b) const {
    const std::int64_t own_queries = span_of(given_.cu_q, b);
    const std::int64_t room = given_.cu_kv.empty() ? given_.kv_len : span_of(given_.cu_kv, b);
    if (!is_within(given_.used_q, b, own_queries)) {
      return bad_length("used_q", at(given_.used_q, b), b, own_queries, of_offsets("cu_q"));
    }
    if (!is_within(given_.used_kv, b, room)) {
      return bad_length("used_kv", at(given_.used_kv, b), b, room, limit_of_keys());
    }
    const std::int64_t queries = given_.used_q.empty() ? own_queries : at(given_.used_q, b);
    const std::int64_t keys = given_.used_kv.empty() ? room : at(given_.used_kv, b);
    if (queries == 0 || keys == 0) return ok_status();
    if (given_.appends && queries > keys) {
      return wrong(
          "length-out-of-range",
          fmt::format("sequence {} has {} new tokens, and {} keys with them", b, queries, keys),
          "`used_kv` counts the new tokens too");
    }
    return check_pages(b, given_.appends ? keys - queries : 0, keys);
  }

 private:
  static bool is_within(std::span<const std::int32_t> used, std::int64_t b, std::int64_t most) {
    return used.empty() || (at(used, b) >= 0 && at(used, b) <= most);
  }

  static Error bad_length(const char* name, std::int64_t length, std::int64_t b, std::int64_t most,
                          std::string hint) {
    return wrong("length-out-of-range",
                 fmt::format("`{}` of sequence {} is {}, not in 0 to {}", name, b, length, most),
                 std::move(hint));
  }
  static std::string of_offsets(const char* name) {
    return fmt::format("so many tokens lie between its offsets in `{}`", name);
  }
  std::string limit_of_keys() const {
    if (!given_.cu_kv.empty()) return of_offsets("cu_kv");
    if (given_.page_table.empty()) return "so much room is there: shape.kv_len";
    return fmt::format("shape.kv_len is {}, and a row of the table {} pages of {} rows",
                       given_.kv_len, given_.pages.per_sequence, given_.pages.size);
  }

  // Of keys [first, keys) of sequence b, one at least.
  Status check_pages(std::int64_t b, std::int64_t first, std::int64_t keys) const {
    if (given_.page_table.empty()) return ok_status();
    const auto& [per_sequence, size, count] = given_.pages;
    for (std::int64_t entry = first / size; entry <= (keys - 1) / size; ++entry) {
      const std::int64_t page = at(given_.page_table, b * per_sequence + entry);
      if (page == kNoPage || (page >= 0 && page < count)) continue;
      return wrong("page-out-of-range",
                   fmt::format("entry {} of sequence {} in `page_table` is page {}, and the cache "
                               "has {} pages",
                               entry, b, page, count),
                   fmt::format("it is page_table[{}], where keys {} to {} of {} lie",
                               b * per_sequence + entry, entry * size,
                               std::min((entry + 1) * size, keys) - 1, keys));
    }
    return ok_status();
  }

  const GivenSequences& given_;
};

}  // namespace

Status check_sequences(const GivenSequences& given) {
  ATT_CHECK(check_offsets("cu_q", given.cu_q, given.q_len, "shape.q_len"));
  ATT_CHECK(check_offsets("cu_kv", given.cu_kv, given.kv_len, "shape.kv_len"));
  const Checker checker(given);
  for (std::int64_t b = 0; b < given.batch; ++b) ATT_CHECK(checker.check_sequence(b));
  return ok_status();
}

}  // namespace attune
