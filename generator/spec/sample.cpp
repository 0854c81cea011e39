#include "generator/spec/sample.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "generator/spec/call_form.hpp"

namespace attune {
namespace {

constexpr double kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::string_view kSkewed = "skewed ", kAnother = "another ";
constexpr CallKind kCall{.id = "sample", .noun = "sample", .example = "segments(mean=700)"};

enum Types : std::uint8_t { kInts = 1, kReals = 2, kBools = 4 };

struct Form {
  SampleKind kind;
  CallForm call;
  int types;
  std::size_t least_dims;
};

const std::vector<Form>& forms() {
  static const std::vector<Form> kForms = {
      {SampleKind::kConstant, {"constant", {{"value", -kMost, kMost}}}, kInts | kReals | kBools, 0},
      {SampleKind::kUniform,
       {"uniform", {{"low", -kMost, kMost}, {"high", -kMost, kMost}}},
       kInts | kReals,
       0},
      {SampleKind::kNormal,
       {"normal", {{"mean", -kMost, kMost, 0}, {"deviation", 0, kMost, 1}}},
       kReals,
       0},
      {SampleKind::kSorted,
       {"sorted", {{"low", -kMost, kMost}, {"high", -kMost, kMost}}},
       kInts | kReals,
       1},
      {SampleKind::kSegments, {"segments", {{"mean", 1, kMost}}}, kInts, 1},
      {SampleKind::kPermutation, {"permutation", {}}, kInts, 1},
      {SampleKind::kSubtreeEnds, {"subtree_ends", {{"branch", 1.01, 1000, 3}}}, kInts, 1},
      {SampleKind::kAncestors, {"ancestors", {{"branch", 1.01, 1000, 3}}}, kBools, 2},
      {SampleKind::kLengths, {"lengths", {{"low", 0, 1}, {"high", 0, 1}}}, kInts, 0},
      {SampleKind::kChance, {"chance", {{"share", 0, 1}}}, kBools, 0},
      {SampleKind::kSlopes, {"slopes", {}}, kReals, 1},
  };
  return kForms;
}

const Form* form_of(SampleKind kind) {
  const auto at = std::ranges::find(forms(), kind, &Form::kind);
  return at == forms().end() ? nullptr : &*at;
}

int types_of(expr::TensorType type) {
  return type == expr::TensorType::kInt32  ? kInts
         : type == expr::TensorType::kBool ? kBools
                                           : kReals;
}

Status check_tensor(const Form& form, const expr::TensorDecl& tensor) {
  const auto problem = [](std::string message) {
    return Error{.kind = ErrorKind::kBadInput, .id = "sample-type", .message = std::move(message)};
  };
  if ((form.types & types_of(tensor.type)) == 0) {
    constexpr std::pair<int, std::string_view> kWords[] = {
        {kInts, "int32"}, {kReals, "float32, fp16 or bf16"}, {kBools, "bool"}};
    std::vector<std::string_view> words;
    for (const auto& [type, word] : kWords) {
      if (form.types & type) words.push_back(word);
    }
    return problem(
        fmt::format("`{}` is for tensors of {}", form.call.name, fmt::join(words, " or ")));
  }
  if (tensor.dims.size() < form.least_dims) {
    return problem(fmt::format("`{}` is for tensors of {} dims and more, `{}` has {}",
                               form.call.name, form.least_dims, tensor.name, tensor.dims.size()));
  }
  return ok_status();
}

}  // namespace

std::string to_string(const Sample& sample) {
  if (sample.kind == SampleKind::kGiven) return "given";
  const Form* form = form_of(sample.kind);
  if (form == nullptr) return "";
  return fmt::format("{}{}{}", sample.another ? kAnother : "", sample.skewed ? kSkewed : "",
                     call_text(form->call, sample.arguments));
}

bool may_be_skewed(SampleKind kind) {
  switch (kind) {
    case SampleKind::kUniform:
    case SampleKind::kSorted:
    case SampleKind::kSegments:
    case SampleKind::kPermutation:
    case SampleKind::kSubtreeEnds:
    case SampleKind::kAncestors:
    case SampleKind::kLengths:
    case SampleKind::kChance:
      return true;
    default:
      return false;
  }
}

bool is_random(SampleKind kind) { return may_be_skewed(kind) || kind == SampleKind::kNormal; }

Result<Sample> parse_sample(std::string_view text, const expr::TensorDecl& tensor) {
  const bool another = text.starts_with(kAnother);
  if (another) text.remove_prefix(kAnother.size());
  const bool skewed = text.starts_with(kSkewed);
  if (skewed) text.remove_prefix(kSkewed.size());
  ATT_TRY(const CallText call, split_call(text, kCall));
  const auto form =
      std::ranges::find(forms(), call.name, [](const Form& known) { return known.call.name; });
  if (form == forms().end()) {
    std::vector<std::string_view> names;
    for (const Form& known : forms()) names.push_back(known.call.name);
    return unknown_call(call.name, names, kCall);
  }
  if (skewed && !may_be_skewed(form->kind)) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "sample-type",
                 .message = fmt::format("`{}` is never skewed", call.name)};
  }
  if (another && !is_random(form->kind)) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "sample-type",
                 .message = fmt::format("`{}` is the same whenever it is drawn", call.name)};
  }
  ATT_CHECK(check_tensor(*form, tensor));
  ATT_TRY(const CallValues values, read_call(form->call, call.inside, kCall));
  return Sample{.kind = form->kind, .arguments = values, .skewed = skewed, .another = another};
}

}  // namespace attune
