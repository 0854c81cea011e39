// Numbers as specs and shapes write them: decimal, finite, nothing around them.
#pragma once

#include <cstdint>
#include <string_view>

namespace attune {

struct ParsedNumber {
  enum class Status {
    kInteger,    // integer and real hold it
    kReal,       // real holds it
    kOverflow,   // a number that does not fit int64 or double
    kNotFinite,  // nan, .inf and their kin
    kNone,       // no number
  };
  Status status = Status::kNone;
  std::int64_t integer = 0;
  double real = 0;

  bool is_number() const { return status == Status::kInteger || status == Status::kReal; }
};

ParsedNumber parse_number(std::string_view text);

}  // namespace attune
