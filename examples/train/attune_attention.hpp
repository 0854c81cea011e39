// Attention by Attune's kernels.
#pragma once

#include <attune/attune.hpp>
#include <string>

#include "attention.hpp"
#include "shared.hpp"

namespace train {

class AttuneAttention : public Attention<float> {
 public:
  // `device` as attune::RuntimeOptions has it; `memory` is its memory. `spec_file` describes the
  // attention: fp32, of the shape's head dim, with the tensors `doc` and `bias`. Compiles both
  // passes, or takes them from Attune's cache. Throws Error.
  AttuneAttention(Memory& memory, const std::string& device, const std::string& spec_file,
                  const AttentionShape& shape, std::uint64_t seed);

  void forward(const AttentionPass<float>& pass) override;
  void backward(const AttentionPass<float>& pass,
                const AttentionGradients<float>& gradients) override;

  // "x86-64 / 2 threads"; "cpu forward ..., cpu backward ...".
  std::string device() const { return runtime_.device(); }
  std::string plans() const {
    return "plans   " + forward_.plan() + "\n        " + backward_.plan() + "\n";
  }

 private:
  void check_spec() const;
  std::vector<attune::Tensor> tensors(const AttentionPass<float>& pass) const;

  AttentionShape shape_;
  std::uint64_t seed_;
  attune::Shape launch_;
  attune::Runtime runtime_;
  attune::Spec spec_;
  int doc_slot_, bias_slot_;
  attune::Kernel forward_, backward_;
  std::vector<std::int64_t> doc_sizes_, bias_sizes_;
  Array<std::byte> workspace_;
};

}  // namespace train
