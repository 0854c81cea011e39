#include "generator/spec/dim.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "generator/expr/syntax.hpp"
#include "generator/spec/limits.hpp"
#include "generator/spec/number.hpp"
#include "generator/spec/shape.hpp"
#include "generator/support/suggest.hpp"

namespace attune {
namespace {

using expr::Dim;
using expr::Op;
using expr::Syntax;
using expr::SyntaxKind;

// Kernels and launches count elements as int.
static_assert(expr::kMaxSequenceLength * kMaxDimFactor + kMaxDimOffset <=
              std::numeric_limits<int>::max());
static_assert(kMaxBatch <= expr::kMaxSequenceLength && kMaxHeads <= expr::kMaxSequenceLength);

constexpr std::string_view kForms = "for example (q_len + 127) // 128, or 2 * kv_len - 1";

// On the way no number is larger, so that sums and products of two fit int64.
constexpr std::int64_t kMostOnTheWay = std::int64_t{1} << 31;

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

// (size * factor + offset) // divisor; a number when factor is 0, whose divisor is 1.
struct Quotient {
  Dim dim = Dim::kNumber;
  std::int64_t factor = 0, offset = 0, divisor = 1;

  bool is_number() const { return factor == 0; }
};

class DimReader {
 public:
  DimReader(std::string_view text, const expr::SourceOrigin& origin)
      : text_(text), origin_(origin) {}

  Result<expr::DimSize> read() {
    ATT_TRY(const std::unique_ptr<Syntax> tree, expr::parse_syntax(text_, origin_));
    ATT_TRY(Quotient found, reduce(*tree));
    if (found.is_number()) {
      if (found.offset < 1 || found.offset > kMaxTensorDim)
        return out_of_range(*tree, "the dim", found.offset, 1, kMaxTensorDim);
      return expr::DimSize{.dim = Dim::kNumber, .number = static_cast<int>(found.offset)};
    }
    // floor(floor(x / n) / m) is floor(x / (n m)).
    const std::int64_t common = std::gcd(found.factor, found.divisor);
    found.factor /= common;
    found.offset = floor_quotient(found.offset, common);
    found.divisor /= common;
    if (found.factor < 1 || found.factor > kMaxDimFactor)
      return out_of_range(*tree, "the factor of a dim", found.factor, 1, kMaxDimFactor);
    if (std::abs(found.offset) > kMaxDimOffset) {
      return out_of_range(*tree, "what is added in a dim", found.offset, -kMaxDimOffset,
                          kMaxDimOffset);
    }
    if (found.divisor > kMaxDimDivisor)
      return out_of_range(*tree, "the divisor of a dim", found.divisor, 1, kMaxDimDivisor);
    return expr::DimSize{.dim = found.dim,
                         .factor = static_cast<int>(found.factor),
                         .offset = static_cast<int>(found.offset),
                         .divisor = static_cast<int>(found.divisor)};
  }

 private:
  Error fail(expr::TextRange range, std::string id, std::string message,
             std::string hint = std::string(kForms)) const {
    return expr::error_at(text_, origin_, range, std::move(id), std::move(message),
                          std::move(hint));
  }
  Error out_of_range(const Syntax& syntax, std::string_view what, std::int64_t value,
                     std::int64_t least, std::int64_t largest) const {
    return fail(syntax.range, "spec-out-of-range",
                fmt::format("{} is {}, not in {} to {}", what, value, least, largest));
  }
  Error other_form(expr::TextRange range) const {
    return fail(range, "spec-dim", "a dim is (size * number + number) // number of one size",
                std::string(kForms));
  }

  Result<Quotient> reduce(const Syntax& syntax) const {
    switch (syntax.kind) {
      case SyntaxKind::kInteger:
        return Quotient{.offset = syntax.integer};
      case SyntaxKind::kName:
        return named(syntax);
      case SyntaxKind::kUnary: {
        if (syntax.op != Op::kNegate) return other_form(syntax.range);
        ATT_TRY(const Quotient of, reduce(*syntax.children[0]));
        return bounded(syntax, negative(of));
      }
      case SyntaxKind::kBinary:
        break;
      case SyntaxKind::kCall:
        return fail(syntax.range, "spec-dim", "a dim calls no function",
                    "rounded up, a quotient is (q_len + 127) // 128");
      default:
        return other_form(syntax.range);
    }
    ATT_TRY(const Quotient left, reduce(*syntax.children[0]));
    ATT_TRY(const Quotient right, reduce(*syntax.children[1]));
    ATT_TRY(const Quotient found, combined(syntax, left, right));
    return bounded(syntax, found);
  }

  Result<Quotient> named(const Syntax& syntax) const {
    const auto names = dim_names();
    const auto found = std::ranges::find(names, syntax.name);
    if (found != names.end())
      return Quotient{.dim = static_cast<Dim>(found - names.begin()), .factor = 1};
    std::string hint = did_you_mean(syntax.name, names);
    if (hint.empty()) hint = "sizes are " + join_names(names);
    return fail(syntax.range, "spec-unknown-value",
                fmt::format("`dims` knows no size {}", quoted(syntax.name)), std::move(hint));
  }

  // -floor(x / n) is floor((n - 1 - x) / n).
  static Quotient negative(const Quotient& of) {
    return {of.dim, -of.factor, of.divisor - 1 - of.offset, of.divisor};
  }

  Result<Quotient> combined(const Syntax& syntax, const Quotient& left,
                            const Quotient& right) const {
    switch (syntax.op) {
      case Op::kAdd:
        return sum(syntax, left, right);
      case Op::kSubtract:
        return sum(syntax, left, negative(right));
      case Op::kMultiply: {
        if (!left.is_number() && !right.is_number())
          return fail(syntax.range, "spec-dim", "a dim has no product of two sizes");
        const Quotient& size = left.is_number() ? right : left;
        const std::int64_t number = left.is_number() ? left.offset : right.offset;
        if (size.divisor != 1) return other_form(syntax.range);
        return Quotient{size.dim, size.factor * number, size.offset * number, 1};
      }
      case Op::kFloorDivide:
        if (!right.is_number())
          return fail(syntax.children[1]->range, "spec-dim", "a dim is divided by a number alone");
        if (right.offset < 1) {
          return fail(syntax.children[1]->range, "spec-dim",
                      fmt::format("a dim is divided by {}, not by 1 or more", right.offset));
        }
        if (left.is_number()) return Quotient{.offset = floor_quotient(left.offset, right.offset)};
        return Quotient{left.dim, left.factor, left.offset, left.divisor * right.offset};
      case Op::kDivide:
        return fail(syntax.name_range, "spec-dim", "a dim is a whole number",
                    "`//` divides and rounds down");
      default:
        return other_form(syntax.range);
    }
  }

  Result<Quotient> sum(const Syntax& syntax, const Quotient& left, const Quotient& right) const {
    if (left.is_number() || right.is_number()) {
      const Quotient& size = left.is_number() ? right : left;
      const std::int64_t number = left.is_number() ? left.offset : right.offset;
      return Quotient{size.dim, size.factor, size.offset + number * size.divisor, size.divisor};
    }
    if (left.dim != right.dim)
      return fail(syntax.range, "spec-dim", "a dim is computed from one size alone");
    if (left.divisor != 1 || right.divisor != 1) return other_form(syntax.range);
    return Quotient{left.dim, left.factor + right.factor, left.offset + right.offset, 1};
  }

  // What lost its size is a number.
  Result<Quotient> bounded(const Syntax& syntax, Quotient found) const {
    if (std::max({std::abs(found.factor), std::abs(found.offset), found.divisor}) > kMostOnTheWay)
      return fail(syntax.range, "spec-out-of-range", "a dim's numbers are too large");
    if (found.factor == 0) return Quotient{.offset = floor_quotient(found.offset, found.divisor)};
    return found;
  }

  std::string_view text_;
  const expr::SourceOrigin& origin_;
};

bool is_word(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
}

}  // namespace

Result<expr::DimSize> read_dim(const SpecReader& reader, const YamlNode& node) {
  const bool is_text = node.kind == YamlNode::Kind::kScalar;
  if (is_text && node.plain && parse_number(node.text).status != ParsedNumber::Status::kNone) {
    ATT_TRY(const std::int64_t number, reader.integer("dims", node, 1, kMaxTensorDim));
    return expr::DimSize{.dim = Dim::kNumber, .number = static_cast<int>(number)};
  }
  if (!is_text || is_word(node.text)) {
    ATT_TRY(const std::size_t index, reader.choice("dims", node, dim_names()));
    return expr::DimSize{.dim = static_cast<Dim>(index)};
  }
  const std::vector<SourceSpan> positions = scalar_positions(reader.source(), node);
  const expr::SourceOrigin origin{.file = std::string(reader.source().file),
                                  .line = positions.front().line,
                                  .column = positions.front().column,
                                  .continuation_column = 1,
                                  .whole_file = reader.source().text,
                                  .positions = positions};
  auto dim = DimReader(node.text, origin).read();
  if (!dim.ok() && dim.error().source_line.size() > kMaxShownLine) dim.error().source_line.clear();
  return dim;
}

}  // namespace attune
