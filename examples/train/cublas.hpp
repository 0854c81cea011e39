// Matrix products by cuBLAS, which is opened at run time.
#pragma once

#include <memory>
#include <string>

#include "dense.hpp"

namespace train {

class Cublas {
 public:
  // Of the current context, on `stream`. Null where there is no cuBLAS; throws Error when it is
  // there and does not start.
  static std::unique_ptr<Cublas> open(void* stream);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  std::string version() const;  // "13.1.0"
  // In fp32. Enqueued; device pointers.
  void multiply(const Product& product, const float* a, const float* b, float* c);

 private:
  struct Api;
  Cublas(std::unique_ptr<Api> api, void* handle);
  std::unique_ptr<Api> api_;
  void* handle_;
};

}  // namespace train
