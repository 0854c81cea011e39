#include "cublas.hpp"

#include <utility>

#include "opened_library.hpp"

namespace train {
namespace {

void check(int status, const char* call) {
  if (status == 0) return;
  throw Error(Exit::kFailed, std::string(call) + " failed with cuBLAS' status " +
                                 std::to_string(status) + "; --products own does without it");
}

}  // namespace

// What the example calls of cuBLAS' C interface (NVIDIA's cublas_v2.h); results are
// cublasStatus_t, operations cublasOperation_t.
struct Cublas::Api {
  int (*create)(void** handle);
  int (*destroy)(void* handle);
  int (*get_version)(void* handle, int*);
  int (*set_stream)(void* handle, void* stream);
  int (*sgemm)(void* handle, int a_operation, int b_operation, int m, int n, int k,
               const float* alpha, const float* a, int a_step, const float* b, int b_step,
               const float* beta, float* c, int c_step);
};

std::unique_ptr<Cublas> Cublas::open(void* stream) {
  const OpenedLibrary library(cuda_library_names("libcublas"));
  if (!library.is_open()) return nullptr;
  auto api = std::make_unique<Api>();
  library.bind(api->create, "cublasCreate_v2");
  library.bind(api->destroy, "cublasDestroy_v2");
  library.bind(api->get_version, "cublasGetVersion_v2");
  library.bind(api->set_stream, "cublasSetStream_v2");
  library.bind(api->sgemm, "cublasSgemm_v2");
  void* handle = nullptr;
  check(api->create(&handle), "cublasCreate");
  std::unique_ptr<Cublas> cublas(new Cublas(std::move(api), handle));
  check(cublas->api_->set_stream(handle, stream), "cublasSetStream");
  return cublas;
}

Cublas::Cublas(std::unique_ptr<Api> api, void* handle) : api_(std::move(api)), handle_(handle) {}
Cublas::~Cublas() { api_->destroy(handle_); }

std::string Cublas::version() const {
  int version = 0;  // 130100
  check(api_->get_version(handle_, &version), "cublasGetVersion");
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// cuBLAS' matrices are column-major: what it reads there is the transpose of ours, and c' = b' a'.
void Cublas::multiply(const Product& product, const float* a, const float* b, float* c) {
  constexpr int kAsItLies = 0, kTransposed = 1;
  const float one = 1, zero = 0;
  const auto of = [](std::size_t size) { return static_cast<int>(size); };
  const auto [m, n, k, a_transposed, b_transposed] = product;
  check(api_->sgemm(handle_, b_transposed ? kTransposed : kAsItLies,
                    a_transposed ? kTransposed : kAsItLies, of(n), of(m), of(k), &one, b,
                    of(b_transposed ? k : n), a, of(a_transposed ? m : k), &zero, c, of(n)),
        "cublasSgemm");
}

}  // namespace train
