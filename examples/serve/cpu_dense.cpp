// The model's operations on one core: loops, as the model is small.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <numbers>

#include "dense.hpp"

namespace serve {
namespace {

class HostMemory : public Memory {
 public:
  void* allocate(std::size_t bytes) override {
    void* data = ::operator new(std::max<std::size_t>(bytes, 1), kAlignment);
    std::memset(data, 0, bytes);
    return data;
  }
  void release(void* data) override { ::operator delete(data, kAlignment); }
  void write(void* to, const void* host, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, host, bytes);
  }
  void read(void* host, const void* from, std::size_t bytes) override { write(host, from, bytes); }
  void zero(void* data, std::size_t bytes) override { std::memset(data, 0, bytes); }

 private:
  static constexpr std::align_val_t kAlignment{64};
};

class CpuDense : public Dense {
 public:
  Memory& memory() override { return memory_; }

  void embed(std::size_t rows, std::size_t columns, const std::int32_t* tokens, const float* table,
             float* y) override {
    for (std::size_t i = 0; i < rows; ++i) {
      std::copy_n(table + static_cast<std::size_t>(tokens[i]) * columns, columns, y + i * columns);
    }
  }

  void rms_norm(std::size_t rows, std::size_t columns, const float* x, float* y) override {
    for (std::size_t i = 0; i < rows; ++i, x += columns, y += columns) {
      float squares = 0;
      for (std::size_t j = 0; j < columns; ++j) squares += x[j] * x[j];
      const float inverse = 1 / std::sqrt(squares / static_cast<float>(columns));
      for (std::size_t j = 0; j < columns; ++j) y[j] = x[j] * inverse;
    }
  }

  void multiply(std::size_t rows, std::size_t in, std::size_t out, const float* x, const float* w,
                float* y, bool adds) override {
    for (std::size_t i = 0; i < rows; ++i, x += in, y += out) {
      if (!adds) std::fill_n(y, out, 0.0F);
      for (std::size_t k = 0; k < in; ++k) {
        for (std::size_t j = 0; j < out; ++j) y[j] += x[k] * w[k * out + j];
      }
    }
  }

  void gelu(std::size_t count, float* x) override {
    for (std::size_t i = 0; i < count; ++i) {
      x[i] *= (1 + std::erf(x[i] / std::numbers::sqrt2_v<float>)) / 2;
    }
  }

  void move(std::size_t count, std::size_t from, std::size_t to, float* x) override {
    std::copy_n(x + from, count, x + to);
  }

  std::vector<Choice> choose(std::size_t rows, std::size_t columns, const float* logits) override {
    std::vector<Choice> chosen;
    for (std::size_t i = 0; i < rows; ++i, logits += columns) {
      const float* best = std::max_element(logits, logits + columns);
      chosen.push_back({static_cast<std::int32_t>(best - logits), *best});
    }
    return chosen;
  }

 private:
  HostMemory memory_;
};

}  // namespace

std::unique_ptr<Dense> make_dense(const std::string& device) {
  if (device == "cpu") return std::make_unique<CpuDense>();
  throw Error(Exit::kBadInput, "--device is cpu, there is no model for " + device + " yet");
}

}  // namespace serve
