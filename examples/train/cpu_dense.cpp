#include "cpu_dense.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <numbers>

namespace train {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kElements = 4096;  // that are worth a thread
constexpr std::size_t kRowGrain = 16;

}  // namespace

void* HostMemory::allocate(std::size_t bytes) {
  const std::size_t whole = (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment;
  void* data = ::operator new(whole * kAlignment, std::align_val_t{kAlignment});
  std::memset(data, 0, whole * kAlignment);
  return data;
}
void HostMemory::release(void* data) { ::operator delete(data, std::align_val_t{kAlignment}); }
void HostMemory::write(void* to, const void* host, std::size_t bytes) {
  std::memcpy(to, host, bytes);
}
void HostMemory::read(void* host, const void* from, std::size_t bytes) {
  std::memcpy(host, from, bytes);
}
void HostMemory::zero(void* data, std::size_t bytes) { std::memset(data, 0, bytes); }

template <typename T>
void CpuDense<T>::add(std::size_t count, const T* x, T* y) {
  workers_.run(count, kElements, [=](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) y[i] += x[i];
  });
}

// A bf16 is the upper half of a float.
template <typename T>
void CpuDense<T>::to_bf16(std::size_t count, const T* x, std::uint16_t* y) {
  workers_.run(count, kElements, [=](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x[i]));
      const std::uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
      y[i] = static_cast<std::uint16_t>(std::isnan(x[i]) ? bits >> 16 | 0x40 : rounded);
    }
  });
}

template <typename T>
void CpuDense<T>::from_bf16(std::size_t count, const std::uint16_t* x, T* y) {
  workers_.run(count, kElements, [=](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      y[i] = static_cast<T>(std::bit_cast<float>(std::uint32_t{x[i]} << 16));
    }
  });
}

template <typename T>
void CpuDense<T>::rms_norm(std::size_t rows, std::size_t columns, const T* x, const T* gain,
                           T* inverse, T* y) {
  workers_.run(rows, kRowGrain, [=](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      const T* row = x + i * columns;
      T sum = 0;
      for (std::size_t j = 0; j < columns; ++j) sum += row[j] * row[j];
      const T scale = 1 / std::sqrt(sum / static_cast<T>(columns) + static_cast<T>(kNormEpsilon));
      inverse[i] = scale;
      for (std::size_t j = 0; j < columns; ++j) y[i * columns + j] = row[j] * scale * gain[j];
    }
  });
}

template <typename T>
void CpuDense<T>::rms_norm_gradient(std::size_t rows, std::size_t columns, const T* x,
                                    const T* gain, const T* inverse, const T* d_y, T* d_x,
                                    T* d_gain) {
  workers_.run(rows, kRowGrain, [=](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      const T* row = x + i * columns;
      const T* given = d_y + i * columns;
      const T scale = inverse[i];
      T along = 0;
      for (std::size_t j = 0; j < columns; ++j) along += row[j] * gain[j] * given[j];
      along *= scale * scale * scale / static_cast<T>(columns);
      for (std::size_t j = 0; j < columns; ++j) {
        d_x[i * columns + j] += gain[j] * given[j] * scale - row[j] * along;
      }
    }
  });
  workers_.run(columns, kRowGrain, [=](std::size_t first, std::size_t last) {
    std::fill(d_gain + first, d_gain + last, T{0});
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = first; j < last; ++j) {
        d_gain[j] += d_y[i * columns + j] * x[i * columns + j] * inverse[i];
      }
    }
  });
}

template <typename T>
void CpuDense<T>::gelu(std::size_t count, const T* x, T* y) {
  constexpr T kRootHalf = static_cast<T>(1 / std::numbers::sqrt2);
  workers_.run(count, kElements, [=](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) y[i] = x[i] * (1 + std::erf(x[i] * kRootHalf)) / 2;
  });
}

template <typename T>
void CpuDense<T>::gelu_gradient(std::size_t count, const T* x, const T* d_y, T* d_x) {
  constexpr T kRootHalf = static_cast<T>(1 / std::numbers::sqrt2);
  constexpr T kDensity = static_cast<T>(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
  workers_.run(count, kElements, [=](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      const T below = (1 + std::erf(x[i] * kRootHalf)) / 2;
      d_x[i] = d_y[i] * (below + x[i] * kDensity * std::exp(-x[i] * x[i] / 2));
    }
  });
}

template <typename T>
void CpuDense<T>::embed(std::size_t rows, std::size_t columns, const std::int32_t* tokens,
                        const T* table, T* y) {
  for (std::size_t i = 0; i < rows; ++i) {
    std::copy_n(table + static_cast<std::size_t>(tokens[i]) * columns, columns, y + i * columns);
  }
}

template <typename T>
void CpuDense<T>::embed_gradient(std::size_t rows, std::size_t columns, std::size_t vocabulary,
                                 const std::int32_t* tokens, const T* d_y, T* d_table) {
  std::fill_n(d_table, vocabulary * columns, T{0});
  workers_.run(columns, kRowGrain, [=](std::size_t first, std::size_t last) {
    for (std::size_t i = 0; i < rows; ++i) {
      T* to = d_table + static_cast<std::size_t>(tokens[i]) * columns;
      for (std::size_t j = first; j < last; ++j) to[j] += d_y[i * columns + j];
    }
  });
}

template <typename T>
double CpuDense<T>::cross_entropy(std::size_t rows, std::size_t classes,
                                  const std::int32_t* targets, T* logits) {
  std::vector<double> losses(rows);
  workers_.run(rows, kRowGrain, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      T* row = logits + i * classes;
      const auto target = static_cast<std::size_t>(targets[i]);
      const double largest = *std::max_element(row, row + classes);
      double sum = 0;
      for (std::size_t j = 0; j < classes; ++j) sum += std::exp(row[j] - largest);
      losses[i] = std::log(sum) + largest - row[target];
      for (std::size_t j = 0; j < classes; ++j) {
        const double probability = std::exp(row[j] - largest) / sum;
        row[j] = static_cast<T>((probability - (j == target ? 1 : 0)) / static_cast<double>(rows));
      }
    }
  });
  double total = 0;
  for (const double loss : losses) total += loss;
  return total / static_cast<double>(rows);
}

template <typename T>
void CpuDense<T>::adamw(const AdamwStep& step, std::size_t count, const T* gradient, T* parameters,
                        T* first_moment, T* second_moment) {
  const auto beta1 = static_cast<T>(step.beta1), beta2 = static_cast<T>(step.beta2);
  const auto unbias1 = static_cast<T>(1 / (1 - std::pow(step.beta1, step.step)));
  const auto unbias2 = static_cast<T>(1 / (1 - std::pow(step.beta2, step.step)));
  const auto rate = static_cast<T>(step.rate), epsilon = static_cast<T>(step.epsilon);
  const auto kept = static_cast<T>(1 - step.rate * step.decay);
  workers_.run(count, kElements, [=](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      T& mean = first_moment[i];
      T& square = second_moment[i];
      mean = beta1 * mean + (1 - beta1) * gradient[i];
      square = beta2 * square + (1 - beta2) * gradient[i] * gradient[i];
      parameters[i] =
          kept * parameters[i] - rate * (mean * unbias1) / (std::sqrt(square * unbias2) + epsilon);
    }
  });
}

template class CpuDense<float>;
template class CpuDense<double>;

}  // namespace train
