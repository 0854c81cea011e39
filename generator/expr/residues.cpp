#include "generator/expr/residues.hpp"

#include <cstdlib>
#include <unordered_map>
#include <utility>
#include <vector>

#include "generator/expr/arithmetic.hpp"
#include "generator/expr/build.hpp"
#include "generator/expr/static_range.hpp"

namespace attune::expr {
namespace {

// Sums of positions, lengths and a number, each taken so many times.
struct Sum {
  std::int64_t q = 0, kv = 0, lengths = 0, number = 0;
  Sum plus(const Sum& o, std::int64_t times) const {
    return {q + times * o.q, kv + times * o.kv, lengths + times * o.lengths,
            number + times * o.number};
  }
};

std::optional<Sum> sum_of(const Expr& e) {
  if (e->op == Op::kInt) return Sum{.number = e->int_value};
  if (e->op == Op::kVariable) {
    switch (e->variable) {
      case Variable::kQIdx:
        return Sum{.q = 1};
      case Variable::kKvIdx:
        return Sum{.kv = 1};
      case Variable::kQLen:
      case Variable::kKvLen:
        return Sum{.lengths = 1};
      default:
        return std::nullopt;
    }
  }
  if ((e->op != Op::kAdd && e->op != Op::kSubtract) || may_wrap(e)) return std::nullopt;
  const auto a = sum_of(e->args[0]), b = sum_of(e->args[1]);
  if (!a || !b) return std::nullopt;
  return a->plus(*b, e->op == Op::kAdd ? 1 : -1);
}

// The n of a comparison that is true where query and key leave the same remainder by n, of which
// q_len and kv_len are multiples; 1: it is none.
int modulus_of(const Expr& e) {
  if (e->op != Op::kEqual) return 1;
  Expr left = e->args[0], right = e->args[1];
  if (left->op != Op::kModulo) std::swap(left, right);
  if (left->op != Op::kModulo || left->args[1]->op != Op::kInt) return 1;
  const std::int64_t n = left->args[1]->int_value;
  if (n < 2 || n > kMaxResidues) return 1;
  auto difference = sum_of(left->args[0]);
  if (right->op == Op::kModulo && is_int(right->args[1], n)) {
    const auto other = sum_of(right->args[0]);
    if (!difference || !other) return 1;
    difference = difference->plus(*other, -1);
  } else if (!is_int(right, 0)) {
    return 1;
  }
  const bool is_difference = difference && std::abs(difference->q) == 1 &&
                             difference->kv == -difference->q && difference->number % n == 0;
  return is_difference ? static_cast<int>(n) : 1;
}

class Rewriter {
 public:
  explicit Rewriter(int modulus)
      : modulus_(modulus), remainder_(with_modulus(Op::kModulo, make_variable(Variable::kBatch))) {}

  Expr rewritten(const Expr& e) {
    if (const auto known = known_.find(e.get()); known != known_.end()) return known->second;
    const Expr made = made_of(e);
    known_.emplace(e.get(), made);
    return made;
  }

 private:
  Expr made_of(const Expr& e) {
    if (e->op == Op::kVariable) return variable(e);
    if (is_comparison(e->op) && e->args[0]->type == Type::kInt32) {
      if (const Expr simpler = comparison(e)) return simpler;
    }
    return rebuilt(e);
  }

  Expr with_modulus(Op op, const Expr& left) const {
    return make_binary(op, left, make_int(modulus_, left->span), left->span);
  }
  Expr part(const Expr& e) const { return make_part_variable(e->variable, modulus_, e->span); }

  Expr variable(const Expr& e) const {
    switch (e->variable) {
      case Variable::kBatch:
        return with_modulus(Op::kFloorDivide, e);
      case Variable::kQIdx:
      case Variable::kKvIdx:
        return make_binary(Op::kAdd, with_modulus(Op::kMultiply, part(e)), remainder_, e->span);
      case Variable::kQLen:
      case Variable::kKvLen:
        return with_modulus(Op::kMultiply, part(e));
      default:
        return e;
    }
  }

  Expr rebuilt(const Expr& e) {
    if (e->args.empty()) return e;
    std::vector<Expr> args;
    for (const Expr& arg : e->args) args.push_back(rewritten(arg));
    if (e->op == Op::kLoad)
      return make_load(e->slot, e->type, std::move(args), e->clamped, e->span);
    if (args.size() == 1) return make_unary(e->op, args[0], e->span);
    if (args.size() == 2) return make_binary(e->op, args[0], args[1], e->span);
    return make_select(args[0], args[1], args[2], e->span);
  }

  // modulus * parts + remainders * (the remainder) + number; parts null: none.
  struct Scaled {
    Expr parts;
    std::int64_t remainders = 0, number = 0;
  };

  std::optional<Scaled> scaled(const Expr& e) const {
    if (e->op == Op::kInt) return Scaled{.number = e->int_value};
    if (e->op == Op::kVariable) {
      const bool is_position = e->variable == Variable::kQIdx || e->variable == Variable::kKvIdx;
      const bool is_length = e->variable == Variable::kQLen || e->variable == Variable::kKvLen;
      if (!is_position && !is_length) return std::nullopt;
      return Scaled{.parts = part(e), .remainders = is_position ? 1 : 0};
    }
    const bool is_sum = e->op == Op::kAdd || e->op == Op::kSubtract;
    if ((!is_sum && e->op != Op::kAbs) || e->type != Type::kInt32 || may_wrap(e))
      return std::nullopt;
    const auto a = scaled(e->args[0]);
    if (!a) return std::nullopt;
    if (e->op == Op::kAbs) {
      if (!a->parts || a->remainders != 0 || a->number != 0) return std::nullopt;
      return Scaled{.parts = make_unary(Op::kAbs, a->parts, e->span)};
    }
    const auto b = scaled(e->args[1]);
    if (!b) return std::nullopt;
    const std::int64_t sign = e->op == Op::kAdd ? 1 : -1;
    Scaled sum{.remainders = a->remainders + sign * b->remainders,
               .number = a->number + sign * b->number};
    if (!b->parts) {
      sum.parts = a->parts;
    } else if (a->parts || e->op == Op::kSubtract) {
      sum.parts = make_binary(e->op, a->parts ? a->parts : make_int(0), b->parts, e->span);
    } else {
      sum.parts = b->parts;
    }
    return sum;
  }

  // Of sides in which remainders cancel: divided by the modulus, so that it is what it would be of
  // whole sequences. Null where they do not.
  Expr comparison(const Expr& e) const {
    const auto left = scaled(e->args[0]), right = scaled(e->args[1]);
    if (!left || !right || left->remainders != right->remainders) return nullptr;
    // left.parts op right.parts + number / modulus
    const std::int64_t number = right->number - left->number;
    const std::int64_t below = floor_divide(number, modulus_);
    const bool is_whole = number % modulus_ == 0;
    if ((e->op == Op::kEqual || e->op == Op::kNotEqual) && !is_whole)
      return make_bool(e->op == Op::kNotEqual, e->span);
    const bool rounds_up = (e->op == Op::kLess || e->op == Op::kGreaterEqual) && !is_whole;
    const Expr offset = make_int(below + (rounds_up ? 1 : 0), e->span);
    const auto or_zero = [](const Expr& parts) { return parts ? parts : make_int(0); };
    const Expr limit = right->parts ? make_binary(Op::kAdd, right->parts, offset, e->span) : offset;
    return make_binary(e->op, or_zero(left->parts), limit, e->span);
  }

  const int modulus_;
  const Expr remainder_;
  std::unordered_map<const Node*, Expr> known_;  // of a tree that shares parts
};

}  // namespace

std::optional<ResidueForm> residue_form(const Expr& mask) {
  if (!mask) return std::nullopt;
  std::vector<Expr> operands;
  collect_operands(mask, operands);
  ResidueForm form;
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const int n = modulus_of(operands[i]);
    if (n <= form.modulus) continue;
    form.modulus = n;
    chosen = i;
  }
  if (form.modulus == 1) return std::nullopt;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (i == chosen) continue;
    form.rest = form.rest ? make_binary(Op::kAnd, form.rest, operands[i]) : operands[i];
  }
  return form;
}

Expr by_residues(const Expr& e, int modulus) { return e ? Rewriter(modulus).rewritten(e) : e; }

}  // namespace attune::expr
