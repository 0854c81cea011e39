#include "generator/expr/syntax.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "generator/expr/foreign.hpp"
#include "generator/expr/names.hpp"

namespace attune::expr {
namespace {

using SyntaxPtr = std::unique_ptr<Syntax>;

constexpr std::array<std::string_view, 8> kKeywords = {"and",  "or",  "not", "if",
                                                       "else", "def", "let", "in"};

bool is_keyword(std::string_view name) {
  return std::find(kKeywords.begin(), kKeywords.end(), name) != kKeywords.end();
}

struct SymbolOp {
  std::string_view symbol;
  Op op;
};
constexpr std::array<SymbolOp, 6> kComparisons = {{{"==", Op::kEqual},
                                                   {"!=", Op::kNotEqual},
                                                   {"<", Op::kLess},
                                                   {"<=", Op::kLessEqual},
                                                   {">", Op::kGreater},
                                                   {">=", Op::kGreaterEqual}}};
constexpr std::array<SymbolOp, 1> kBitOrs = {{{"|", Op::kBitOr}}};
constexpr std::array<SymbolOp, 1> kBitXors = {{{"^", Op::kBitXor}}};
constexpr std::array<SymbolOp, 1> kBitAnds = {{{"&", Op::kBitAnd}}};
constexpr std::array<SymbolOp, 2> kShifts = {{{"<<", Op::kShiftLeft}, {">>", Op::kShiftRight}}};
constexpr std::array<SymbolOp, 2> kSums = {{{"+", Op::kAdd}, {"-", Op::kSubtract}}};
constexpr std::array<SymbolOp, 4> kProducts = {
    {{"*", Op::kMultiply}, {"/", Op::kDivide}, {"//", Op::kFloorDivide}, {"%", Op::kModulo}}};

// Recursive descent, one function a precedence level, loosest first.
class Parser {
 public:
  Parser(std::string_view text, const SourceOrigin& origin, std::vector<Token> tokens)
      : text_(text), origin_(origin), tokens_(std::move(tokens)) {}

  Result<SyntaxPtr> whole() {
    if (peek().kind == TokenKind::kEnd)
      return fail(peek().range, "expr-empty", "the expression is empty");
    ATT_TRY(SyntaxPtr tree, expression(0));
    if (peek().kind != TokenKind::kEnd) return unexpected("an operator or the end");
    return tree;
  }

  Result<std::vector<Definition>> definitions() {
    std::vector<Definition> found;
    while (peek().kind != TokenKind::kEnd) {
      if (!accept_word("def")) return unexpected("`def`");
      ATT_TRY(Definition definition, one_definition());
      found.push_back(std::move(definition));
    }
    return found;
  }

 private:
  const Token& peek() const { return tokens_[at_]; }
  Token take() { return tokens_[peek().kind == TokenKind::kEnd ? at_ : at_++]; }
  bool is_symbol(std::string_view symbol) const {
    return peek().kind == TokenKind::kSymbol && peek().text == symbol;
  }
  bool is_word(std::string_view word) const {
    return peek().kind == TokenKind::kName && peek().text == word;
  }
  bool accept(std::string_view symbol) { return is_symbol(symbol) && (++at_, true); }
  bool accept_word(std::string_view word) { return is_word(word) && (++at_, true); }

  Error fail(TextRange range, std::string id, std::string message, std::string hint = {}) const {
    return error_at(text_, origin_, range, std::move(id), std::move(message), std::move(hint));
  }
  Error unexpected(std::string_view expected) const {
    const Token& token = peek();
    std::string hint;
    if (is_symbol("=")) hint = "comparison is `==`";
    if (token.kind == TokenKind::kEnd)
      return fail(token.range, "expr-unexpected-end",
                  fmt::format("the expression ends where {} is expected", expected));
    return fail(token.range, "expr-unexpected-token",
                fmt::format("unexpected `{}` where {} is expected", token.text, expected),
                std::move(hint));
  }
  Status expect(std::string_view symbol) {
    if (!accept(symbol)) return unexpected(fmt::format("`{}`", symbol));
    return ok_status();
  }

  // A node over `children`, its range from the first child's begin to the last one's end.
  template <typename... Children>
  Result<SyntaxPtr> node(SyntaxKind kind, Children... children) {
    auto made = std::make_unique<Syntax>();
    made->kind = kind;
    (made->children.push_back(std::move(children)), ...);
    made->range = {made->children.front()->range.begin, made->children.back()->range.end};
    return limited(std::move(made));
  }
  Result<SyntaxPtr> limited(SyntaxPtr made) const {
    for (const SyntaxPtr& child : made->children)
      made->depth = std::max(made->depth, child->depth + 1);
    if (made->depth > kMaxDepth) return too_deep(made->range);
    return made;
  }
  Error too_deep(TextRange range) const {
    return fail({range.begin, range.begin + 1}, "expr-too-deep",
                fmt::format("the expression nests deeper than {} levels", kMaxDepth));
  }

  template <std::size_t N>
  const SymbolOp* accept_one_of(const std::array<SymbolOp, N>& table, TextRange& where) {
    for (const SymbolOp& entry : table) {
      if (is_symbol(entry.symbol)) {
        where = take().range;
        return &entry;
      }
    }
    return nullptr;
  }

  // `nesting` counts open brackets and prefix operators: what the recursion itself is bounded by.
  Result<SyntaxPtr> expression(int nesting) {
    if (nesting > kMaxDepth) return too_deep(peek().range);
    if (is_word("let")) return local_definition(nesting);
    ATT_TRY(SyntaxPtr first, disjunction(nesting));
    if (!accept_word("if")) return first;
    ATT_TRY(SyntaxPtr condition, disjunction(nesting));
    if (!accept_word("else")) return unexpected("`else`");
    ATT_TRY(SyntaxPtr otherwise, expression(nesting + 1));
    const TextRange range = {first->range.begin, otherwise->range.end};
    ATT_TRY(SyntaxPtr made, node(SyntaxKind::kSelect, std::move(condition), std::move(first),
                                 std::move(otherwise)));
    made->range = range;
    return made;
  }

  // let name = value in body
  Result<SyntaxPtr> local_definition(int nesting) {
    const TextRange begin = take().range;
    if (peek().kind != TokenKind::kName) return unexpected("a name");
    const Token name = take();
    ATT_CHECK(expect("="));
    ATT_TRY(SyntaxPtr value, expression(nesting + 1));
    if (!accept_word("in")) return unexpected("`in`");
    ATT_TRY(SyntaxPtr body, expression(nesting + 1));
    ATT_TRY(SyntaxPtr made, node(SyntaxKind::kLet, std::move(value), std::move(body)));
    made->range.begin = begin.begin;
    made->name = name.text;
    made->name_range = name.range;
    return made;
  }

  Result<SyntaxPtr> disjunction(int nesting) {
    ATT_TRY(SyntaxPtr left, conjunction(nesting));
    while (is_word("or")) {
      const TextRange where = take().range;
      ATT_TRY(SyntaxPtr right, conjunction(nesting));
      ATT_TRY(left, node(SyntaxKind::kBinary, std::move(left), std::move(right)));
      left->op = Op::kOr;
      left->name_range = where;
    }
    return left;
  }

  Result<SyntaxPtr> conjunction(int nesting) {
    ATT_TRY(SyntaxPtr left, negation(nesting));
    while (is_word("and")) {
      const TextRange where = take().range;
      ATT_TRY(SyntaxPtr right, negation(nesting));
      ATT_TRY(left, node(SyntaxKind::kBinary, std::move(left), std::move(right)));
      left->op = Op::kAnd;
      left->name_range = where;
    }
    return left;
  }

  Result<SyntaxPtr> negation(int nesting) {
    if (!is_word("not")) return comparison(nesting);
    return prefixed(Op::kNot, nesting, &Parser::negation);
  }

  Result<SyntaxPtr> prefixed(Op op, int nesting, Result<SyntaxPtr> (Parser::*operand)(int)) {
    const TextRange where = take().range;
    if (nesting > kMaxDepth) return too_deep(where);
    ATT_TRY(SyntaxPtr inner, (this->*operand)(nesting + 1));
    ATT_TRY(SyntaxPtr made, node(SyntaxKind::kUnary, std::move(inner)));
    made->op = op;
    made->range.begin = where.begin;
    made->name_range = where;
    return made;
  }

  Result<SyntaxPtr> comparison(int nesting) {
    ATT_TRY(SyntaxPtr first, bit_or(nesting));
    SyntaxPtr chain;
    TextRange where;
    while (const SymbolOp* entry = accept_one_of(kComparisons, where)) {
      ATT_TRY(SyntaxPtr next, bit_or(nesting));
      if (chain) ATT_CHECK(check_brackets(*chain->children.back()));
      if (!chain) {
        ATT_TRY(chain, node(SyntaxKind::kChain, std::move(first)));
        chain->name_range = where;
      }
      chain->ops.push_back(entry->op);
      chain->range.end = next->range.end;
      chain->children.push_back(std::move(next));
      ATT_TRY(chain, limited(std::move(chain)));
      // A chain of n comparisons becomes n - 1 nested conjunctions.
      if (static_cast<int>(chain->ops.size()) + chain->depth > kMaxDepth)
        return too_deep(chain->range);
    }
    return chain ? std::move(chain) : std::move(first);
  }

  // What stands between two comparisons: `a < b & c < d` was hardly meant as what it is, a < (b &
  // c) and (b & c) < d.
  Status check_brackets(const Syntax& operand) const {
    const bool is_bits = operand.kind == SyntaxKind::kBinary && operand.op >= Op::kBitAnd &&
                         operand.op <= Op::kBitXor;
    if (!is_bits || operand.in_brackets) return ok_status();
    const std::string_view symbol = spelling(operand.op);
    return fail(operand.name_range, "expr-needs-brackets",
                fmt::format("`{}` binds tighter than the comparisons on both sides", symbol),
                fmt::format("write `{}` between booleans, or brackets around the bits",
                            word_for_bits(operand.op)));
  }

  template <std::size_t N>
  Result<SyntaxPtr> left_associative(const std::array<SymbolOp, N>& table, int nesting,
                                     Result<SyntaxPtr> (Parser::*operand)(int)) {
    ATT_TRY(SyntaxPtr left, (this->*operand)(nesting));
    TextRange where;
    while (const SymbolOp* entry = accept_one_of(table, where)) {
      ATT_TRY(SyntaxPtr right, (this->*operand)(nesting));
      ATT_TRY(left, node(SyntaxKind::kBinary, std::move(left), std::move(right)));
      left->op = entry->op;
      left->name_range = where;
    }
    return left;
  }
  Result<SyntaxPtr> bit_or(int nesting) {
    return left_associative(kBitOrs, nesting, &Parser::bit_xor);
  }
  Result<SyntaxPtr> bit_xor(int nesting) {
    return left_associative(kBitXors, nesting, &Parser::bit_and);
  }
  Result<SyntaxPtr> bit_and(int nesting) {
    return left_associative(kBitAnds, nesting, &Parser::shift);
  }
  Result<SyntaxPtr> shift(int nesting) { return left_associative(kShifts, nesting, &Parser::sum); }
  Result<SyntaxPtr> sum(int nesting) { return left_associative(kSums, nesting, &Parser::product); }
  Result<SyntaxPtr> product(int nesting) {
    return left_associative(kProducts, nesting, &Parser::unary);
  }

  Result<SyntaxPtr> unary(int nesting) {
    if (is_symbol("-")) return prefixed(Op::kNegate, nesting, &Parser::unary);
    return primary(nesting);
  }

  Result<SyntaxPtr> primary(int nesting) {
    if (accept("(")) {
      ATT_TRY(SyntaxPtr inner, expression(nesting + 1));
      ATT_CHECK(expect(")"));
      inner->in_brackets = true;
      return inner;
    }
    const Token& token = peek();
    auto made = std::make_unique<Syntax>();
    made->range = made->name_range = token.range;
    switch (token.kind) {
      case TokenKind::kInteger:
        made->kind = SyntaxKind::kInteger;
        made->integer = take().integer;
        return made;
      case TokenKind::kReal:
        made->kind = SyntaxKind::kReal;
        made->real = take().real;
        return made;
      case TokenKind::kName:
        break;
      default:
        return unexpected("a value");
    }
    if (is_keyword(token.text)) return unexpected("a value");
    made->name = take().text;
    if (made->name == "true" || made->name == "True" || made->name == "false" ||
        made->name == "False") {
      made->kind = SyntaxKind::kBool;
      made->integer = made->name == "true" || made->name == "True";
      return made;
    }
    made->kind = SyntaxKind::kName;
    if (is_symbol("(")) {
      made->kind = SyntaxKind::kCall;
      return bracketed(std::move(made), ")", nesting);
    }
    if (is_symbol("[")) {
      made->kind = SyntaxKind::kIndex;
      return bracketed(std::move(made), "]", nesting);
    }
    return made;
  }

  // The comma-separated list behind a call's or look-up's name, up to `closing`.
  Result<SyntaxPtr> bracketed(SyntaxPtr made, std::string_view closing, int nesting) {
    ++at_;
    if (!is_symbol(closing)) {
      do {
        ATT_TRY(SyntaxPtr child, expression(nesting + 1));
        made->children.push_back(std::move(child));
      } while (accept(","));
    }
    made->range.end = peek().range.end;
    if (!accept(closing)) return unexpected(fmt::format("`,` or `{}`", closing));
    return limited(std::move(made));
  }

  Result<Definition> one_definition() {
    Definition definition;
    if (peek().kind != TokenKind::kName) return unexpected("a name");
    definition.name = take().text;
    if (accept("(")) {
      do {
        if (peek().kind != TokenKind::kName) return unexpected("a parameter");
        DefinitionParameter parameter;
        parameter.name = take().text;
        ATT_CHECK(expect(":"));
        if (accept_word("int32")) {
          parameter.type = ParameterType::kInt32;
        } else if (accept_word("float32")) {
          parameter.type = ParameterType::kFloat32;
        } else if (accept_word("bool")) {
          parameter.type = ParameterType::kBool;
        } else if (accept_word("tensor")) {
          parameter.type = ParameterType::kTensor;
        } else {
          return unexpected("`int32`, `float32`, `bool` or `tensor`");
        }
        definition.parameters.push_back(parameter);
      } while (accept(","));
      ATT_CHECK(expect(")"));
    }
    ATT_CHECK(expect("="));
    ATT_TRY(definition.body, expression(0));
    return definition;
  }

  std::string_view text_;
  const SourceOrigin& origin_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace

Result<SyntaxPtr> parse_syntax(std::string_view text, const SourceOrigin& origin) {
  ATT_TRY(std::vector<Token> tokens, tokenize(text, origin));
  return Parser(text, origin, std::move(tokens)).whole();
}

Result<std::vector<Definition>> parse_definitions(std::string_view text,
                                                  const SourceOrigin& origin) {
  ATT_TRY(std::vector<Token> tokens, tokenize(text, origin));
  return Parser(text, origin, std::move(tokens)).definitions();
}

}  // namespace attune::expr
