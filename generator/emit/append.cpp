#include "generator/emit/append.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "generator/emit/flatten.hpp"
#include "generator/spec/limits.hpp"
#include "generator/support/hash.hpp"

namespace attune {
namespace {

constexpr int kThreads = 128;
constexpr int kCpuTokensPerItem = 8;
// Beyond copies there is next to no arithmetic; every processor that the family runs on has these.
constexpr int kCpuVectorBytes = 32;

bool is_cpu(const AppendKernel& kernel) { return kernel.target == Target::kCpu; }

std::string dims_text(const AppendKernel& kernel) {
  return kernel.head_dim_qk == kernel.head_dim_v
             ? fmt::format("d{}", kernel.head_dim_qk)
             : fmt::format("d{}x{}", kernel.head_dim_qk, kernel.head_dim_v);
}

std::string rotation_text(const AppendKernel& kernel) {
  if (kernel.rotation == Rotation::kNone) return "none";
  return fmt::format("{}{}", to_string(kernel.rotation), kernel.rotary_dim);
}

std::string_view storage_name(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return "f16";
    case DType::kBf16:
      return "bf16";
    case DType::kF32:
      return "f32";
    case DType::kFp8E4m3:
      break;
  }
  return "f8_e4m3";
}

// With the names of templates/kernels/append_head.cuh.
std::string head_text(const AppendKernel& kernel, const AppendRecipe& recipe) {
  return fmt::format(
      "#include \"templates/append/params.h\"\n"
      "#include \"templates/ptx/platform.cuh\"\n"
      "\n"
      "namespace att {{\n"
      "\n"
      "enum class DType {{ f16, bf16, f32, f8_e4m3 }};\n"
      "enum class Rotation {{ none, half, interleaved }};\n"
      "\n"
      "namespace spec {{\n"
      "constexpr DType kDType = DType::{};\n"
      "}}  // namespace spec\n"
      "\n"
      "namespace append {{\n"
      "constexpr DType kCacheDType = DType::{};\n"
      "constexpr int kHeadDimQk = {};\n"
      "constexpr int kHeadDimV = {};\n"
      "constexpr Rotation kRotation = Rotation::{};\n"
      "constexpr int kRotaryDim = {};\n"
      "constexpr int kWorkers = {};\n"
      "constexpr int kTokens = {};\n"
      "}}  // namespace append\n"
      "\n"
      "}}  // namespace att\n"
      "\n"
      "#define ATT_KERNEL_NAME {}\n"
      "#define ATT_VECTOR_BYTES {}\n",
      storage_name(kernel.dtype), storage_name(kernel.cache_dtype), kernel.head_dim_qk,
      kernel.head_dim_v, to_string(kernel.rotation), kernel.rotary_dim, recipe.threads,
      recipe.tokens_per_item, recipe.symbol, kCpuVectorBytes);
}

Error bad_dims(std::string message, std::string hint) {
  return Error{.kind = ErrorKind::kBadInput,
               .id = "append-dims",
               .message = std::move(message),
               .hint = std::move(hint)};
}

}  // namespace

std::string_view to_string(Rotation rotation) {
  switch (rotation) {
    case Rotation::kNone:
      return "none";
    case Rotation::kHalf:
      return "half";
    case Rotation::kInterleaved:
      return "interleaved";
  }
  return "unknown";
}

Status check(const AppendKernel& kernel) {
  const bool narrows = kernel.cache_dtype == DType::kFp8E4m3;
  if (kernel.dtype == DType::kFp8E4m3) {
    return Error{.kind = ErrorKind::kUnsupported,
                 .id = "append-dtype",
                 .message = "new keys of fp8 are not taken: the cache may be of it",
                 .hint = "`dtype` is fp16, bf16 or fp32"};
  }
  if (kernel.cache_dtype != kernel.dtype && !narrows) {
    return Error{.kind = ErrorKind::kUnsupported,
                 .id = "append-dtype",
                 .message = fmt::format("new keys are {}, and the cache is {}",
                                        to_string(kernel.dtype), to_string(kernel.cache_dtype)),
                 .hint = "they must be of one dtype, or the cache of fp8_e4m3"};
  }
  const int step = narrows ? kFp8HeadDimStep : kHeadDimStep;
  for (const auto& [name, dim] :
       {std::pair{"head_dim_qk", kernel.head_dim_qk}, {"head_dim_v", kernel.head_dim_v}}) {
    if (dim >= kMinHeadDim && dim <= kMaxHeadDim && dim % step == 0) continue;
    return bad_dims(
        fmt::format("`{}` is {}", name, dim),
        fmt::format("{} to {} in steps of {}", std::max(kMinHeadDim, step), kMaxHeadDim, step));
  }
  const int rotary = kernel.rotary_dim;
  if (kernel.rotation == Rotation::kNone) {
    if (rotary == 0) return ok_status();
    return bad_dims(fmt::format("`rotary_dim` is {}, and nothing turns", rotary),
                    "leave it 0 without a rotation");
  }
  if (rotary < 2 || rotary > kernel.head_dim_qk || rotary % 2 != 0) {
    return bad_dims(fmt::format("`rotary_dim` is {}", rotary),
                    fmt::format("an even number from 2 to head_dim_qk = {}", kernel.head_dim_qk));
  }
  return ok_status();
}

std::string to_string(const AppendKernel& kernel) {
  return fmt::format("append {} {} to {} {} {}", to_string(kernel.target), to_string(kernel.dtype),
                     to_string(kernel.cache_dtype), dims_text(kernel), rotation_text(kernel));
}

AppendRecipe append_recipe(const AppendKernel& kernel) {
  const std::string dtypes =
      kernel.cache_dtype == kernel.dtype
          ? std::string(to_string(kernel.dtype))
          : fmt::format("{}_to_{}", to_string(kernel.dtype), to_string(kernel.cache_dtype));
  return {.symbol = fmt::format("att_{}append_{}_{}_{}", is_cpu(kernel) ? "cpu_" : "", dtypes,
                                dims_text(kernel), rotation_text(kernel)),
          .threads = is_cpu(kernel) ? 1 : kThreads,
          .tokens_per_item = is_cpu(kernel) ? kCpuTokensPerItem : 1};
}

Result<GeneratedKernel> emit_append(const AppendKernel& kernel) {
  ATT_CHECK(check(kernel));
  const AppendRecipe recipe = append_recipe(kernel);
  ATT_TRY(const std::string body, flatten_template(is_cpu(kernel) ? "templates/kernels/cpu_append.h"
                                                                  : "templates/kernels/append.cuh",
                                                   head_text(kernel, recipe)));
  GeneratedKernel generated{.source = {}, .symbol = recipe.symbol, .body_hash = hash128_hex(body)};
  generated.source = fmt::format(
      "// {}\n"
      "// Generated by attune: {}.\n"
      "// Text below this comment: {}.\n",
      generated.symbol, to_string(kernel), generated.body_hash);
  generated.source += body;
  return generated;
}

}  // namespace attune
