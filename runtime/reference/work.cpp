#include "runtime/reference/work.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/support/problem_layout.hpp"

namespace attune {
namespace {

bool uses(const expr::Expr& node, expr::Variable variable) {
  if (node->op == expr::Op::kVariable && node->variable == variable) return true;
  return std::ranges::any_of(node->args,
                             [&](const expr::Expr& arg) { return uses(arg, variable); });
}

// `first_b`: what the first of the batch is to the mask.
double live_share(const AttentionSpec& spec, const ProblemShape& shape, const ProblemValues& values,
                  double max_pairs, int first_b) {
  if (spec.mask == nullptr) return 1;
  const bool by_batch = uses(spec.mask, expr::Variable::kBatch);
  const bool by_head =
      uses(spec.mask, expr::Variable::kHead) || uses(spec.mask, expr::Variable::kKvHead);
  const std::int64_t batches = by_batch ? shape.batch : 1;
  const std::int64_t heads = by_head ? shape.heads : 1;
  const std::int64_t rows = batches * heads * shape.q_len;
  const auto affordable = std::max<std::int64_t>(
      64, static_cast<std::int64_t>(max_pairs / static_cast<double>(shape.kv_len)));
  const std::int64_t sampled = std::min(rows, affordable);
  expr::Point point;
  point.q_len = static_cast<std::int32_t>(shape.q_len);
  point.kv_len = static_cast<std::int32_t>(shape.kv_len);
  point.scalars = values.scalars;
  point.tensors = values.tensors;
  if (!values.sequences.empty()) {
    point.q_first = static_cast<std::int32_t>(values.sequences.q_first(first_b));
    point.kv_first = static_cast<std::int32_t>(values.sequences.kv_first(first_b));
  }
  std::int64_t live = 0;
  for (std::int64_t i = 0; i < sampled; ++i) {
    // The middle of the i-th of `sampled` equal stretches, so that both ends weigh alike.
    const std::int64_t row = (2 * i + 1) * rows / (2 * sampled);
    point.q_idx = static_cast<std::int32_t>(row % shape.q_len);
    point.h = static_cast<std::int32_t>(row / shape.q_len % heads);
    point.h_kv = static_cast<std::int32_t>(point.h / (shape.heads / shape.kv_heads));
    point.b = first_b + static_cast<std::int32_t>(row / shape.q_len / heads);
    for (point.kv_idx = 0; point.kv_idx < point.kv_len; ++point.kv_idx) {
      live += expr::evaluate(spec.mask, point) != 0;
    }
  }
  return static_cast<double>(live) / static_cast<double>(sampled * shape.kv_len);
}

Work work_without_tensors(const AttentionSpec& spec, const ProblemShape& shape,
                          const ProblemValues& values, double max_pairs, int first_b) {
  const auto batch = static_cast<double>(shape.batch), heads = static_cast<double>(shape.heads);
  const auto kv_heads = static_cast<double>(shape.kv_heads);
  const auto q_len = static_cast<double>(shape.q_len), kv_len = static_cast<double>(shape.kv_len);
  const double dims = spec.head_dim_qk + spec.head_dim_v;
  Work work;
  work.live_share = live_share(spec, shape, values, max_pairs, first_b);
  work.flops = 2 * batch * heads * q_len * kv_len * work.live_share * dims;
  // q and o, k and v, lse.
  const double key_dims = spec.v_in_k ? spec.head_dim_qk : dims;
  work.bytes = batch * (dims * heads * q_len * element_bytes(spec.dtype) +
                        key_dims * kv_heads * kv_len * element_bytes(kv_dtype(spec))) +
               batch * heads * q_len * 4;
  return work;
}

// Each sequence's, added up.
Work packed_work(const AttentionSpec& spec, const ProblemShape& shape, const ProblemValues& values,
                 double max_pairs) {
  Work work{.live_share = 0};
  double pairs = 0, live = 0;
  for (int b = 0; b < shape.batch; ++b) {
    const ProblemShape own{.heads = shape.heads,
                           .kv_heads = shape.kv_heads,
                           .q_len = values.sequences.q_len(b),
                           .kv_len = values.sequences.kv_len(b)};
    if (own.q_len == 0 || own.kv_len == 0) continue;
    const Work one =
        work_without_tensors(spec, own, values, max_pairs / static_cast<double>(shape.batch), b);
    const double own_pairs = static_cast<double>(own.q_len) * static_cast<double>(own.kv_len);
    pairs += own_pairs;
    live += own_pairs * one.live_share;
    work.flops += one.flops;
    work.bytes += one.bytes;
  }
  work.live_share = pairs == 0 ? 0 : live / pairs;
  return work;
}

}  // namespace

Work forward_work(const AttentionSpec& spec, const ProblemShape& shape, const ProblemValues& values,
                  double max_pairs) {
  Work work = values.sequences.empty() ? work_without_tensors(spec, shape, values, max_pairs, 0)
                                       : packed_work(spec, shape, values, max_pairs);
  for (const expr::TensorDecl& tensor : spec.environment.tensors) {
    work.bytes += static_cast<double>(element_count(tensor_sizes(tensor, shape)) *
                                      tensor_element_bytes(tensor.type));
  }
  return work;
}

Work backward_work(const AttentionSpec& spec, const ProblemShape& shape,
                   const ProblemValues& values, double max_pairs) {
  Work work = forward_work(spec, shape, values, max_pairs);
  work.flops *= 2.5;
  const auto slices = static_cast<double>(slice_count(spec, shape));
  const double query_rows = slices * static_cast<double>(shape.heads * shape.q_len);
  const double key_rows = slices * static_cast<double>(shape.kv_heads * shape.kv_len);
  const double dims = spec.head_dim_qk + spec.head_dim_v;
  // dO and dQ, dK and dV, beside what the forward pass reads and writes.
  work.bytes += (query_rows + key_rows) * dims * element_bytes(spec.dtype);
  for (const expr::TensorDecl& tensor : spec.environment.tensors) {
    if (!tensor.grad) continue;
    work.bytes += static_cast<double>(element_count(tensor_sizes(tensor, shape)) *
                                      tensor_element_bytes(tensor.type));
  }
  return work;
}

Work work_of(Pass pass, const AttentionSpec& spec, const ProblemShape& shape,
             const ProblemValues& values) {
  return pass == Pass::kForward ? forward_work(spec, shape, values)
                                : backward_work(spec, shape, values);
}

double roofline_us(const Work& work, const DeviceFacts& device) {
  return std::max(work.flops / (device.matrix_tflops * 1e6),
                  work.bytes / (device.memory_gb_per_s * 1e3));
}

DeviceFacts facts_of_dtype(const AttentionSpec& spec, const DeviceFacts& device) {
  DeviceFacts own = device;
  if (spec.dtype == DType::kF32 && device.target != Target::kCpu)
    own.matrix_tflops /= spec.precision == Precision::kStrict ? 6 : 2;
  return own;
}

}  // namespace attune
