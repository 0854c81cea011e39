// What the generated functions mask, score, sink, classify_tile and kv_bounds are written with.
// The same text for NVRTC, Clang as a CUDA compiler, and C++ for the CPU.
#pragma once

#include "templates/cpu/math.h"
#include "templates/params.h"
#include "templates/ptx/platform.cuh"

namespace att {

enum class TileClass { kSkip, kPartial, kFull };

// Keys [begin, end).
struct KvBounds {
  int begin, end;
};
// Queries [begin, end).
struct QBounds {
  int begin, end;
};

// base + step * i.
struct ScoreLine {
  float base, step;
};

// ---- int32, which wraps.

ATT_FN int min_i32(int a, int b) { return a < b ? a : b; }
ATT_FN int max_i32(int a, int b) { return a > b ? a : b; }
ATT_FN int add_i32(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
}
ATT_FN int subtract_i32(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) - static_cast<unsigned>(b));
}
ATT_FN int multiply_i32(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) * static_cast<unsigned>(b));
}
ATT_FN int abs_i32(int a) { return a < 0 ? subtract_i32(0, a) : a; }
// abs(a) <= n for 0 <= n < 2^30 and any a but the smallest.
ATT_FN bool is_within(int a, int n) { return static_cast<unsigned>(add_i32(a, n)) <= 2u * n; }

// Towards minus infinity; 0 for b = 0. The smallest int over -1 wraps to itself.
ATT_FN int floor_divide(int a, int b) {
  if (b == 0) return 0;
  if (b == -1) return subtract_i32(0, a);
  const int quotient = a / b;
  return quotient - (a % b != 0 && (a ^ b) < 0 ? 1 : 0);
}
// With the sign of b; 0 for b = 0.
ATT_FN int floor_modulo(int a, int b) {
  if (b == 0 || b == -1) return 0;
  const int remainder = a % b;
  return remainder + (remainder != 0 && (a ^ b) < 0 ? b : 0);
}

// ---- float32. On a GPU these are the special-function unit's approximations: relative error about
// 2^-22, and subnormals count as zero.

#if ATT_DEVICE_CODE
#define ATT_MATH_UNARY_(name, instruction)          \
  ATT_FN float name(float x) {                      \
    float y;                                        \
    asm(instruction " %0, %1;" : "=f"(y) : "f"(x)); \
    return y;                                       \
  }
ATT_MATH_UNARY_(math_exp2, "ex2.approx.ftz.f32")
ATT_MATH_UNARY_(math_log2, "lg2.approx.ftz.f32")
ATT_MATH_UNARY_(math_sqrt, "sqrt.approx.ftz.f32")
ATT_MATH_UNARY_(math_reciprocal, "rcp.approx.ftz.f32")
ATT_MATH_UNARY_(math_abs, "abs.f32")
#undef ATT_MATH_UNARY_

ATT_FN float math_divide(float x, float y) { return x * math_reciprocal(y); }
// The one that is not NaN, if either is.
ATT_FN float math_min(float x, float y) {
  float z;
  asm("min.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
ATT_FN float math_max(float x, float y) {
  float z;
  asm("max.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
// Towards minus infinity, saturating; NaN gives 0.
ATT_FN int math_floor(float x) {
  int y;
  asm("cvt.rmi.s32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}
#else  // the others: templates/cpu/math.h
ATT_FN float math_sqrt(float x) { return __builtin_sqrtf(x); }
ATT_FN float math_reciprocal(float x) { return 1.0f / x; }
ATT_FN float math_abs(float x) { return __builtin_fabsf(x); }
ATT_FN float math_divide(float x, float y) { return x / y; }
ATT_FN float math_min(float x, float y) { return __builtin_fminf(x, y); }
ATT_FN float math_max(float x, float y) { return __builtin_fmaxf(x, y); }
ATT_FN int math_floor(float x) {
  const float y = __builtin_floorf(x);
  return y >= 2147483648.0f    ? 2147483647
         : y >= -2147483648.0f ? static_cast<int>(y)
         : y < 0.0f            ? -2147483647 - 1
                               : 0;
}
#endif

ATT_FN float math_exp(float x) { return math_exp2(x * 1.4426950408889634f); }
ATT_FN float math_log(float x) { return math_log2(x) * 0.6931471805599453f; }
ATT_FN float math_sigmoid(float x) {
  return math_reciprocal(1.0f + math_exp2(x * -1.4426950408889634f));
}
#if ATT_DEVICE_CODE  // on the CPU: templates/cpu/math.h
// 1 - 2 / (1 + exp2(x * 2 log2(e))), with an absolute error about 2^-22. The hardware's tanh errs
// by 2^-11, which a soft cap of 50 turns into 2.5 % of a probability. One statement: the compiler
// meets it in every element, and makes two instructions of 1 - 2y where it sees them.
ATT_FN float math_tanh(float x) {
  float y;
  asm("{\n"
      ".reg .f32 t;\n"
      "mul.f32 t, %1, 0f4038AA3B;\n"
      "ex2.approx.ftz.f32 t, t;\n"
      "add.f32 t, t, 0f3F800000;\n"
      "rcp.approx.ftz.f32 t, t;\n"
      "fma.rn.f32 %0, t, 0fC0000000, 0f3F800000;\n"
      "}"
      : "=f"(y)
      : "f"(x));
  return y;
}
#endif

// ---- Look-ups. Row-major; a tensor may have more than 2^31 elements.

// An index that is at least 0, into [0, size).
ATT_FN int clamp_above(int index, int size) { return min_i32(index, size - 1); }
// One that passes its end only where q_idx or kv_idx passes the lengths, so that what is read there
// does not matter.
ATT_FN int clamp_tail(int index, int size) { return clamp_above(index, size); }
ATT_FN int clamp_index(int index, int size) { return max_i32(min_i32(index, size - 1), 0); }

ATT_FN int load_i32(const TensorArg& tensor, long long offset) {
  const int* at = static_cast<const int*>(tensor.data) + offset;
#if ATT_DEVICE_CODE
  int value;
  asm("ld.global.nc.s32 %0, [%1];" : "=r"(value) : "l"(at));
  return value;
#else
  return *at;
#endif
}
ATT_FN float load_f32(const TensorArg& tensor, long long offset) {
  const float* at = static_cast<const float*>(tensor.data) + offset;
#if ATT_DEVICE_CODE
  float value;
  asm("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(at));
  return value;
#else
  return *at;
#endif
}
ATT_FN bool load_bool(const TensorArg& tensor, long long offset) {
  const unsigned char* at = static_cast<const unsigned char*>(tensor.data) + offset;
#if ATT_DEVICE_CODE
  unsigned value;
  asm("ld.global.nc.u8 %0, [%1];" : "=r"(value) : "l"(at));
  return value != 0;
#else
  return *at != 0;
#endif
}

// Element `index` >= 0 of a row, the offset of whose first element is `row`. The address is worked
// out where it is used, so that the compiler, which would move what elements share about, meets one
// statement an element.
#if ATT_DEVICE_CODE
#define ATT_LOAD_OF_ROW_(type, bytes) \
  "{\n"                               \
  ".reg .u64 at;\n"                   \
  "mad.wide.u32 at, %1, " #bytes      \
  ", %2;\n"                           \
  "ld.global.nc." #type               \
  " %0, [at];\n"                      \
  "}"
ATT_FN int load_i32(const TensorArg& tensor, long long row, int index) {
  int value;
  asm(ATT_LOAD_OF_ROW_(s32, 4)
      : "=r"(value)
      : "r"(index), "l"(static_cast<const int*>(tensor.data) + row));
  return value;
}
ATT_FN float load_f32(const TensorArg& tensor, long long row, int index) {
  float value;
  asm(ATT_LOAD_OF_ROW_(f32, 4)
      : "=f"(value)
      : "r"(index), "l"(static_cast<const float*>(tensor.data) + row));
  return value;
}
ATT_FN bool load_bool(const TensorArg& tensor, long long row, int index) {
  unsigned value;
  asm(ATT_LOAD_OF_ROW_(u8, 1)
      : "=r"(value)
      : "r"(index), "l"(static_cast<const unsigned char*>(tensor.data) + row));
  return value != 0;
}
#undef ATT_LOAD_OF_ROW_
#else
ATT_FN int load_i32(const TensorArg& tensor, long long row, int index) {
  return load_i32(tensor, row + index);
}
ATT_FN float load_f32(const TensorArg& tensor, long long row, int index) {
  return load_f32(tensor, row + index);
}
ATT_FN bool load_bool(const TensorArg& tensor, long long row, int index) {
  return load_bool(tensor, row + index);
}
#endif

}  // namespace att
