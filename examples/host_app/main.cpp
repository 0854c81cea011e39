// A host application in C++: a spec from a file or from the library, the best kernel known for a
// shape, launches on the caller's memory.
//
//   host_app                              causal, checked against a naive loop
//   host_app models/llama3_8b 2 8192      any spec without auxiliary tensors, batch and length
//
// Exit code: 0 fine, 1 wrong numbers or a failure, 2 bad usage, 3 nothing here to run it on.
#include <algorithm>
#include <attune/attune.hpp>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "../common/device_memory.h"

namespace {

using Bf16 = unsigned short;

int fail(const std::string& what, const attune::Error& error) {
  std::fprintf(stderr, "%s: %s", what.c_str(), error.message.c_str());
  return error.code == ATT_UNAVAILABLE ? 3 : error.code == ATT_BAD_INPUT ? 2 : 1;
}

std::vector<Bf16> random_values(std::size_t count) {
  static std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<Bf16> values(count);
  for (Bf16& value : values) value = to_bf16(normal(random));
  return values;
}

// Device memory with an owner.
class Buffer {
 public:
  Buffer(const device_memory& memory, const void* from, std::size_t bytes)
      : memory_(memory), data_(device_copy_of(&memory, from, bytes)) {}
  ~Buffer() { device_free(&memory_, data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }

 private:
  const device_memory& memory_;
  void* data_;
};

struct Inputs {
  attune::Shape shape;
  int dim_qk, dim_v;
  std::vector<Bf16> q, k, v;  // [batch, length, heads, dim]
};

// Row (b, h, q_idx) of causal attention by the definition.
std::vector<double> naive_causal_row(const Inputs& in, int b, int h, int q_idx) {
  const auto& s = in.shape;
  const auto at = [&](std::int64_t length, std::int64_t heads, std::int64_t i, std::int64_t head,
                      int dim) {
    return static_cast<std::size_t>(((b * length + i) * heads + head) * dim);
  };
  const std::int64_t h_kv = h / (s.heads / s.kv_heads);
  const std::int64_t live = std::min(s.kv_len, q_idx + 1 + s.kv_len - s.q_len);
  std::vector<double> scores;
  for (std::int64_t j = 0; j < live; ++j) {
    double score = 0;
    for (int d = 0; d < in.dim_qk; ++d) {
      score += double{from_bf16(in.q[at(s.q_len, s.heads, q_idx, h, in.dim_qk) + d])} *
               from_bf16(in.k[at(s.kv_len, s.kv_heads, j, h_kv, in.dim_qk) + d]);
    }
    scores.push_back(score / std::sqrt(in.dim_qk));
  }
  const double maximum = *std::max_element(scores.begin(), scores.end());
  std::vector<double> row(static_cast<std::size_t>(in.dim_v));
  double total = 0;
  for (std::int64_t j = 0; j < live; ++j) {
    const double weight = std::exp(scores[static_cast<std::size_t>(j)] - maximum);
    total += weight;
    for (int d = 0; d < in.dim_v; ++d) {
      row[static_cast<std::size_t>(d)] +=
          weight * from_bf16(in.v[at(s.kv_len, s.kv_heads, j, h_kv, in.dim_v) + d]);
    }
  }
  for (double& value : row) value /= total;
  return row;
}

// The worst error of a few rows.
double check(const Inputs& in, const std::vector<Bf16>& o) {
  double worst = 0;
  for (int i = 0; i < 16; ++i) {
    const int b = static_cast<int>(i % in.shape.batch);
    const int h = static_cast<int>(i % in.shape.heads);
    const int q_idx = static_cast<int>(i * 997 % in.shape.q_len);
    const std::vector<double> row = naive_causal_row(in, b, h, q_idx);
    for (int d = 0; d < in.dim_v; ++d) {
      const auto at = ((b * in.shape.q_len + q_idx) * in.shape.heads + h) * in.dim_v + d;
      worst = std::max(worst, std::abs(from_bf16(o[static_cast<std::size_t>(at)]) -
                                       row[static_cast<std::size_t>(d)]));
    }
  }
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "causal";
  const std::int64_t batch = argc > 2 ? std::atoll(argv[2]) : 1;
  const std::int64_t length = argc > 3 ? std::atoll(argv[3]) : 1024;
  const bool is_llama = name.find("llama") != std::string::npos;
  const attune::Shape shape = {batch, is_llama ? 32 : 8, is_llama ? 8 : 2, length, length};

  const device_memory memory = device_memory_open();
  attune::RuntimeOptions options;
  if (!memory.is_gpu) options.device = "cpu";
  auto runtime = attune::Runtime::create(options);
  if (!runtime) return fail("no runtime", runtime.error());
  const auto spec = attune::Spec::from_file(name);
  if (!spec) return fail("bad spec", spec.error());
  const attune::SpecInfo info = spec->info();
  if (info.dtype != ATT_BF16 || info.layout != ATT_BSHD || info.tensor_count > 0 ||
      info.scalar_count > 0) {
    std::fprintf(stderr, "this example takes bf16, bshd specs without launch-time inputs\n");
    return 2;
  }
  const double before = seconds_now();
  const auto kernel = runtime->kernel(*spec, shape);
  if (!kernel) return fail("no kernel", kernel.error());
  std::printf("device  %s\nplan    %s (%s), ready after %.0f ms\n", runtime->device().c_str(),
              kernel->plan().c_str(), kernel->source().c_str(), 1e3 * (seconds_now() - before));

  const auto count = [&](std::int64_t heads, int dim) {
    return static_cast<std::size_t>(batch * length * heads * dim);
  };
  const Inputs in{shape,
                  info.head_dim_qk,
                  info.head_dim_v,
                  random_values(count(shape.heads, info.head_dim_qk)),
                  random_values(count(shape.kv_heads, info.head_dim_qk)),
                  random_values(count(shape.kv_heads, info.head_dim_v))};
  std::vector<Bf16> o(count(shape.heads, info.head_dim_v));
  const Buffer q(memory, in.q.data(), in.q.size() * sizeof(Bf16));
  const Buffer k(memory, in.k.data(), in.k.size() * sizeof(Bf16));
  const Buffer v(memory, in.v.data(), in.v.size() * sizeof(Bf16));
  const Buffer out(memory, nullptr, o.size() * sizeof(Bf16));
  const Buffer workspace(memory, nullptr,
                         std::max<std::size_t>(kernel->workspace_bytes(shape), 16));

  attune::ForwardArgs args;
  args.shape = shape;
  args.q = q.data();
  args.k = k.data();
  args.v = v.data();
  args.o = out.data();
  args.workspace = workspace.data();
  const int launches = memory.is_gpu ? 50 : 3;
  double start = 0;
  for (int i = 0; i <= launches; ++i) {  // the first warms up
    if (const auto status = kernel->forward(args); !status) return fail("launch", status.error());
    if (i == 0) {
      device_wait(&memory);
      start = seconds_now();
    }
  }
  device_wait(&memory);
  const double seconds = (seconds_now() - start) / launches;
  const double flops = 2.0 * static_cast<double>(batch * shape.heads * length * length) *
                       (info.head_dim_qk + info.head_dim_v);
  std::printf("time    %.1f us a launch, %.3g TFLOP/s if nothing were masked\n", 1e6 * seconds,
              1e-12 * flops / seconds);
  if (name != "causal" && !is_llama) return 0;

  device_read(&memory, o.data(), out.data(), o.size() * sizeof(Bf16));
  const double worst = check(in, o);
  // Values of a few units: bf16 rounds them by at most 2^-8, P and O once each.
  const bool right = worst < 0.03;
  std::printf("error   %.1e at most in 16 rows (%s)\n", worst, right ? "right" : "WRONG");
  return right ? 0 : 1;
}
