#include "generator/spec/environment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "generator/expr/parser.hpp"
#include "generator/spec/dim.hpp"
#include "generator/spec/limits.hpp"
#include "generator/spec/number.hpp"
#include "generator/support/suggest.hpp"
#include "templates/params.h"

namespace attune {
namespace {

Status check_declared_name(const SpecReader& reader, std::string_view what, const YamlNode& key) {
  ATT_CHECK(reader.check_name(what, key));
  if (std::ranges::find(expr::reserved_names(), key.text) != expr::reserved_names().end()) {
    return reader.error(key, "spec-reserved-name",
                        fmt::format("`{}` already has a meaning in expressions", key.text),
                        "choose another name");
  }
  return ok_status();
}

Result<expr::ScalarDecl> read_scalar(const SpecReader& reader, const YamlEntry& entry) {
  ATT_CHECK(check_declared_name(reader, "a scalar", entry.key));
  expr::ScalarDecl scalar{.name = entry.key.text};
  const YamlNode& value = entry.value;
  constexpr std::string_view kExpected = "a number, `true`, `false`, or the type `int` or `float`";
  if (value.kind != YamlNode::Kind::kScalar || !value.plain)
    return reader.wrong_type(scalar.name, value, kExpected);

  if (value.text == "float" || value.text == "int") {
    scalar.type = value.text == "int" ? expr::Type::kInt32 : expr::Type::kFloat32;
    return scalar;
  }
  scalar.is_constant = true;
  if (value.text == "true" || value.text == "false") {
    scalar.type = expr::Type::kBool;
    scalar.value = value.text == "true" ? 1 : 0;
    return scalar;
  }
  const ParsedNumber number = parse_number(value.text);
  if (number.status == ParsedNumber::Status::kNone)
    return reader.wrong_type(scalar.name, value, kExpected);
  const bool is_integer = number.status == ParsedNumber::Status::kInteger ||
                          value.text.find_first_not_of("+-0123456789") == std::string::npos;
  if (is_integer) {
    scalar.type = expr::Type::kInt32;
    ATT_TRY(const std::int64_t integer,
            reader.integer(scalar.name, value, std::numeric_limits<std::int32_t>::min(),
                           std::numeric_limits<std::int32_t>::max()));
    scalar.value = static_cast<double>(integer);
  } else {
    ATT_TRY(scalar.value, reader.real(scalar.name, value));
  }
  return scalar;
}

Result<expr::TensorDecl> read_tensor(const SpecReader& reader, const YamlEntry& entry) {
  ATT_CHECK(check_declared_name(reader, "a tensor", entry.key));
  expr::TensorDecl tensor{.name = entry.key.text};
  const YamlNode& value = entry.value;
  if (value.kind != YamlNode::Kind::kMapping)
    return reader.wrong_type(tensor.name, value, "a mapping {dtype, dims}");
  constexpr KeyRule kRules[] = {{"dtype", true}, {"dims", true}, {"grad"}, {"sample"}};
  ATT_CHECK(reader.check_keys(value, fmt::format("tensor `{}`", tensor.name), kRules));

  constexpr std::string_view kTypes[] = {"int32", "float32", "bool", "fp16", "bf16"};
  ATT_TRY(const std::size_t type, reader.choice("dtype", value.find("dtype")->value, kTypes));
  tensor.type = static_cast<expr::TensorType>(type);

  const YamlNode& dims = value.find("dims")->value;
  if (dims.kind != YamlNode::Kind::kSequence) return reader.wrong_type("dims", dims, "a list");
  if (dims.items.size() > static_cast<std::size_t>(att::kMaxTensorDims)) {
    return reader.error(dims, "spec-out-of-range",
                        fmt::format("tensor `{}` has {} dims, not 0 to {}", tensor.name,
                                    dims.items.size(), att::kMaxTensorDims));
  }
  for (const YamlNode& item : dims.items) {
    ATT_TRY(const expr::DimSize dim, read_dim(reader, item));
    tensor.dims.push_back(dim);
  }
  if (const YamlEntry* grad = value.find("grad")) {
    ATT_TRY(tensor.grad, reader.boolean("grad", grad->value));
    if (tensor.grad && tensor.type != expr::TensorType::kFloat32) {
      return reader.error(
          grad->value, "spec-grad",
          fmt::format("tensor `{}` of type {} has no gradient", tensor.name, kTypes[type]),
          "only float32 tensors have gradients");
    }
  }
  return tensor;
}

// A section's mapping with a bounded number of entries, each with a value.
Status check_section(const SpecReader& reader, std::string_view key, const YamlNode& section,
                     int most) {
  if (section.kind != YamlNode::Kind::kMapping)
    return reader.wrong_type(key, section, "a mapping of names");
  if (section.entries.size() > static_cast<std::size_t>(most)) {
    return reader.error(
        section.entries[static_cast<std::size_t>(most)].key, "spec-too-many",
        fmt::format("`{}` has {} entries, more than {}", key, section.entries.size(), most));
  }
  for (const YamlEntry& entry : section.entries) {
    if (entry.value.kind == YamlNode::Kind::kNull) {
      return reader.error(entry.key, "spec-empty-value",
                          fmt::format("{} has no value", quoted(entry.key.text)));
    }
  }
  return ok_status();
}

}  // namespace

Result<expr::Environment> read_environment(const SpecReader& reader, const YamlNode* scalars,
                                           const YamlNode* tensors) {
  expr::Environment environment;
  if (scalars) {
    ATT_CHECK(check_section(reader, "scalars", *scalars, att::kMaxScalars));
    for (const YamlEntry& entry : scalars->entries) {
      ATT_TRY(expr::ScalarDecl scalar, read_scalar(reader, entry));
      environment.scalars.push_back(std::move(scalar));
    }
  }
  if (tensors) {
    ATT_CHECK(check_section(reader, "tensors", *tensors, att::kMaxTensors));
    for (const YamlEntry& entry : tensors->entries) {
      if (scalars && scalars->find(entry.key.text)) {
        return reader.error(
            entry.key, "spec-name-clash",
            fmt::format("{} is a scalar and a tensor", quoted(entry.key.text)),
            fmt::format("the scalar is on line {}", scalars->find(entry.key.text)->key.span.line));
      }
      ATT_TRY(expr::TensorDecl tensor, read_tensor(reader, entry));
      environment.tensors.push_back(std::move(tensor));
    }
  }
  std::ranges::sort(environment.scalars, {},
                    [](const expr::ScalarDecl& s) { return std::tie(s.is_constant, s.name); });
  std::ranges::sort(environment.tensors, {}, &expr::TensorDecl::name);
  return environment;
}

}  // namespace attune
