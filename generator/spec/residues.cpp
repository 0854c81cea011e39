#include "generator/spec/residues.hpp"

#include <algorithm>

#include "generator/expr/residues.hpp"
#include "generator/spec/limits.hpp"

namespace attune {
namespace {

bool is_along_sequences(const expr::TensorDecl& tensor) {
  return std::ranges::any_of(tensor.dims, [](const expr::DimSize& dim) {
    return dim.dim == expr::Dim::kBatch || dim.dim == expr::Dim::kQLen ||
           dim.dim == expr::Dim::kKvLen;
  });
}

}  // namespace

int residue_count(const AttentionSpec& spec, Pass pass) {
  const auto& tensors = spec.environment.tensors;
  if (is_packed(spec) || has_scaled_cache(spec) || has_dropout(spec) || spec.v_in_k ||
      std::ranges::any_of(tensors, is_along_sequences))
    return 1;
  const bool learns = spec.sink || std::ranges::any_of(tensors, &expr::TensorDecl::grad);
  if (pass == Pass::kBackward && learns) return 1;
  const auto form = expr::residue_form(spec.mask);
  return form ? form->modulus : 1;
}

AttentionSpec residue_spec(const AttentionSpec& spec) {
  AttentionSpec of_residue = spec;
  const auto form = expr::residue_form(spec.mask);
  if (!form) return of_residue;
  of_residue.residues = form->modulus;
  of_residue.mask = expr::by_residues(form->rest, form->modulus);
  of_residue.score = expr::by_residues(spec.score, form->modulus);
  of_residue.sink = expr::by_residues(spec.sink, form->modulus);
  return of_residue;
}

bool has_residues(const ProblemShape& shape, int residues) {
  return shape.q_len % residues == 0 && shape.kv_len % residues == 0 &&
         shape.batch * residues <= kMaxBatch;
}

ProblemShape residue_shape(const ProblemShape& shape, int residues) {
  ProblemShape of_residue = shape;
  of_residue.batch *= residues;
  of_residue.q_len /= residues;
  of_residue.kv_len /= residues;
  return of_residue;
}

}  // namespace attune
