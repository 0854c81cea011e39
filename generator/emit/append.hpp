// Kernels that turn new queries and keys and write new keys and values into a cache. What they
// depend on is no attention spec and nothing is to be tuned: one kernel each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "generator/emit/emit.hpp"
#include "generator/spec/spec.hpp"
#include "generator/support/result.hpp"

namespace attune {

// Which elements of a head turn together (RoPE, Su et al. 2021).
enum class Rotation : std::uint8_t {
  kNone,
  kHalf,        // i and i + rotary_dim / 2, as GPT-NeoX and Llama have it
  kInterleaved  // 2 i and 2 i + 1, as GPT-J has it
};
std::string_view to_string(Rotation);

struct AppendKernel {
  DType dtype = DType::kBf16;        // of q, k and v
  DType cache_dtype = DType::kBf16;  // of the cache
  int head_dim_qk = 128, head_dim_v = 128;
  Rotation rotation = Rotation::kNone;
  int rotary_dim = 0;  // the first so many elements of a head turn; 0 without a rotation
  Target target = Target::kSm80;
};

// What a host must know to run one.
struct AppendRecipe {
  std::string symbol;
  int threads = 1;          // of a CTA; 1 on the CPU
  int tokens_per_item = 1;  // an item: a CTA, or a call
};

// All functions are pure and thread-safe.
// OK, or kBadInput: head dims and rotary_dim of no kernel; kUnsupported: dtypes that none has.
Status check(const AppendKernel& kernel);
// "append sm_90a bf16 to bf16 d128 half128"; tells kernels apart.
std::string to_string(const AppendKernel& kernel);
AppendRecipe append_recipe(const AppendKernel& kernel);
// Fails as check() does.
Result<GeneratedKernel> emit_append(const AppendKernel& kernel);

}  // namespace attune
