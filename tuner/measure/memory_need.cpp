#include "tuner/measure/memory_need.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "generator/spec/shape.hpp"
#include "runtime/support/problem_layout.hpp"
#include "tuner/measure/pass_problems.hpp"

namespace attune {
namespace {

// Elements.
struct Sizes {
  double q, k, v, o, rows;
  double tensors = 0, tensor_bytes = 0;  // bytes as a kernel reads them
  double widest() const { return std::max({q, k, v}); }
  double inputs() const { return q + k + v; }
};

Sizes sizes_of(const AttentionSpec& spec, const ProblemShape& shape) {
  const auto slices = double(slice_count(spec, shape));
  const double rows = slices * double(shape.heads) * double(shape.q_len);
  // Pages may be empty but for one key.
  const double pages = is_paged(spec) ? double(shape.batch + 3) * spec.page_size : 0;
  const double shared = double(std::min<std::int64_t>(spec.shared_prefix, shape.kv_len)) *
                        double(std::max<std::int64_t>(shape.batch - 1, 0));
  const double keys = double(shape.kv_heads) * (double(key_rows(spec, shape)) + pages - shared);
  Sizes sizes{.q = rows * spec.head_dim_qk,
              .k = keys * spec.head_dim_qk,
              .v = spec.v_in_k ? 0 : keys * spec.head_dim_v,
              .o = rows * spec.head_dim_v,
              .rows = rows};
  for (const expr::TensorDecl& tensor : spec.environment.tensors) {
    double elements = 1;
    for (const expr::DimSize& dim : tensor.dims) elements *= double(dim_size(dim, shape));
    sizes.tensors += elements;
    sizes.tensor_bytes += elements * tensor_element_bytes(tensor.type);
  }
  return sizes;
}

// HostProblem is of doubles.
double host_problem(const Sizes& s) { return 8 * (s.inputs() + s.tensors); }

// What an upload has beside the HostProblem: q, k and v in the order of their strides, one of them
// in the spec's dtype.
double staging(const AttentionSpec& spec, const Sizes& s) {
  const double elements = has_scaled_cache(spec) ? 8 * s.widest() : 0;  // those of the cache
  return 8 * s.inputs() + element_bytes(spec.dtype) * s.widest() + elements;
}

// An element of a gradient is brought back (8 bytes), and takes the oracle 32.
double gradients(const Sizes& s) {
  return (8 + 32) * (s.inputs() + s.tensors) + 8 * (s.o + s.rows);
}

double on_device(const AttentionSpec& spec, const Sizes& s) {
  return element_bytes(spec.dtype) * (s.q + s.o) + element_bytes(kv_dtype(spec)) * (s.k + s.v) +
         sizeof(float) * s.rows + s.tensor_bytes;
}

std::string text(double bytes) {
  const char* const units[] = {"MB", "GB", "TB", "PB", "EB"};
  std::size_t unit = 0;
  for (bytes /= 1e6; bytes >= 1000 && unit + 1 < std::size(units); ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, bytes < 10 ? 1 : 0, units[unit]);
}

Error too_large(const ProblemShape& shape, double needed, const char* memory, double there) {
  return {.kind = ErrorKind::kBadInput,
          .id = "memory-short",
          .message = fmt::format("{} takes {} of {} memory, and {} are there", to_string(shape),
                                 text(needed), memory, text(there)),
          .hint = "a smaller shape"};
}

}  // namespace

MemoryNeed need_of_values(const AttentionSpec& spec, const ProblemShape& shape) {
  return {.host_bytes = host_problem(sizes_of(spec, shape))};
}

MemoryNeed need_of_run(const AttentionSpec& spec, const ProblemShape& shape, double rows) {
  const Sizes s = sizes_of(spec, shape);
  // The row, its output, and the oracle's with its limits: doubles.
  const double a_row = 16 + 24.0 * (spec.head_dim_v + 1);
  const double output = element_bytes(spec.dtype) * s.o + sizeof(float) * s.rows;
  return {.host_bytes = host_problem(s) + std::max(staging(spec, s), output) + a_row * rows,
          .device_bytes = on_device(spec, s)};
}

MemoryNeed need_of_timing(const AttentionSpec& spec, const ProblemShape& shape,
                          const DeviceFacts& device, Pass pass) {
  AttentionSpec narrow = spec;
  narrow.head_dim_qk = narrow.head_dim_v = 1;
  const bool backward = pass == Pass::kBackward;
  const double copies = backward ? 2 : 1;  // of everything, a gradient
  MemoryNeed need{.host_bytes = host_problem(sizes_of(narrow, shape)),
                  .device_bytes = copies * on_device(spec, sizes_of(spec, shape)) +
                                  2 * static_cast<double>(device.l2_bytes)};
  std::vector<ProblemShape> checked = verification_shapes(spec, pass, shape);
  // A GPU's oracle looks at the timed problem in place of the first; that of gradients knows no
  // packed sequences.
  const bool judges_timed = device.target != Target::kCpu && !(backward && is_packed(spec));
  if (judges_timed && checked.size() > 1) checked.erase(checked.begin());
  for (const ProblemShape& one : checked) {
    const Sizes s = sizes_of(spec, one);
    const double host = host_problem(s) + staging(spec, s) + (backward ? gradients(s) : 0);
    need.host_bytes = std::max(need.host_bytes, host);
    need.device_bytes += copies * on_device(spec, s);
  }
  return need;
}

MemoryNeed need_of_backward(const AttentionSpec& spec, const ProblemShape& shape) {
  const Sizes s = sizes_of(spec, shape);
  return {.host_bytes = host_problem(s) + staging(spec, s) + gradients(s),
          .device_bytes = 2 * on_device(spec, s)};
}

Status check_fits(const MemoryNeed& need, const ProblemShape& shape, const DeviceFacts& device,
                  std::int64_t available_bytes) {
  const bool shared = device.target == Target::kCpu;
  const double host = need.host_bytes + (shared ? need.device_bytes : 0);
  const auto there = static_cast<double>(available_bytes);
  if (host > there) return too_large(shape, host, "main", there);
  const auto of_device = static_cast<double>(device.memory_bytes);
  if (!shared && need.device_bytes > of_device)
    return too_large(shape, need.device_bytes, "the GPU's", of_device);
  return ok_status();
}

}  // namespace attune
