// AttentionSpec: what a YAML spec says, validated. docs/spec.md describes the file format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "generator/expr/ast.hpp"
#include "generator/expr/runs.hpp"
#include "generator/spec/lengths.hpp"
#include "generator/spec/sample.hpp"
#include "generator/support/result.hpp"

namespace attune {

enum class DType : std::uint8_t { kF16, kBf16, kF32, kFp8E4m3 };
enum class Target : std::uint8_t { kSm80, kSm86, kSm89, kSm90a, kSm100, kSm120, kCpu };
inline constexpr Target kTargets[] = {Target::kSm80,  Target::kSm86,  Target::kSm89, Target::kSm90a,
                                      Target::kSm100, Target::kSm120, Target::kCpu};
enum class Layout : std::uint8_t { kBshd, kBhsd, kThd, kPaged };
// Of fp32's products on matrix units: with fp32's errors, from three products of tf32 parts, or
// with those of one product of operands rounded to tf32.
enum class Precision : std::uint8_t { kStrict, kTf32 };
// Of 16 bits. `kStrict`, of the forward pass: the largest of a row's exponentials is exact, and O
// is divided by the sum of what the product with V was given. `kRelaxed`, of the backward pass in
// bf16: dQ and dK may be made of P as it was rounded for dV.
enum class Accuracy : std::uint8_t { kFast, kStrict, kRelaxed };
enum class Pass : std::uint8_t { kForward, kBackward };
inline constexpr Pass kPasses[] = {Pass::kForward, Pass::kBackward};

std::string_view to_string(DType);   // "bf16"
std::string_view to_string(Target);  // "sm_90a"
std::string_view to_string(Layout);
std::string_view to_string(Precision);  // "strict"
std::string_view to_string(Accuracy);   // "fast"
std::string_view to_string(Pass);
std::optional<Target> target_from_string(std::string_view);
std::optional<Pass> pass_from_string(std::string_view);
int element_bytes(DType);

// The sizes of one attention problem. q_len, kv_len >= 1; heads is a multiple of kv_heads.
struct ProblemShape {
  std::int64_t batch = 1, heads = 1, kv_heads = 1, q_len = 1, kv_len = 1;
  auto operator<=>(const ProblemShape&) const = default;
};
std::string to_string(const ProblemShape&);  // "batch=2,heads=32,kv_heads=8,q_len=8192,kv_len=8192"
Result<ProblemShape> parse_shape(std::string_view text);

// A number the spec fixes, or one the launch brings.
struct Parameter {
  bool at_launch = false;
  double value = 0;  // when !at_launch
  bool operator==(const Parameter&) const = default;
};

// What run_spec() puts into a spec: a launch works `tensors` out of the tensor in the slot
// `numbers`, and the mask is `by_runs` where `is_told`.
struct Runs {
  int numbers = 0;
  expr::RunTensors tensors;
  expr::Expr is_told, by_runs;
};

struct AttentionSpec {
  std::string name;
  DType dtype = DType::kBf16;
  Precision precision = Precision::kStrict;  // of fp32
  Accuracy accuracy = Accuracy::kFast;       // of fp16 and bf16
  std::optional<DType> kv_dtype;             // of K and V as they are stored; none: as Q
  int head_dim_qk = 128;
  int head_dim_v = 128;
  bool v_in_k = false;          // V is the first head_dim_v columns of K: one cache holds both
  std::vector<Target> targets;  // empty: the device that is there
  Layout layout = Layout::kBshd;
  // Slots do not depend on the order in the file: launch-time scalars first, then constants, each
  // by name; tensors by name.
  expr::Environment environment;
  std::vector<Sample> samples;  // by a tensor's slot; empty: of none is it said what it is like
  expr::Expr mask;              // null: every key is live
  expr::Expr score;             // null: the scaled product as it is
  expr::Expr sink;  // null: none; else a logit per (b, h) that joins the softmax' denominator only
  Parameter softmax_scale;  // "auto" is resolved to 1/sqrt(head_dim_qk)
  Parameter dropout;        // probability of dropping, [0, 1)
  // Kernels read dropout's seed and offset from the device's memory, where each replay of a graph
  // may find others.
  bool seed_on_device = false;
  bool deterministic = false;  // results are the same to the bit at every launch
  // A row of O and LSE is the same to the bit whatever other sequences are in the batch.
  bool batch_invariant = false;
  // Pages that neighbouring sequences begin with alike are read once for all of them, where the
  // family can.
  bool shared_prefixes = false;
  // Of a spec that residue_spec() made: that a sequence is taken apart into.
  int residues = 1;
  // Of a spec that run_spec() made.
  std::optional<Runs> runs;
  std::vector<Pass> passes = {Pass::kForward};
  std::vector<ProblemShape> tune_shapes;
  // Of problems that are made up; what a launch brings is its own.
  int page_size = 16;
  int shared_prefix = 0;  // keys that all sequences begin with alike
  Lengths lengths;        // of packed and paged sequences
};

// Whether the keys lie in pages of a cache that a table names: kv_len of a shape is then the most
// keys that one sequence may have.
inline bool is_paged(const AttentionSpec& spec) { return spec.layout == Layout::kPaged; }

// Whether queries of sequences of different lengths lie one behind the other: the batch of a shape
// is then how many sequences there are, q_len is that of all together, and so is kv_len unless keys
// are paged.
inline bool is_packed(const AttentionSpec& spec) {
  return spec.layout == Layout::kThd || is_paged(spec);
}

// What elements of K and V are stored as.
inline DType kv_dtype(const AttentionSpec& spec) { return spec.kv_dtype.value_or(spec.dtype); }

// Whether K and V are stored in fewer bits than Q, with factors that a launch brings.
inline bool has_scaled_cache(const AttentionSpec& spec) { return spec.kv_dtype.has_value(); }

// What is said of the tensor in `slot`.
inline Sample sample_of(const AttentionSpec& spec, std::size_t slot) {
  return slot < spec.samples.size() ? spec.samples[slot] : Sample{};
}

// Whether a launch may drop elements.
inline bool has_dropout(const AttentionSpec& spec) {
  return spec.dropout.at_launch || spec.dropout.value > 0;
}

// Parses and validates YAML text; `file` is for messages. Never throws or crashes on any bytes.
Result<AttentionSpec> parse_spec(std::string_view yaml, std::string_view file);

// The text that two specs share exactly when they mean the same kernel: name, targets, passes and
// what is tuned left out, expressions in canonical form, constants folded.
std::string canonical_text(const AttentionSpec& spec);

// XXH3-128 of canonical_text, 32 lower-case hex digits.
std::string spec_hash(const AttentionSpec& spec);
// The same, of a canonical text that is at hand.
std::string text_hash(std::string_view canonical);

}  // namespace attune
