// Memory that the model computes in: the host's, or a device's behind the same few calls.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace examples {

// One thread at a time. Everything throws std::exception's children when there is no memory left.
class Memory {
 public:
  virtual ~Memory() = default;
  // 64-byte aligned, zero.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data) = 0;
  virtual void write(void* to, const void* host, std::size_t bytes) = 0;
  virtual void read(void* host, const void* from, std::size_t bytes) = 0;
  virtual void zero(void* data, std::size_t bytes) = 0;
};

// `count` elements with an owner, zero at first. The Memory must outlive it.
template <typename T>
class Array {
 public:
  Array(Memory& memory, std::size_t count)
      : memory_(&memory),
        count_(count),
        data_(static_cast<T*>(memory.allocate(count * sizeof(T)))) {}
  ~Array() {
    if (data_ != nullptr) memory_->release(data_);
  }
  Array(Array&& other) noexcept
      : memory_(other.memory_), count_(other.count_), data_(std::exchange(other.data_, nullptr)) {}
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  Array& operator=(Array&&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return count_; }
  void zero() { memory_->zero(data_, count_ * sizeof(T)); }
  // `values` has size() elements.
  void write(const std::vector<T>& values) {
    memory_->write(data_, values.data(), count_ * sizeof(T));
  }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    memory_->read(values.data(), data_, count_ * sizeof(T));
    return values;
  }

 private:
  Memory* memory_;
  std::size_t count_;
  T* data_;
};

}  // namespace examples
