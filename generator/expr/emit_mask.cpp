#include "generator/expr/emit_mask.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "generator/expr/build.hpp"
#include "generator/expr/emit_value.hpp"
#include "generator/expr/lowering.hpp"

namespace attune::expr {
namespace {

struct Parts {
  std::vector<Expr> of_row, of_column;

  // The largest parts of `e` that depend on the query alone; and of those that depend on the key
  // alone, the ones that read tensors: other arithmetic on keys is cheaper where the column is a
  // constant of an element (templates/tile/columns.cuh).
  void find(const Expr& e) {
    const bool by_query = depends_on(e, Variable::kQIdx), by_key = depends_on(e, Variable::kKvIdx);
    if (e->args.empty()) return;
    if (by_query && !by_key) return add(of_row, e);
    if (by_key && !by_query && contains_load(e)) return add(of_column, e);
    for (const Expr& arg : e->args) find(arg);
  }

 private:
  static void add(std::vector<Expr>& parts, const Expr& e) {
    const auto same = [&](const Expr& other) { return equal(e, other); };
    if (std::ranges::none_of(parts, same)) parts.push_back(e);
  }
};

// Members of a struct, after those that it begins with.
std::string members(const std::vector<Expr>& parts) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    text += fmt::format("  {} v{};\n", cpp_type(parts[i]->type), i);
  }
  return text;
}

// The body of a function that returns `first` and the parts.
std::string body(const std::vector<Expr>& parts, std::string first, const Environment& environment,
                 Products products) {
  std::string lines;
  ValueEmitter emitter(environment, lines, products);
  for (const Expr& part : parts) emitter.count(part);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string value = emitter.value(parts[i]);
    lines += fmt::format("  const {} v{} = {};\n", cpp_type(parts[i]->type), i, unbracketed(value));
    first += fmt::format("{}v{}", first.empty() ? "" : ", ", i);
  }
  return lines + fmt::format("  return {{{}}};\n", first);
}

std::string rest(const Expr& mask, const Parts& parts, const Environment& environment,
                 Products products) {
  std::string lines;
  ValueEmitter emitter(environment, lines, products);
  const auto know = [&](const std::vector<Expr>& of, std::string_view name) {
    for (std::size_t i = 0; i < of.size(); ++i) emitter.know(of[i], fmt::format("{}.v{}", name, i));
  };
  know(parts.of_row, "row");
  know(parts.of_column, "column");
  emitter.know(make_variable(Variable::kQIdx), "row.q_idx");
  emitter.count(mask);
  const std::string value = emitter.value(mask);
  return lines + fmt::format("  return {};\n", unbracketed(value));
}

}  // namespace

std::string mask_functions(const Expr& mask, const Environment& environment, Products products) {
  Parts parts;
  if (mask) parts.find(mask);
  return fmt::format(
      "// What mask() makes of a query alone, and what it reads of tensors by the key alone. "
      "Key is int\n"
      "// or what stands for one (templates/tile/columns.cuh).\n"
      "struct MaskRow {{\n"
      "  int q_idx;\n"
      "{}"
      "}};\n"
      "ATT_FN MaskRow mask_row([[maybe_unused]] const Context& c, int q_idx) {{\n"
      "{}"
      "}}\n"
      "struct MaskColumn {{\n"
      "{}"
      "}};\n"
      "template <typename Key>\n"
      "ATT_FN MaskColumn mask_column([[maybe_unused]] const Context& c,\n"
      "                              [[maybe_unused]] Key kv_idx) {{\n"
      "{}"
      "}}\n"
      "template <typename Key>\n"
      "ATT_FN bool mask_at([[maybe_unused]] const Context& c, "
      "[[maybe_unused]] const MaskRow& row,\n"
      "                    [[maybe_unused]] const MaskColumn& column, "
      "[[maybe_unused]] Key kv_idx) {{\n"
      "{}"
      "}}\n"
      "// True when the key is live. Any q_idx, kv_idx >= 0: look-ups stay inside their tensors.\n"
      "template <typename Key>\n"
      "ATT_FN bool mask(const Context& c, int q_idx, Key kv_idx) {{\n"
      "  return mask_at(c, mask_row(c, q_idx), mask_column(c, kv_idx), kv_idx);\n"
      "}}\n",
      members(parts.of_row), body(parts.of_row, "q_idx", environment, products),
      members(parts.of_column), body(parts.of_column, "", environment, products),
      mask ? rest(mask, parts, environment, products) : "  return true;\n");
}

}  // namespace attune::expr
