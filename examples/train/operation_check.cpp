#include "operation_check.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "cpu_dense.hpp"

namespace train {
namespace {

// Rows that are dealt to several blocks, and columns that are no multiple of a warp.
constexpr std::size_t kRows = 333, kColumns = 72, kVocabulary = 92;
// Of a result's norm: 2^-24 times the root of the thousand roundings of the longest sum, and a
// margin of five.
constexpr double kLimit = 1e-5;

// The same numbers on the device and in fp64.
struct Both {
  Array<float> device;
  Array<double> exact;
};

class Check {
 public:
  Check(Dense<float>& dense, Workers& workers) : dense_(dense), exact_(workers) {}

  bool run() {
    elements();
    norms();
    products();
    tokens();
    optimiser();
    return is_right_;
  }

 private:
  Both make(std::size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(random_.normal());
    Both both{Array<float>(dense_.memory(), count), Array<double>(exact_.memory(), count)};
    both.device.write(values);
    both.exact.write({values.begin(), values.end()});
    return both;
  }
  Array<std::int32_t> copy(Memory& memory, const std::vector<std::int32_t>& values) {
    Array<std::int32_t> array(memory, values.size());
    array.write(values);
    return array;
  }
  void report(const char* name, double apart, double limit) {
    const bool holds = apart <= limit;  // which NaN does not
    is_right_ = is_right_ && holds;
    std::printf("%-28s %10.1e%s\n", name, apart, holds ? "" : "  WRONG");
  }
  void compare(const char* name, const Both& both) {
    const std::vector<float> found = both.device.read();
    const std::vector<double> exact = both.exact.read();
    double apart = 0, size = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      apart += std::pow(found[i] - exact[i], 2);
      size += std::pow(exact[i], 2);
    }
    report(name, std::sqrt(apart / size), kLimit);
  }

  void elements() {
    constexpr std::size_t kCount = kRows * kColumns;
    Both x = make(kCount), y = make(kCount), z = make(kCount);
    dense_.add(kCount, x.device.data(), y.device.data());
    exact_.add(kCount, x.exact.data(), y.exact.data());
    compare("add", y);
    dense_.gelu(kCount, x.device.data(), z.device.data());
    exact_.gelu(kCount, x.exact.data(), z.exact.data());
    compare("gelu", z);
    dense_.gelu_gradient(kCount, x.device.data(), y.device.data(), y.device.data());
    exact_.gelu_gradient(kCount, x.exact.data(), y.exact.data(), y.exact.data());
    compare("gelu_gradient", y);

    // There is one right result, to the bit; the first numbers are a tie, another, and no number.
    std::vector<float> values = x.device.read();
    values[0] = 1 + 0x1p-8f, values[1] = 1 + 0x3p-8f, values[2] = NAN, values[3] = -HUGE_VALF;
    x.device.write(values);
    x.exact.write({values.begin(), values.end()});
    Array<std::uint16_t> found(dense_.memory(), kCount), exact(exact_.memory(), kCount);
    dense_.to_bf16(kCount, x.device.data(), found.data());
    exact_.to_bf16(kCount, x.exact.data(), exact.data());
    report("to_bf16", found.read() == exact.read() ? 0 : 1, 0);
    const std::vector<std::uint16_t> whole(kCount, 0xC049);
    found.write(whole);
    dense_.from_bf16(kCount, found.data(), x.device.data());
    report("from_bf16", x.device.read() == std::vector<float>(kCount, -3.140625f) ? 0 : 1, 0);
  }

  void norms() {
    Both x = make(kRows * kColumns), gain = make(kColumns), inverse = make(kRows);
    Both y = make(kRows * kColumns), d_y = make(kRows * kColumns), d_x = make(kRows * kColumns);
    Both d_gain = make(kColumns);
    dense_.rms_norm(kRows, kColumns, x.device.data(), gain.device.data(), inverse.device.data(),
                    y.device.data());
    exact_.rms_norm(kRows, kColumns, x.exact.data(), gain.exact.data(), inverse.exact.data(),
                    y.exact.data());
    compare("rms_norm", y);
    compare("rms_norm, inverse", inverse);
    dense_.rms_norm_gradient(kRows, kColumns, x.device.data(), gain.device.data(),
                             inverse.device.data(), d_y.device.data(), d_x.device.data(),
                             d_gain.device.data());
    exact_.rms_norm_gradient(kRows, kColumns, x.exact.data(), gain.exact.data(),
                             inverse.exact.data(), d_y.exact.data(), d_x.exact.data(),
                             d_gain.exact.data());
    compare("rms_norm_gradient", d_x);
    compare("rms_norm_gradient, gain", d_gain);
  }

  void products() {
    // The third has more than one step of the sum for each block of 132 processors.
    for (const auto& [m, n, k] : {std::array<std::size_t, 3>{kRows, kColumns, 100},
                                  {kColumns, 130, kRows},
                                  {64, 64, 5000},
                                  {1, 1, 1}}) {
      for (const bool a_transposed : {false, true}) {
        for (const bool b_transposed : {false, true}) {
          Both a = make(m * k), b = make(k * n), c = make(m * n);
          const Product product{m, n, k, a_transposed, b_transposed};
          dense_.multiply(product, a.device.data(), b.device.data(), c.device.data());
          exact_.multiply(product, a.exact.data(), b.exact.data(), c.exact.data());
          char name[64];
          std::snprintf(name, sizeof name, "multiply %zu %zu %zu %s%s", m, n, k,
                        a_transposed ? "t" : "n", b_transposed ? "t" : "n");
          compare(name, c);
        }
      }
    }
  }

  void tokens() {
    std::vector<std::int32_t> values(kRows);
    for (std::int32_t& value : values) {
      value = static_cast<std::int32_t>(random_.below(kVocabulary));
    }
    const Array<std::int32_t> device = copy(dense_.memory(), values);
    const Array<std::int32_t> host = copy(exact_.memory(), values);
    Both table = make(kVocabulary * kColumns), y = make(kRows * kColumns);
    dense_.embed(kRows, kColumns, device.data(), table.device.data(), y.device.data());
    exact_.embed(kRows, kColumns, host.data(), table.exact.data(), y.exact.data());
    compare("embed", y);
    dense_.embed_gradient(kRows, kColumns, kVocabulary, device.data(), y.device.data(),
                          table.device.data());
    exact_.embed_gradient(kRows, kColumns, kVocabulary, host.data(), y.exact.data(),
                          table.exact.data());
    compare("embed_gradient", table);
    Both logits = make(kRows * kVocabulary);
    const double found =
        dense_.cross_entropy(kRows, kVocabulary, device.data(), logits.device.data());
    const double exact = exact_.cross_entropy(kRows, kVocabulary, host.data(), logits.exact.data());
    report("cross_entropy", std::abs(found - exact) / exact, kLimit);
    compare("cross_entropy, gradient", logits);
  }

  void optimiser() {
    constexpr std::size_t kCount = 1000;
    Both gradient = make(kCount), parameters = make(kCount), first = make(kCount);
    Both second = make(kCount);
    // Squares, as second moments are.
    std::vector<float> squares = second.device.read();
    for (float& value : squares) value *= value;
    second.device.write(squares);
    second.exact.write({squares.begin(), squares.end()});
    const AdamwStep step{
        .rate = 0.1, .decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .step = 3};
    dense_.adamw(step, kCount, gradient.device.data(), parameters.device.data(),
                 first.device.data(), second.device.data());
    exact_.adamw(step, kCount, gradient.exact.data(), parameters.exact.data(), first.exact.data(),
                 second.exact.data());
    compare("adamw", parameters);
    compare("adamw, first moment", first);
    compare("adamw, second moment", second);
  }

  Dense<float>& dense_;
  CpuDense<double> exact_;
  Random random_{1};
  bool is_right_ = true;
};

}  // namespace

bool check_operations(Dense<float>& dense, Workers& workers) {
  const bool is_right = Check(dense, workers).run();
  std::printf("operations on %s against fp64: %.0e of the norm allowed (%s)\n",
              dense.device().c_str(), kLimit, is_right ? "right" : "WRONG");
  return is_right;
}

}  // namespace train
