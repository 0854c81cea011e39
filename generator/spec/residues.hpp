// Specs whose mask lets a query see keys of its own residue alone: positions that leave the same
// remainder. Taken apart into residues, a sequence is several shorter ones, of which most of the
// mask's dead tiles are gone.
#pragma once

#include "generator/spec/spec.hpp"

namespace attune {

// How many residues kernels of the pass may take a sequence apart into; 1: the spec has none, or
// what else it asks for is tied to whole sequences (packed ones, dropout, a scaled cache, tensors
// along positions or the batch, gradients of what is learned).
int residue_count(const AttentionSpec& spec, Pass pass);

// The spec of one residue, whose `residues` is residue_count(): its batch has all residues of the
// first sequence, then those of the next, as residue_shape() counts them. Of a mask without
// residues `spec` itself.
AttentionSpec residue_spec(const AttentionSpec& spec);

// Whether launches of the shape can be taken apart: lengths are multiples, and the batch stays one
// that a launch may have.
bool has_residues(const ProblemShape& shape, int residues);
ProblemShape residue_shape(const ProblemShape& shape, int residues);

}  // namespace attune
