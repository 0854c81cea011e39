#include "tuner/measure/device_problem.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/reference/cache_scales.hpp"
#include "runtime/reference/element_bits.hpp"
#include "runtime/support/problem_layout.hpp"
#include "tuner/measure/arrangement.hpp"
#include "tuner/measure/timing_pattern.hpp"

namespace attune {
namespace {

// A copy costs about as much as this many values in it.
constexpr std::size_t kCopyValues = 16384;

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

std::int64_t q_values(const AttentionSpec& spec, const ProblemShape& s) {
  return slice_count(spec, s) * s.heads * s.q_len * spec.head_dim_qk;
}
std::int64_t o_values(const AttentionSpec& spec, const ProblemShape& s) {
  return slice_count(spec, s) * s.heads * s.q_len * spec.head_dim_v;
}

std::vector<std::byte> tensor_bytes(const expr::TensorDecl& declaration,
                                    std::span<const double> values) {
  if (expr::is_half(declaration.type)) {
    return encode(declaration.type == expr::TensorType::kFloat16 ? DType::kF16 : DType::kBf16,
                  values);
  }
  const auto width = size(tensor_element_bytes(declaration.type));
  std::vector<std::byte> bytes(values.size() * width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::byte* to = &bytes[i * width];
    switch (declaration.type) {
      case expr::TensorType::kFloat32: {
        const auto value = static_cast<float>(values[i]);
        std::memcpy(to, &value, width);
        break;
      }
      case expr::TensorType::kInt32: {
        const auto value = static_cast<std::int32_t>(values[i]);
        std::memcpy(to, &value, width);
        break;
      }
      default:  // kBool
        *to = std::byte{values[i] != 0};
        break;
    }
  }
  return bytes;
}

}  // namespace

Result<std::unique_ptr<DeviceProblem>> DeviceProblem::upload(Device& device,
                                                             const AttentionSpec& spec,
                                                             const HostProblem& problem) {
  const ProblemShape& s = problem.shape;
  std::unique_ptr<DeviceProblem> made(new DeviceProblem(device, spec, s));
  made->set_params(problem);
  const att::LaunchParams& p = made->params_;
  const std::int64_t slices = slice_count(spec, s);
  const HostPages& pages = problem.pages;
  const std::int64_t key_slices = pages.empty() ? slices : pages.count;
  const std::int64_t keys = pages.empty() ? s.kv_len : pages.size;
  const Arrangement q = {slices, s.heads, s.q_len, spec.head_dim_qk, p.q_stride};
  const Arrangement k = {key_slices, s.kv_heads, keys, spec.head_dim_qk, p.k_stride};
  const Arrangement v = {key_slices, s.kv_heads, keys, spec.head_dim_v, p.v_stride};
  ATT_CHECK(made->add_input(&made->params_.q, encode(spec.dtype, q.to_device(problem.q))));
  const auto add_cache = [&](const void** pointer, const Arrangement& order,
                             const std::vector<double>& values, const HostScales& scales) {
    const auto elements = stored_elements(values, scales, key_slices, s.kv_heads);
    return made->add_input(pointer, encode(kv_dtype(spec), order.to_device(elements)));
  };
  ATT_CHECK(add_cache(&made->params_.k, k, problem.k, problem.k_scales));
  if (!spec.v_in_k) ATT_CHECK(add_cache(&made->params_.v, v, problem.v, problem.v_scales));
  take_v_from_k(spec, &made->params_);
  ATT_CHECK(made->add_scales(problem));
  ATT_CHECK(made->add_dropout_state(problem.dropout_seed, problem.dropout_offset));
  ATT_CHECK(made->add_tensors(problem));
  ATT_CHECK(made->add_sequences(problem.sequences, problem.pages));
  ATT_CHECK(made->make_outputs());
  return made;
}

Result<std::unique_ptr<DeviceProblem>> DeviceProblem::for_timing(Device& device,
                                                                 const AttentionSpec& spec,
                                                                 const ProblemShape& shape,
                                                                 std::uint64_t seed) {
  // Tensors and scalars do not depend on the head dims; q, k and v are not drawn at full size.
  AttentionSpec narrow = spec;
  narrow.head_dim_qk = narrow.head_dim_v = 1;
  const HostProblem drawn = random_problem(narrow, shape, seed);
  const std::vector<std::byte> pattern = timing_pattern(spec.dtype, seed);

  std::unique_ptr<DeviceProblem> made(new DeviceProblem(device, spec, shape));
  made->set_params(drawn);
  if (spec.softmax_scale.at_launch) {
    made->params_.softmax_scale = static_cast<float>(1 / std::sqrt(spec.head_dim_qk));
  }
  const auto bytes = [&](std::int64_t values, DType dtype) {
    return size(values) * size(element_bytes(dtype));
  };
  const std::vector<std::byte> cached =
      has_scaled_cache(spec) ? timing_pattern(kv_dtype(spec), seed) : pattern;
  const std::int64_t rows =
      is_paged(spec) ? drawn.pages.count * drawn.pages.size : key_rows(spec, shape);
  const std::int64_t keys = rows * shape.kv_heads;
  const DType cache = kv_dtype(spec);
  ATT_CHECK(made->add_pattern(&made->params_.q, bytes(q_values(spec, shape), spec.dtype), pattern));
  ATT_CHECK(made->add_pattern(&made->params_.k, bytes(keys * spec.head_dim_qk, cache), cached));
  if (!spec.v_in_k) {
    ATT_CHECK(made->add_pattern(&made->params_.v, bytes(keys * spec.head_dim_v, cache), cached));
  }
  take_v_from_k(spec, &made->params_);
  ATT_CHECK(made->add_scales(drawn));
  ATT_CHECK(made->add_dropout_state(drawn.dropout_seed, drawn.dropout_offset));
  ATT_CHECK(made->add_tensors(drawn));
  ATT_CHECK(made->add_sequences(drawn.sequences, drawn.pages));
  ATT_CHECK(made->make_outputs());
  return made;
}

Result<std::unique_ptr<DeviceProblem>> DeviceProblem::of_launch(Device& device,
                                                                const AttentionSpec& spec,
                                                                const GivenLaunch& launch) {
  const LaunchFacts& facts = launch.facts();
  std::unique_ptr<DeviceProblem> made(new DeviceProblem(device, spec, facts.shape));
  att::LaunchParams& p = made->params_;
  p = params_of(spec, facts.shape);
  if (is_paged(spec)) set_page_strides(spec, facts.shape, facts.pages.size, &p);
  p.softmax_scale = facts.softmax_scale;
  set_dropout(facts.drop_below, facts.dropout_seed, facts.dropout_offset, &p);
  ATT_CHECK(made->add_dropout_state(facts.dropout_seed, facts.dropout_offset));
  std::ranges::copy(facts.scalars, p.scalars);
  ATT_CHECK(made->add_input(&p.q, launch.bytes(LaunchPart::kQ)));
  ATT_CHECK(made->add_input(&p.k, launch.bytes(LaunchPart::kK)));
  if (!spec.v_in_k) ATT_CHECK(made->add_input(&p.v, launch.bytes(LaunchPart::kV)));
  take_v_from_k(spec, &p);
  for (std::size_t slot = 0; slot < spec.environment.tensors.size(); ++slot) {
    ATT_CHECK(made->add_input(&p.tensors[slot].data, launch.bytes(LaunchPart::kTensor, slot)));
  }
  ATT_CHECK(made->add_sequences(host_sequences(launch), host_pages(launch)));
  ATT_CHECK(made->make_outputs());
  return made;
}

void DeviceProblem::set_params(const HostProblem& problem) {
  params_ = params_of(spec_, shape_);
  if (is_paged(spec_)) set_page_strides(spec_, shape_, problem.pages.size, &params_);
  att::LaunchParams& p = params_;
  p.softmax_scale = static_cast<float>(spec_.softmax_scale.at_launch ? problem.softmax_scale
                                                                     : spec_.softmax_scale.value);
  set_dropout(dropout_drop_below(spec_.dropout.at_launch ? problem.dropout : spec_.dropout.value),
              problem.dropout_seed, problem.dropout_offset, &p);
  for (std::size_t i = 0; i < spec_.environment.scalars.size(); ++i) {
    if (spec_.environment.scalars[i].type == expr::Type::kFloat32) {
      p.scalars[i].as_float = static_cast<float>(problem.scalars[i]);
    } else {
      p.scalars[i].as_int = static_cast<int>(problem.scalars[i]);
    }
  }
}

Status DeviceProblem::add_input(const void** pointer, std::span<const std::byte> bytes) {
  ATT_TRY(DeviceBuffer buffer, DeviceBuffer::make(device_, bytes.size()));
  ATT_CHECK(device_.copy_to_device(buffer.data(), bytes.data(), bytes.size()));
  *pointer = buffer.data();
  inputs_.push_back(std::move(buffer));
  return ok_status();
}

Status DeviceProblem::add_pattern(const void** pointer, std::size_t bytes,
                                  std::span<const std::byte> pattern) {
  ATT_TRY(DeviceBuffer buffer, DeviceBuffer::make(device_, bytes));
  ATT_CHECK(repeat_pattern(device_, buffer.data(), bytes, pattern));
  *pointer = buffer.data();
  inputs_.push_back(std::move(buffer));
  return ok_status();
}

Status DeviceProblem::add_tensors(const HostProblem& problem) {
  for (std::size_t i = 0; i < spec_.environment.tensors.size(); ++i) {
    const expr::TensorValues& values = problem.tensors[i];
    att::TensorArg& tensor = params_.tensors[i];
    ATT_CHECK(add_input(&tensor.data, tensor_bytes(spec_.environment.tensors[i], values.values)));
  }
  return ok_status();
}

Status DeviceProblem::add_dropout_state(std::uint64_t seed, std::uint64_t offset) {
  if (!spec_.seed_on_device) return ok_status();
  const std::uint64_t state[] = {seed, offset};
  const void* data = nullptr;
  ATT_CHECK(add_input(&data, std::as_bytes(std::span(state))));
  set_dropout_state(data, &params_);
  return ok_status();
}

Status DeviceProblem::add_scales(const HostProblem& problem) {
  const auto add = [&](att::CacheScales* to, const HostScales& scales) -> Status {
    if (scales.values.empty()) return ok_status();
    const void* data = nullptr;
    ATT_CHECK(add_input(&data, scale_bytes(scales)));
    *to = {static_cast<const float*>(data), scales.slice_stride, scales.head_stride};
    return ok_status();
  };
  ATT_CHECK(add(&params_.k_scales, problem.k_scales));
  return add(&params_.v_scales, problem.v_scales);
}

Status DeviceProblem::add_sequences(const HostSequences& sequences, const HostPages& pages) {
  sequences_ = sequences;
  const auto add = [&](const int** pointer, const std::vector<std::int32_t>& values) -> Status {
    if (values.empty()) return ok_status();
    const void* data = nullptr;
    ATT_CHECK(add_input(&data, std::as_bytes(std::span(values))));
    *pointer = static_cast<const int*>(data);
    return ok_status();
  };
  att::SequenceList& list = params_.sequences;
  ATT_CHECK(add(&list.cu_q, sequences_.cu_q));
  ATT_CHECK(add(&list.cu_kv, sequences_.cu_kv));
  ATT_CHECK(add(&list.used_q, sequences_.used_q));
  ATT_CHECK(add(&list.used_kv, sequences_.used_kv));
  if (!is_paged(spec_)) return ok_status();
  const int* table = nullptr;
  ATT_CHECK(add(&table, pages.table));
  params_.page_table = page_table_of(table, {pages.per_sequence, pages.size, pages.count});
  return ok_status();
}

Status DeviceProblem::make_outputs() {
  const std::size_t o_bytes = size(o_values(spec_, shape_)) * size(element_bytes(spec_.dtype));
  const std::size_t lse_bytes =
      size(slice_count(spec_, shape_) * shape_.heads * shape_.q_len) * sizeof(float);
  ATT_TRY(o_, OutputBuffer::make(device_, o_bytes));
  ATT_TRY(lse_, OutputBuffer::make(device_, lse_bytes));
  params_.o = o_.data();
  params_.lse = static_cast<float*>(lse_.data());
  return ok_status();
}

Status DeviceProblem::poison() {
  ATT_CHECK(o_.poison());
  return lse_.poison();
}

Status DeviceProblem::check_canaries() {
  ATT_CHECK(device_.synchronize());
  ATT_CHECK(o_.check_canary("o"));
  return lse_.check_canary("lse");
}

Result<HostOutput> DeviceProblem::download(const std::vector<Row>& rows) {
  ATT_CHECK(check_canaries());
  const std::size_t width = size(element_bytes(spec_.dtype));
  const std::size_t all = size(o_values(spec_, shape_));
  // All at once, or the rows one by one where they are few.
  std::vector<std::byte> o(rows.size() * kCopyValues < all ? 0 : all * width);
  std::vector<float> lse(o.empty() ? 0 : lse_.bytes() / sizeof(float));
  if (!o.empty()) {
    ATT_CHECK(device_.copy_to_host(o.data(), o_.data(), o.size()));
    ATT_CHECK(device_.copy_to_host(lse.data(), lse_.data(), lse.size() * sizeof(float)));
  }
  std::vector<std::byte> one(size(spec_.head_dim_v) * width);
  HostOutput output;
  for (const Row& row : rows) {
    const att::Strides& stride = params_.o_stride;
    const bool packed = !sequences_.empty();
    const std::int64_t slice = packed ? 0 : row.b;
    const std::int64_t at = row.q_idx + (packed ? sequences_.q_first(row.b) : 0);
    const auto o_at = size(slice * stride.batch + row.h * stride.head + at * stride.seq) * width;
    const auto lse_at = size((slice * shape_.heads + row.h) * shape_.q_len + at);
    float one_lse = 0;
    if (o.empty()) {
      ATT_CHECK(device_.copy_to_host(one.data(), static_cast<const std::byte*>(o_.data()) + o_at,
                                     one.size()));
      ATT_CHECK(device_.copy_to_host(&one_lse, static_cast<const float*>(lse_.data()) + lse_at,
                                     sizeof one_lse));
    }
    const auto values =
        decode(spec_.dtype, o.empty() ? std::span<const std::byte>(one)
                                      : std::span<const std::byte>(o).subspan(o_at, one.size()));
    output.o.insert(output.o.end(), values.begin(), values.end());
    output.lse.push_back(o.empty() ? one_lse : lse[lse_at]);
  }
  return output;
}

}  // namespace attune
