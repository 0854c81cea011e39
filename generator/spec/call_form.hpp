// "segments(mean=700)": a name with numbers, as specs and commands say what made-up data are like.
#pragma once

#include <array>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/support/result.hpp"

namespace attune {

struct CallArgument {
  std::string_view name;
  double least, largest;
  double otherwise = std::numeric_limits<double>::quiet_NaN();  // NaN: it must be said
};

struct CallForm {
  std::string_view name;
  std::vector<CallArgument> arguments;  // at most kMostCallArguments
};
inline constexpr std::size_t kMostCallArguments = 2;
using CallValues = std::array<double, kMostCallArguments>;

// How errors speak of a kind of calls.
struct CallKind {
  std::string_view id;       // "sample" of "sample-syntax", "-unknown" and "-argument"
  std::string_view noun;     // "sample"
  std::string_view example;  // "segments(mean=700)"
};

struct CallText {
  std::string_view name, inside;  // between the parentheses; empty without them
};
Result<CallText> split_call(std::string_view text, const CallKind& kind);
Error unknown_call(std::string_view name, std::span<const std::string_view> known,
                   const CallKind& kind);
// Arguments by their order or their names (`mean: 700` is as good as `mean=700`), those with
// defaults may be left out. Of `low` and `high` the first is not above the other.
Result<CallValues> read_call(const CallForm& form, std::string_view inside, const CallKind& kind);
// What the functions above read back.
std::string call_text(const CallForm& form, const CallValues& values);

}  // namespace attune
