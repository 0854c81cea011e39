// A paged problem on the GPU whose memory a test keeps: to replace its numbers, and to look at the
// workspace.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "runtime/device/device.hpp"
#include "runtime/reference/element_bits.hpp"
#include "runtime/support/problem_layout.hpp"
#include "tests/verification/paged.hpp"

namespace attune::gpu_test {

// A problem whose numbers are replaced in place by those of others of its shape and cache.
class Replayed {
 public:
  Replayed(Device& device, const AttentionSpec& spec, const HostProblem& problem)
      : device_(device), spec_(spec), params_(params_of(spec, problem.shape)) {
    const ProblemShape& s = problem.shape;
    const std::size_t o_values = static_cast<std::size_t>(s.q_len * s.heads * spec.head_dim_v);
    o_bytes_ = o_values * 2;
    lse_bytes_ = static_cast<std::size_t>(s.q_len * s.heads) * sizeof(float);
    const packed::Cache cache = cache_of(problem);
    params_.q = allocate(problem.q.size() * 2);
    params_.k = allocate(cache.k.size());
    params_.v = allocate(cache.v.size());
    params_.o = allocate(o_bytes_);
    params_.lse = static_cast<float*>(allocate(lse_bytes_));
    params_.softmax_scale = static_cast<float>(spec.softmax_scale.value);
    // Host order: heads first.
    params_.q_stride = {0, spec.head_dim_qk, s.q_len * spec.head_dim_qk};
    params_.o_stride = {0, spec.head_dim_v, s.q_len * spec.head_dim_v};
    params_.k_stride = cache.k_stride;
    params_.v_stride = cache.v_stride;
    params_.sequences.cu_q = ints(problem.sequences.cu_q.size());
    params_.sequences.used_kv = ints(problem.sequences.used_kv.size());
    const HostPages& pages = problem.pages;
    params_.page_table =
        page_table_of(ints(pages.table.size()), {pages.per_sequence, pages.size, pages.count});
  }
  ~Replayed() {
    for (void* buffer : buffers_) device_.free(buffer);
  }
  Replayed(const Replayed&) = delete;
  Replayed& operator=(const Replayed&) = delete;

  const att::LaunchParams& params() const { return params_; }
  void* allocate(std::size_t bytes) {
    buffers_.push_back(*device_.allocate(bytes));
    EXPECT_TRUE(device_.fill(buffers_.back(), 0xFF, bytes).ok());
    return buffers_.back();
  }
  void put(const HostProblem& problem) {
    const packed::Cache cache = cache_of(problem);
    copy(params_.q, encode(spec_.dtype, problem.q));
    copy(params_.k, cache.k);
    copy(params_.v, cache.v);
    put_sequences(problem);
  }
  // Its lengths and tables alone.
  void put_sequences(const HostProblem& problem) {
    copy(params_.sequences.cu_q, std::as_bytes(std::span(problem.sequences.cu_q)));
    copy(params_.sequences.used_kv, std::as_bytes(std::span(problem.sequences.used_kv)));
    copy(params_.page_table.entries, std::as_bytes(std::span(problem.pages.table)));
    spoil_outputs(params_);
  }
  // The same launch with outputs of its own.
  att::LaunchParams twin() {
    att::LaunchParams params = params_;
    params.o = allocate(o_bytes_);
    params.lse = static_cast<float*>(allocate(lse_bytes_));
    return params;
  }
  void spoil_outputs(const att::LaunchParams& params) {
    EXPECT_TRUE(device_.fill(params.o, 0xFF, o_bytes_).ok());
    EXPECT_TRUE(device_.fill(params.lse, 0xFF, lse_bytes_).ok());
    EXPECT_TRUE(device_.synchronize().ok());
  }
  // O and LSE of the launch, or of its twin, bit by bit.
  std::vector<std::byte> outputs(const att::LaunchParams& params) {
    std::vector<std::byte> bytes(o_bytes_ + lse_bytes_);
    EXPECT_TRUE(device_.synchronize().ok());
    EXPECT_TRUE(device_.copy_to_host(bytes.data(), params.o, o_bytes_).ok());
    EXPECT_TRUE(device_.copy_to_host(&bytes[o_bytes_], params.lse, lse_bytes_).ok());
    return bytes;
  }
  HostOutput rows(const HostProblem& problem, const std::vector<Row>& rows) {
    const std::vector<std::byte> bytes = outputs(params_);
    const std::size_t row_bytes = static_cast<std::size_t>(spec_.head_dim_v) * 2;
    HostOutput output;
    for (const Row& row : rows) {
      const auto at = static_cast<std::size_t>(row.h * problem.shape.q_len +
                                               problem.sequences.q_first(row.b) + row.q_idx);
      const auto values = decode(spec_.dtype, std::span(bytes).subspan(at * row_bytes, row_bytes));
      output.o.insert(output.o.end(), values.begin(), values.end());
      float one = 0;
      std::memcpy(&one, &bytes[o_bytes_ + at * sizeof one], sizeof one);
      output.lse.push_back(one);
    }
    return output;
  }

 private:
  packed::Cache cache_of(const HostProblem& problem) const {
    return paged::cache_in(paged::CacheOrder::kTokensFirst, spec_, problem);
  }
  int* ints(std::size_t count) { return static_cast<int*>(allocate(count * sizeof(int))); }
  void copy(const void* to, std::span<const std::byte> bytes) {
    EXPECT_TRUE(device_.copy_to_device(const_cast<void*>(to), bytes.data(), bytes.size()).ok());
  }

  Device& device_;
  const AttentionSpec& spec_;
  att::LaunchParams params_;
  std::size_t o_bytes_ = 0, lse_bytes_ = 0;
  std::vector<void*> buffers_;
};

}  // namespace attune::gpu_test
