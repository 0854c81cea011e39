// Attention of a step by Attune's kernels: a launch that brings keys and values into the cache, and
// one of attention, for all sequences.
#pragma once

#include <attune/attune.hpp>
#include <string>

#include "batch.hpp"
#include "cache.hpp"
#include "shared.hpp"
#include "weights.hpp"

namespace serve {

class PagedAttention {
 public:
  // `device` as attune::RuntimeOptions has it; `memory` is its memory. `spec_file` describes the
  // attention: fp32, paged, of the model's head dim, with the tensor `sees` of attention.yaml.
  // Compiles the kernel, or takes it from Attune's cache. Throws Error.
  PagedAttention(Memory& memory, const std::string& device, const std::string& spec_file,
                 const ModelShape& model, const CacheShape& cache, const Capacity& capacity);

  // The tables of the step, for all layers.
  void begin(const Batch& batch);
  // Turns queries and keys in qkv [capacity.rows, qkv_columns] by their rows' positions (RoPE), and
  // puts keys and values where a layer in `cache` has them. Throws Error.
  void append(std::size_t layer, float* qkv, float* cache);
  // o [capacity.rows, q_columns] of the queries in qkv [capacity.rows, qkv_columns], on keys and
  // values of a layer in `cache`. Rows that no sequence has are left as they are. Throws Error.
  void forward(std::size_t layer, const float* qkv, const float* cache, float* o);

  std::string device() const { return runtime_.device(); }
  std::string plan() const { return kernel_.plan(); }

 private:
  void check_spec() const;

  ModelShape model_;
  CacheShape cache_;
  Capacity capacity_;
  Memory& memory_;
  attune::Shape launch_;
  attune::Runtime runtime_;
  attune::Spec spec_;
  attune::Kernel kernel_;
  attune::AppendKernel append_;
  std::vector<std::int64_t> sees_sizes_;
  Array<std::int32_t> cu_q_, used_kv_, page_table_, positions_;
  Array<std::uint8_t> sees_;
  Array<std::byte> workspace_;
};

}  // namespace serve
