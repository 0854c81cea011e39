// Attention by Attune's kernels.
#pragma once

#include <attune/attune.hpp>
#include <optional>
#include <string>
#include <vector>

#include "attention.hpp"
#include "dense.hpp"

namespace train {

class AttuneAttention : public Attention<float> {
 public:
  // `device` as attune::RuntimeOptions has it; `dense` works on it and must outlive this. Launches
  // are enqueued on its stream. `spec_file` describes the attention: fp32 or bf16, of the shape's
  // head dim, with the tensors `doc` and `bias`. Compiles both passes, or takes them from Attune's
  // cache. Throws Error.
  AttuneAttention(Dense<float>& dense, const std::string& device, const std::string& spec_file,
                  const AttentionShape& shape, std::uint64_t seed);

  void forward(const AttentionPass<float>& pass) override;
  void backward(const AttentionPass<float>& pass,
                const AttentionGradients<float>& gradients) override;

  // By how much the spec's dtype rounds a number, at most, relative to it.
  double unit() const { return is_bf16_ ? 0x1p-8 : 0x1p-24; }
  // "x86-64 / 2 threads"; "cpu forward ..., cpu backward ...".
  std::string device() const { return runtime_.device(); }
  std::string plans() const {
    return "plans   " + forward_.plan() + "\n        " + backward_.plan() + "\n";
  }

 private:
  // In the spec's dtype, and in columns of one matrix where q, k and v are.
  struct Bf16 {
    Array<std::uint16_t> qkv, o, d_o, d_qkv;
  };
  void check_spec() const;
  std::vector<attune::Tensor> tensors(const AttentionPass<float>& pass) const;
  // `data`, or with bf16 `to` after its elements were written there.
  const void* operand(const float* data, Array<std::uint16_t> Bf16::* to);
  // Where a launch writes `data`: there, or with bf16 to `from`, for finish() to bring it.
  void* result(float* data, Array<std::uint16_t> Bf16::* from);
  void finish(float* data, Array<std::uint16_t> Bf16::* from);
  // Column `column` of a matrix of the spec's dtype.
  template <typename Void>
  Void* at(Void* matrix, std::size_t column) const;

  Dense<float>& dense_;
  AttentionShape shape_;
  std::uint64_t seed_;
  attune::Shape launch_;
  attune::Runtime runtime_;
  attune::Spec spec_;
  int doc_slot_, bias_slot_;
  bool is_bf16_;
  attune::Kernel forward_, backward_;
  std::vector<std::int64_t> doc_sizes_, bias_sizes_;
  Array<std::byte> workspace_;
  std::optional<Bf16> bf16_;  // where the spec is
};

}  // namespace train
