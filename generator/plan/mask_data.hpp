// What the tensors that decide a mask, and lengths of sequences, are like: what a measured time
// stands for, beside its shape.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/plan/length_class.hpp"
#include "generator/spec/spec.hpp"

namespace attune {

struct MaskData {
  // "t0=segments(mean=700)", by slot, and what lengths_label() says; empty: nothing is said of
  // either, or there is neither.
  std::string label;
  // Shares of the tiles, of 128 queries and 128 keys, that have a live element, and that have no
  // dead one; negative: not known.
  double live = -1, full = -1;
  LengthClass lengths = {};
  bool operator==(const MaskData&) const = default;
  // Whether there is anything that kinds of data can be told apart by.
  bool is_known() const { return live >= 0 || lengths.is_known(); }
};

// As the spec's samples and lengths say, those of which nothing is said as they are drawn then. {}
// where no tensor decides which tiles live and sequences are not packed. A few milliseconds at
// most.
MaskData mask_data(const AttentionSpec& spec, const ProblemShape& shape);

// The tensors' part of it.
MaskData tensor_data(const AttentionSpec& spec, const ProblemShape& shape);

void add_lengths(const std::string& label, const LengthClass& lengths, MaskData& data);

// mask_data() where something is said, else {}.
MaskData said_data(const AttentionSpec& spec, const ProblemShape& shape);

// `spec` with what its tensors may well be like in place of what is not said of them: what is drawn
// then, many small parts, and numbers without order. `spec` alone where all is said that decides a
// mask.
std::vector<AttentionSpec> plausible_specs(const AttentionSpec& spec, const ProblemShape& shape);

// What else tensors may be like that a spec describes: who does knows about how long documents are,
// not how their lengths spread. `spec` with skewed samples, and with larger or fewer parts; each
// with what stands for it in the cache, whose label is the description's with a mark and its own
// behind it. Empty where something is not said that decides a mask, or is given.
struct VariedSpec {
  AttentionSpec spec;
  MaskData data;
};
std::vector<VariedSpec> varied_specs(const AttentionSpec& spec, const ProblemShape& shape);
// Other draws of the description and of its variations, likewise: what a choice that was made on
// those is held against.
std::vector<VariedSpec> confirming_specs(const AttentionSpec& spec, const ProblemShape& shape);
inline constexpr std::string_view kVariationMark = " ~ ";
// Behind a description's label: no kind of data, but which plan was the model's first guess there,
// with a time of it. What is better than that must be so on every kind.
inline constexpr std::string_view kFirstGuessKind = " ~ first guess";

// "doc=segments(mean=700)" of each tensor of which something is said; given ones left out. What
// describe() takes.
std::vector<std::string> described_samples(const AttentionSpec& spec);
// kBadInput on what described_samples() does not make.
Status describe(std::span<const std::string> samples, AttentionSpec& spec);

}  // namespace attune
