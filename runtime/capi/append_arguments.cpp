#include "runtime/capi/append_arguments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <numbers>

#include "runtime/capi/cache_scales.hpp"
#include "runtime/capi/operand.hpp"
#include "runtime/capi/sizes.hpp"
#include "runtime/support/problem_layout.hpp"

namespace attune {
namespace {

constexpr double kDefaultBase = 10000;

Result<DType> known_dtype(const char* name, int value) {
  for (const DType dtype : {DType::kF16, DType::kBf16, DType::kF32, DType::kFp8E4m3}) {
    if (static_cast<int>(dtype) == value) return dtype;
  }
  return bad_argument(fmt::format("`{}` is {}", name, value),
                      "ATT_FP16, ATT_BF16 or ATT_FP32 of att_dtype");
}

Result<Rotation> known_rotation(int rope) {
  switch (rope) {
    case ATT_ROPE_NONE:
      return Rotation::kNone;
    case ATT_ROPE_HALF:
      return Rotation::kHalf;
    case ATT_ROPE_INTERLEAVED:
      return Rotation::kInterleaved;
  }
  return bad_argument(fmt::format("`rope` is {}", rope), "it is one of att_rope");
}

// 0 stands for `standard`.
Result<double> positive(const char* name, double value, double standard) {
  if (value == 0) return standard;
  if (value > 0 && std::isfinite(value)) return value;
  return bad_argument(fmt::format("`{}` is {}", name, value),
                      "a number above 0, or 0 for the usual");
}

// Of a step from a position to the next, the part of a turn in 2^-64; whole turns fall away.
unsigned long long turn_of_step(double radians) {
  const double turns = radians / (2 * std::numbers::pi);
  const double scaled = std::ldexp(turns - std::floor(turns), 64);
  // An angle that no double holds is none.
  return scaled < 0x1p64 ? static_cast<unsigned long long>(scaled) : 0;
}

// What is of some layouts alone.
Status check_tables(const att_append_args& args) {
  const bool paged = args.layout == ATT_PAGED, packed = args.layout == ATT_THD;
  struct Given {
    const char* name;
    const std::int32_t* pointer;
    bool known, needed;
  };
  for (const auto& [name, pointer, known, needed] :
       {Given{"cu_q", args.cu_q, true, true},
        {"positions", args.positions, true, false},
        {"used_q", args.used_q, true, false},
        {"cu_kv", args.cu_kv, packed, packed},
        {"used_kv", args.used_kv, true, paged},
        {"page_table", args.page_table, paged, paged}}) {
    if (!known && pointer != nullptr) {
      return bad_argument(
          fmt::format("`{}` is given, and the cache's layout is another", name),
          paged || packed ? "see `layout`" : "it is of layout ATT_THD or ATT_PAGED");
    }
    if (needed || pointer != nullptr) {
      ATT_CHECK(check_pointer(name, pointer, alignof(std::int32_t)));
    }
  }
  for (const auto& [name, value] : {std::pair{"pages_per_sequence", args.pages_per_sequence},
                                    {"page_size", args.page_size},
                                    {"pages", args.pages}}) {
    if (!paged && value != 0) {
      return bad_argument(fmt::format("`{}` is given, and the cache's layout is another", name),
                          "it is of keys in pages, layout ATT_PAGED");
    }
    if (paged && (value < 1 || value > kMaxPages)) {
      return bad_argument(fmt::format("`{}` is {}, not in 1 to {}", name, value, kMaxPages));
    }
  }
  if (paged && args.shape.kv_len > args.pages_per_sequence * args.page_size) {
    return bad_argument(fmt::format("shape.kv_len is {}, and {} pages of {} rows have less room",
                                    args.shape.kv_len, args.pages_per_sequence, args.page_size),
                        "it is the most keys that one sequence may have");
  }
  return ok_status();
}

Status fill_angles(const AppendChoice& choice, const att_append_args& args,
                   att::AppendParams* params) {
  if (args.cosines == nullptr && args.sines == nullptr) {
    std::ranges::copy(choice.turns, params->turns);
    return ok_status();
  }
  const int pairs = choice.kernel.rotary_dim / 2;
  if (choice.kernel.rotation == Rotation::kNone) {
    return bad_argument("`cosines` or `sines` is given, and the kernel turns nothing",
                        "ask att_append_kernel_get for one with a rotation");
  }
  ATT_CHECK(check_pointer("cosines", args.cosines, alignof(float)));
  ATT_CHECK(check_pointer("sines", args.sines, alignof(float)));
  if (args.table_positions < 1 || args.table_positions > INT_MAX) {
    return bad_argument(
        fmt::format("`table_positions` is {}, not in 1 to {}", args.table_positions, INT_MAX),
        "it is how many positions `cosines` and `sines` have");
  }
  const std::int64_t stride = args.table_stride == 0 ? pairs : args.table_stride;
  if (stride < pairs || stride > kMaxTensorBytes / args.table_positions) {
    return bad_argument(fmt::format("`table_stride` is {}", args.table_stride),
                        fmt::format("rows of {} elements are that far apart or farther", pairs));
  }
  params->cosines = args.cosines;
  params->sines = args.sines;
  params->table_stride = stride;
  params->table_positions = static_cast<int>(args.table_positions);
  return ok_status();
}

// A tensor of new tokens.
Status fill_rows(DType dtype, const Operand& operand, att::RowStrides* strides) {
  att::Strides all{};
  ATT_CHECK(fill_operand(dtype, Layout::kThd, operand, &all));
  *strides = {all.seq, all.head};
  return ok_status();
}

bool same(const att::RowStrides& a, const att::RowStrides& b) {
  return a.seq == b.seq && a.head == b.head;
}

Status fill_queries(const AppendKernel& kernel, const att_append_args& args,
                    att::AppendParams* params) {
  if (args.q == nullptr) {
    if (args.q_out == nullptr) return ok_status();
    return bad_argument("`q_out` is given, and `q` is null");
  }
  const auto& [batch, heads, kv_heads, tokens, kv_len] = args.shape;
  const bool in_place = args.q == args.q_out;
  ATT_CHECK(fill_rows(kernel.dtype,
                      {"q", args.q, args.q_strides, 1, tokens, heads, kernel.head_dim_qk, in_place},
                      &params->q_stride));
  const auto& given = args.q_out_strides;
  const bool unsaid = given.batch == 0 && given.seq == 0 && given.head == 0;
  ATT_CHECK(fill_rows(kernel.dtype,
                      {"q_out", args.q_out, in_place && unsaid ? args.q_strides : given, 1, tokens,
                       heads, kernel.head_dim_qk, true},
                      &params->q_out_stride));
  if (in_place && !same(params->q_stride, params->q_out_stride)) {
    return bad_argument("`q_out` is `q`, and its strides are others", "leave them zero");
  }
  // In place without a rotation there is nothing to do.
  if (in_place && kernel.rotation == Rotation::kNone) return ok_status();
  params->q = args.q;
  params->q_out = args.q_out;
  return ok_status();
}

Status fill_cache(const AppendKernel& kernel, const att_append_args& args,
                  att::AppendParams* params) {
  const auto& [batch, heads, kv_heads, tokens, kv_len] = args.shape;
  const auto layout = static_cast<Layout>(args.layout);
  const bool paged = args.layout == ATT_PAGED;
  const std::int64_t slices = paged ? args.pages : args.layout == ATT_THD ? 1 : batch;
  const std::int64_t rows = paged ? args.page_size : kv_len;
  ATT_CHECK(fill_rows(kernel.dtype,
                      {"k", args.k, args.k_strides, 1, tokens, kv_heads, kernel.head_dim_qk},
                      &params->k_stride));
  ATT_CHECK(fill_operand(kernel.cache_dtype, layout,
                         {"k_cache", args.k_cache, args.k_cache_strides, slices, rows, kv_heads,
                          kernel.head_dim_qk, true},
                         &params->k_cache_stride));
  ATT_CHECK(
      fill_cache_scales(kernel.cache_dtype == DType::kFp8E4m3, {slices, kv_heads}, args, params));
  params->k = args.k;
  params->k_cache = args.k_cache;
  if (args.v == nullptr) {
    if (args.v_cache == nullptr) return ok_status();
    return bad_argument("`v_cache` is given, and `v` is null");
  }
  ATT_CHECK(fill_rows(kernel.dtype,
                      {"v", args.v, args.v_strides, 1, tokens, kv_heads, kernel.head_dim_v},
                      &params->v_stride));
  ATT_CHECK(fill_operand(kernel.cache_dtype, layout,
                         {"v_cache", args.v_cache, args.v_cache_strides, slices, rows, kv_heads,
                          kernel.head_dim_v, true},
                         &params->v_cache_stride));
  params->v = args.v;
  params->v_cache = args.v_cache;
  return ok_status();
}

}  // namespace

Result<AppendChoice> append_choice(const att_append_options& options) {
  AppendChoice choice;
  AppendKernel& kernel = choice.kernel;
  ATT_TRY(kernel.dtype, known_dtype("dtype", options.dtype));
  ATT_TRY(kernel.cache_dtype, known_dtype("cache_dtype", options.cache_dtype));
  ATT_TRY(kernel.rotation, known_rotation(options.rope));
  kernel.head_dim_qk = options.head_dim_qk;
  kernel.head_dim_v = options.head_dim_v;
  kernel.rotary_dim = options.rotary_dim;
  if (kernel.rotation != Rotation::kNone && kernel.rotary_dim == 0) {
    kernel.rotary_dim = kernel.head_dim_qk;
  }
  ATT_CHECK(check(kernel));
  ATT_TRY(const double base, positive("rope_base", options.rope_base, kDefaultBase));
  ATT_TRY(const double factor, positive("rope_factor", options.rope_factor, 1));
  for (int pair = 0; pair < kernel.rotary_dim / 2; ++pair) {
    choice.turns[static_cast<std::size_t>(pair)] =
        turn_of_step(std::pow(base, -2.0 * pair / kernel.rotary_dim) / factor);
  }
  return choice;
}

Status fill_append_params(const AppendChoice& choice, const att_append_args& args,
                          att::AppendParams* params) {
  *params = {};
  LaunchSizes sizes;
  ATT_CHECK(check_shape(args.shape, &sizes));
  if (sizes.is_empty) return ok_status();
  if (args.layout < ATT_BSHD || args.layout > ATT_PAGED) {
    return bad_argument(fmt::format("`layout` is {}", args.layout), "it is one of att_layout");
  }
  ATT_CHECK(check_tables(args));
  ATT_CHECK(fill_queries(choice.kernel, args, params));
  ATT_CHECK(fill_cache(choice.kernel, args, params));
  ATT_CHECK(fill_angles(choice, args, params));
  Places written = {{"k_cache", args.k_cache}, {"v_cache", args.v_cache}};
  if (args.q_out != args.q) written.add({"q_out", args.q_out});
  ATT_CHECK(check_apart(written, Places{{"q", args.q}, {"k", args.k}, {"v", args.v}}));
  params->batch = static_cast<int>(sizes.shape.batch);
  params->tokens = static_cast<int>(sizes.shape.q_len);
  params->heads = static_cast<int>(sizes.shape.heads);
  params->kv_heads = static_cast<int>(sizes.shape.kv_heads);
  params->kv_len = static_cast<int>(sizes.shape.kv_len);
  params->cu_q = args.cu_q;
  params->used_q = args.used_q;
  params->cu_kv = args.cu_kv;
  params->used_kv = args.used_kv;
  params->positions = args.positions;
  if (args.layout == ATT_PAGED) {
    params->page_table =
        page_table_of(args.page_table, {args.pages_per_sequence, args.page_size, args.pages});
  }
  return ok_status();
}

}  // namespace attune
