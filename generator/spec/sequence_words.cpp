#include "generator/spec/sequence_words.hpp"

#include <fmt/format.h>

#include "generator/spec/limits.hpp"

namespace attune {

SequenceWords sequence_words(const AttentionSpec& spec) {
  return {.lengths = to_string(spec.lengths),
          .page_size = spec.page_size,
          .shared_prefix = spec.shared_prefix};
}

Status take_words(const SequenceWords& words, AttentionSpec& spec) {
  if (words.page_size < 1 || words.page_size > kMaxPageSize || words.shared_prefix < 0) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "sequences-size",
                 .message = fmt::format("page_size is {} and shared_prefix {}", words.page_size,
                                        words.shared_prefix)};
  }
  spec.lengths = {};
  if (!words.lengths.empty()) {
    ATT_TRY(spec.lengths, parse_lengths(words.lengths));
  }
  spec.page_size = words.page_size;
  spec.shared_prefix = words.shared_prefix;
  return ok_status();
}

}  // namespace attune
