#include "generator/expr/alignment.hpp"

#include <unordered_set>

#include "generator/expr/build.hpp"

namespace attune::expr {
namespace {

struct PositionsUsed {
  bool q_idx = false, kv_idx = false, q_len = false;
};

// Of the expression itself; what its look-ups' indices use is theirs.
void collect(const Expr& e, PositionsUsed& found) {
  if (e->op == Op::kLoad) return;
  if (e->op == Op::kVariable) {
    found.q_idx |= e->variable == Variable::kQIdx;
    found.kv_idx |= e->variable == Variable::kKvIdx;
    found.q_len |= e->variable == Variable::kQLen;
  }
  for (const Expr& arg : e->args) collect(arg, found);
}

class Finder {
 public:
  explicit Finder(const Environment& environment) : environment_(environment) {}

  // `inside`: part of an expression that was looked at as a whole.
  void visit(const Expr& e, bool inside) {
    if (!seen_.insert({e.get(), inside}).second) return;
    const bool compares = is_comparison(e->op) && e->args[0]->type != Type::kBool;
    const bool whole = compares || e->type == Type::kInt32;
    if (e->op == Op::kLoad) {
      const auto& dims = environment_.tensors[static_cast<std::size_t>(e->slot)].dims;
      for (std::size_t i = 0; i < e->args.size(); ++i) {
        PositionsUsed index;
        collect(e->args[i], index);
        if (dims[i].dim == Dim::kKvLen && index.q_idx && !index.kv_idx)
          note(index.q_len, e->args[i]->span);
        visit(e->args[i], false);
      }
      return;
    }
    if (whole && !inside) {
      PositionsUsed used;
      collect(e, used);
      if (used.q_idx && used.kv_idx) note(used.q_len, e->span);
    }
    for (const Expr& arg : e->args) visit(arg, inside || whole);
  }

  Alignment found;

 private:
  void note(bool at_end, SourceSpan span) {
    std::optional<SourceSpan>& place = at_end ? found.end : found.start;
    if (!place) place = span;
  }

  struct Hash {
    std::size_t operator()(const std::pair<const Node*, bool>& key) const {
      return std::hash<const Node*>()(key.first) * 2 + key.second;
    }
  };
  const Environment& environment_;
  std::unordered_set<std::pair<const Node*, bool>, Hash> seen_;  // of a tree that shares parts
};

}  // namespace

Alignment alignment_of(std::span<const Expr> expressions, const Environment& environment) {
  Finder finder(environment);
  for (const Expr& e : expressions) {
    if (e) finder.visit(e, false);
  }
  return finder.found;
}

}  // namespace attune::expr
