#include "cpu_product.hpp"

#include <algorithm>
#include <cstring>

namespace train {
namespace {

constexpr std::size_t kVectorBytes = 32;
constexpr std::size_t kBlockRows = 6;  // times two vectors: sums that 16 registers hold

template <typename T>
struct Vectors {
  typedef T Vector __attribute__((vector_size(kVectorBytes)));
  static constexpr std::size_t kLanes = kVectorBytes / sizeof(T);
  static constexpr std::size_t kColumns = 2 * kLanes;
};

// c[Rows, columns] = a panel; a's element (row, k) is a[row * row_step + k * k_step].
template <typename T, std::size_t Rows>
void block(std::size_t k, const T* a, std::size_t row_step, std::size_t k_step, const T* panel,
           T* c, std::size_t c_step, std::size_t columns) {
  using Vector = typename Vectors<T>::Vector;
  constexpr std::size_t kLanes = Vectors<T>::kLanes;
  Vector sums[Rows][2] = {};
  for (std::size_t i = 0; i < k; ++i) {
    Vector left, right;  // panels are aligned to their elements only
    std::memcpy(&left, panel + i * 2 * kLanes, sizeof left);
    std::memcpy(&right, panel + (i * 2 + 1) * kLanes, sizeof right);
    for (std::size_t r = 0; r < Rows; ++r) {
      const T factor = a[r * row_step + i * k_step];
      sums[r][0] += factor * left;
      sums[r][1] += factor * right;
    }
  }
  for (std::size_t r = 0; r < Rows; ++r) std::memcpy(c + r * c_step, sums[r], columns * sizeof(T));
}

}  // namespace

template <typename T>
void CpuProduct<T>::pack(const Product& product, const T* b) {
  constexpr std::size_t kColumns = Vectors<T>::kColumns;
  const std::size_t panels = (product.n + kColumns - 1) / kColumns;
  panels_.resize(panels * product.k * kColumns);
  const std::size_t k_step = product.b_transposed ? 1 : product.n;
  const std::size_t column_step = product.b_transposed ? product.k : 1;
  workers_.run(panels, 1, [&](std::size_t first, std::size_t last) {
    for (std::size_t panel = first; panel < last; ++panel) {
      T* to = &panels_[panel * product.k * kColumns];
      const std::size_t columns = std::min(kColumns, product.n - panel * kColumns);
      for (std::size_t i = 0; i < product.k; ++i, to += kColumns) {
        const T* from = b + i * k_step + panel * kColumns * column_step;
        for (std::size_t j = 0; j < columns; ++j) to[j] = from[j * column_step];
        std::fill(to + columns, to + kColumns, T{0});
      }
    }
  });
}

template <typename T>
void CpuProduct<T>::run(const Product& product, const T* a, const T* b, T* c) {
  constexpr std::size_t kColumns = Vectors<T>::kColumns;
  pack(product, b);
  const auto [m, n, k, a_transposed, b_transposed] = product;
  const std::size_t row_step = a_transposed ? 1 : k;
  const std::size_t k_step = a_transposed ? m : 1;
  workers_.run(m, kBlockRows, [&](std::size_t first, std::size_t last) {
    for (std::size_t column = 0; column < n; column += kColumns) {
      const T* panel = &panels_[column * k];
      const std::size_t columns = std::min(kColumns, n - column);
      std::size_t row = first;
      for (; row + kBlockRows <= last; row += kBlockRows) {
        block<T, kBlockRows>(k, a + row * row_step, row_step, k_step, panel, c + row * n + column,
                             n, columns);
      }
      for (; row < last; ++row) {
        block<T, 1>(k, a + row * row_step, row_step, k_step, panel, c + row * n + column, n,
                    columns);
      }
    }
  });
}

template class CpuProduct<float>;
template class CpuProduct<double>;

}  // namespace train
