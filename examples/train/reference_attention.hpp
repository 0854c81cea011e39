// Attention by its definition, in fp64: what Attune's kernels are compared with. It shares no code
// with them and reads no spec.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.hpp"
#include "dropout.hpp"
#include "shared.hpp"
#include "workers.hpp"

namespace train {

// Reads and writes T, computes in fp64, on the host.
template <typename T>
class ReferenceAttention : public Attention<T> {
 public:
  ReferenceAttention(Memory& memory, Workers& workers, const AttentionShape& shape,
                     std::uint64_t seed);

  void forward(const AttentionPass<T>& pass) override;
  void backward(const AttentionPass<T>& pass, const AttentionGradients<T>& gradients) override;

 private:
  struct Row;
  struct Host;
  Host read(const AttentionPass<T>& pass) const;
  void probabilities(const Host& host, std::size_t b, std::size_t h, std::size_t i, Row& row) const;

  Memory& memory_;
  Workers& workers_;
  AttentionShape shape_;
  Dropout dropout_;
};

extern template class ReferenceAttention<float>;
extern template class ReferenceAttention<double>;

}  // namespace train
