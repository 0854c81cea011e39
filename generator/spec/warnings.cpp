#include "generator/spec/warnings.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <set>

#include "generator/expr/alignment.hpp"
#include "generator/expr/arithmetic.hpp"
#include "generator/expr/mask_probe.hpp"
#include "generator/expr/static_range.hpp"
#include "generator/spec/yaml_tree.hpp"

namespace attune {
namespace {

struct ReadSlots {
  std::set<int> scalars, tensors;
};

void collect(const expr::Expr& e, ReadSlots& read) {
  if (e->op == expr::Op::kScalar) read.scalars.insert(e->slot);
  if (e->op == expr::Op::kLoad) read.tensors.insert(e->slot);
  for (const expr::Expr& arg : e->args) collect(arg, read);
}

// A sum or difference of a constant and a number of a known range that leaves int32 where the
// number is large: mostly a window "without an end" of INT_MAX. Of what may be anything, as what a
// launch brings, nothing is told, nor of positions below 0, where a mask seldom asks.
bool wraps_by_constant(const expr::Expr& e) {
  if (e->type != expr::Type::kInt32 || (e->op != expr::Op::kAdd && e->op != expr::Op::kSubtract)) {
    return false;
  }
  const bool constant_first = e->args[0]->op == expr::Op::kInt;
  const expr::Expr& constant = e->args[constant_first ? 0 : 1];
  if (constant->op != expr::Op::kInt) return false;
  const std::int64_t most = expr::static_range(e->args[constant_first ? 1 : 0]).hi;
  if (most == expr::kInt32Max) return false;
  const std::int64_t value = constant->int_value;
  return !expr::fits_int32(e->op == expr::Op::kAdd ? value + most
                           : constant_first        ? value - most
                                                   : most - value);
}

expr::Expr find_wrapping(const expr::Expr& e) {
  if (wraps_by_constant(e)) return e;
  for (const expr::Expr& arg : e->args) {
    if (expr::Expr found = find_wrapping(arg)) return found;
  }
  return nullptr;
}

class Warnings {
 public:
  Warnings(const AttentionSpec& spec, const SpecSource& source, const YamlNode& root)
      : spec_(spec), source_(source), root_(root) {}

  std::vector<Error> all() {
    find_unread();
    find_mixed_alignment();
    find_wraps();
    probe();
    return std::move(found_);
  }

 private:
  void add(std::string id, SourceSpan span, std::string message, std::string hint) {
    found_.push_back(source_.error(std::move(id), span, std::move(message), std::move(hint)));
  }

  // Constants are folded, so only what a launch brings can be told.
  void find_unread() {
    ReadSlots read;
    for (const expr::Expr& e : {spec_.mask, spec_.score, spec_.sink}) {
      if (e) collect(e, read);
    }
    const auto warn = [&](const char* section, const char* what, const std::string& name) {
      add("spec-unread", root_.find(section)->value.find(name)->key.span,
          fmt::format("the {} `{}` is read by no expression", what, name),
          "every launch has to bring it all the same; leave it out");
    };
    const expr::Environment& environment = spec_.environment;
    for (std::size_t i = 0; i < environment.scalars.size(); ++i) {
      if (!environment.scalars[i].is_constant && !read.scalars.contains(static_cast<int>(i)))
        warn("scalars", "scalar", environment.scalars[i].name);
    }
    for (std::size_t i = 0; i < environment.tensors.size(); ++i) {
      if (!read.tensors.contains(static_cast<int>(i)))
        warn("tensors", "tensor", environment.tensors[i].name);
    }
  }

  void find_mixed_alignment() {
    const expr::Expr expressions[] = {spec_.mask, spec_.score};
    const expr::Alignment found = expr::alignment_of(expressions, spec_.environment);
    if (!found.start || !found.end) return;
    add("spec-mixed-alignment", *found.start,
        fmt::format("this takes the query to stand at key q_idx, line {} at key q_idx + kv_len - "
                    "q_len: they differ where q_len is not kv_len",
                    found.end->line),
        "write `q_pos` for the query's position, as `causal` and `document(doc)` do");
  }

  void find_wraps() {
    for (const expr::Expr& e : {spec_.mask, spec_.score, spec_.sink}) {
      const expr::Expr found = e ? find_wrapping(e) : nullptr;
      if (!found) continue;
      add("spec-wraps", found->span, "this can leave int32 and wrap: its sign turns",
          "a window without an end on one side is a comparison left out; 1 << 30 is far enough "
          "too");
    }
  }

  void probe() {
    if (!spec_.mask) return;
    const expr::MaskProbe seen = expr::probe_mask(spec_.mask, spec_.environment);
    const SourceSpan place = root_.find("mask")->key.span;
    if (!seen.live) {
      add("spec-mask-never", place, "the mask is true nowhere: no query sees any key",
          "true is live: a mask says what is seen, not what is hidden");
    } else if (!seen.dead) {
      add("spec-mask-always", place, "the mask is true everywhere: every query sees every key",
          "leave `mask` out, and nothing of it is computed");
    }
  }

  const AttentionSpec& spec_;
  const SpecSource& source_;
  const YamlNode& root_;
  std::vector<Error> found_;
};

}  // namespace

std::vector<Error> spec_warnings(const AttentionSpec& spec, std::string_view yaml,
                                 std::string_view file) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (yaml.starts_with(kByteOrderMark)) yaml.remove_prefix(kByteOrderMark.size());
  const SpecSource source{.text = yaml, .file = file};
  const Result<YamlNode> root = parse_yaml(source);
  if (!root.ok()) return {};
  return Warnings(spec, source, *root).all();
}

}  // namespace attune
