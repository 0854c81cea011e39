// The canonical text of a spec; docs/spec.md, "Canonical form and hash".
#include <fmt/format.h>

#include <cmath>

#include "generator/expr/parser.hpp"
#include "generator/spec/shape.hpp"
#include "generator/spec/spec.hpp"
#include "generator/support/hash.hpp"

namespace attune {
namespace {

std::string_view type_name(expr::Type type) {
  switch (type) {
    case expr::Type::kInt32:
      return "int32";
    case expr::Type::kFloat32:
      return "float32";
    case expr::Type::kBool:
      return "bool";
  }
  return "";
}

std::string_view type_name(expr::TensorType type) {
  switch (type) {
    case expr::TensorType::kInt32:
      return "int32";
    case expr::TensorType::kFloat32:
      return "float32";
    case expr::TensorType::kBool:
      return "bool";
    case expr::TensorType::kFloat16:
      return "fp16";
    case expr::TensorType::kBFloat16:
      return "bf16";
  }
  return "";
}

// Slots are what a kernel knows; names are the user's, so they become s0, s1, ..., t0, t1, ...
expr::Environment by_slot(const expr::Environment& environment) {
  expr::Environment anonymous = environment;
  for (std::size_t i = 0; i < anonymous.scalars.size(); ++i)
    anonymous.scalars[i].name = fmt::format("s{}", i);
  for (std::size_t i = 0; i < anonymous.tensors.size(); ++i)
    anonymous.tensors[i].name = fmt::format("t{}", i);
  return anonymous;
}

}  // namespace

std::string canonical_text(const AttentionSpec& spec) {
  const expr::Environment environment = by_slot(spec.environment);
  std::string text =
      fmt::format("attune 1\ndtype {}\nhead_dim {} {}\nlayout {}\n", to_string(spec.dtype),
                  spec.head_dim_qk, spec.head_dim_v, to_string(spec.layout));
  // Kernels hold the scale as fp32 and the dropout threshold in 256ths.
  text += spec.softmax_scale.at_launch
              ? "softmax_scale float\n"
              : fmt::format("softmax_scale {}\n", static_cast<float>(spec.softmax_scale.value));
  text += spec.dropout.at_launch
              ? "dropout float\n"
              : fmt::format("dropout {}/256\n", std::lround(spec.dropout.value * 256));
  // Only where it is asked for: other specs keep the hash that they had.
  if (spec.seed_on_device) text += "dropout_seed device\n";
  if (spec.precision != Precision::kStrict)
    text += fmt::format("precision {}\n", to_string(spec.precision));
  if (spec.accuracy != Accuracy::kFast)
    text += fmt::format("accuracy {}\n", to_string(spec.accuracy));
  if (spec.kv_dtype) text += fmt::format("kv_dtype {}\n", to_string(*spec.kv_dtype));
  if (spec.v_in_k) text += "v_in_k\n";
  if (spec.deterministic) text += "deterministic\n";
  if (spec.batch_invariant) text += "batch_invariant\n";
  if (spec.shared_prefixes) text += "shared_prefixes\n";
  if (spec.residues > 1) text += fmt::format("residues {}\n", spec.residues);
  for (const expr::ScalarDecl& scalar : environment.scalars) {
    if (!scalar.is_constant)
      text += fmt::format("scalar {} {}\n", scalar.name, type_name(scalar.type));
  }
  for (const expr::TensorDecl& tensor : environment.tensors) {
    text += fmt::format("tensor {} {} [", tensor.name, type_name(tensor.type));
    for (std::size_t i = 0; i < tensor.dims.size(); ++i)
      text += (i > 0 ? ", " : "") + dim_text(tensor.dims[i]);
    text += tensor.grad ? "] grad\n" : "]\n";
  }
  if (spec.mask) text += fmt::format("mask {}\n", expr::print(spec.mask, environment));
  if (spec.score) text += fmt::format("score {}\n", expr::print(spec.score, environment));
  if (spec.sink) text += fmt::format("sink {}\n", expr::print(spec.sink, environment));
  return text;
}

std::string spec_hash(const AttentionSpec& spec) { return text_hash(canonical_text(spec)); }
std::string text_hash(std::string_view canonical) { return hash128_hex(canonical); }

}  // namespace attune
