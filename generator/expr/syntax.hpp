// Tokens -> an untyped tree, as written. Types and names are the checker's business.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "generator/expr/ast.hpp"
#include "generator/expr/lexer.hpp"

namespace attune::expr {

enum class SyntaxKind : std::uint8_t {
  kInteger,
  kReal,
  kBool,
  kName,    // name
  kCall,    // name(children...)
  kIndex,   // name[children...]
  kUnary,   // op: kNegate or kNot
  kBinary,  // op
  kChain,   // children[0] ops[0] children[1] ops[1] ...: comparisons, one or more
  kSelect,  // condition, then, otherwise
  kLet,     // name stands for children[0] in children[1]
};

struct Syntax {
  SyntaxKind kind = SyntaxKind::kInteger;
  TextRange range;       // from first to last token
  TextRange name_range;  // of `name`, or of a binary operator
  std::string_view name;
  Op op = Op::kInt;
  std::vector<Op> ops;
  std::int64_t integer = 0;
  double real = 0;
  std::vector<std::unique_ptr<Syntax>> children;
  bool in_brackets = false;
  int depth = 1;  // of the tree below, bounded by kMaxDepth
};

// Deepest nesting that is read; every recursion over a tree is bounded by it.
constexpr int kMaxDepth = 200;

enum class ParameterType : std::uint8_t { kInt32, kFloat32, kBool, kTensor };
struct DefinitionParameter {
  std::string_view name;
  ParameterType type = ParameterType::kInt32;
};
// def name(parameter: type, ...) = body
struct Definition {
  std::string_view name;
  std::vector<DefinitionParameter> parameters;
  std::unique_ptr<Syntax> body;
};

Result<std::unique_ptr<Syntax>> parse_syntax(std::string_view text, const SourceOrigin& origin);
Result<std::vector<Definition>> parse_definitions(std::string_view text,
                                                  const SourceOrigin& origin);

}  // namespace attune::expr
