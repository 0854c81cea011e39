// Matrix products on the CPU's cores.
#pragma once

#include <vector>

#include "dense.hpp"
#include "workers.hpp"

namespace train {

// Sums of an element run over k in order, whatever the number of threads: the same bits each time.
template <typename T>
class CpuProduct {
 public:
  explicit CpuProduct(Workers& workers) : workers_(workers) {}
  void run(const Product& product, const T* a, const T* b, T* c);

 private:
  void pack(const Product& product, const T* b);

  Workers& workers_;
  std::vector<T> panels_;  // b in panels of a few columns, each [k, columns], zeros behind the last
};

extern template class CpuProduct<float>;
extern template class CpuProduct<double>;

}  // namespace train
