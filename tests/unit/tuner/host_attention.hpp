// Both passes by the definition, in plain C++ over launch parameters: one head dim, mask: every
// key.
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

#include "runtime/reference/element_bits.hpp"
#include "runtime/reference/oracle.hpp"
#include "templates/params.h"

namespace attune::tuner_testing {

// A matrix of a launch as doubles, in memory's order.
class HostMatrix {
 public:
  HostMatrix(DType dtype, const att::Strides& strides, std::int64_t heads, std::int64_t seq,
             std::int64_t batch, int dim)
      : dtype_(dtype),
        strides_(strides),
        values_(static_cast<std::size_t>(batch * heads * seq * dim)) {}
  void read(const void* from) {
    const std::size_t bytes = values_.size() * static_cast<std::size_t>(element_bytes(dtype_));
    values_ = decode(dtype_, {static_cast<const std::byte*>(from), bytes});
  }
  void write(void* to) const {
    std::vector<double> rounded;
    for (const double value : values_) rounded.push_back(round_to(dtype_, value));
    const std::vector<std::byte> bytes = encode(dtype_, rounded);
    std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(to));
  }
  double* row(int b, int h, int i) {
    return &values_[static_cast<std::size_t>(b * strides_.batch + h * strides_.head +
                                             i * strides_.seq)];
  }

 private:
  DType dtype_;
  att::Strides strides_;
  std::vector<double> values_;
};

class HostAttention {
 public:
  HostAttention(const att::LaunchParams& p, DType dtype, int dim)
      : p_(p),
        dtype_(dtype),
        dim_(dim),
        q_(queries(p.q_stride)),
        k_(keys(p.k_stride)),
        v_(keys(p.v_stride)),
        o_(queries(p.o_stride)) {
    q_.read(p.q);
    k_.read(p.k);
    v_.read(p.v);
  }

  // `fault`: added to the last query's O.
  void forward(double fault) {
    for_each_query([&](int b, int h, int h_kv, int i) {
      std::vector<double> weights;
      double sum = 0;
      for (int j = 0; j < p_.kv_len; ++j) {
        weights.push_back(std::exp(score(b, h, h_kv, i, j)));
        sum += weights.back();
      }
      double* o = o_.row(b, h, i);
      for (int d = 0; d < dim_; ++d) {
        double value = 0;
        for (int j = 0; j < p_.kv_len; ++j)
          value += weights[static_cast<std::size_t>(j)] * v_.row(b, h_kv, j)[d];
        o[d] = value / sum + (i == p_.q_len - 1 ? fault : 0);
      }
      p_.lse[row_at(b, h, i)] = static_cast<float>(std::log(sum));
    });
    o_.write(p_.o);
  }

  // `forgets`: what the last quarter of the queries adds to dK.
  void backward(bool forgets) {
    HostMatrix d_o = queries(p_.d_o_stride), d_q = queries(p_.d_q_stride);
    HostMatrix d_k = keys(p_.d_k_stride), d_v = keys(p_.d_v_stride);
    o_.read(p_.o);
    d_o.read(p_.d_o);
    for_each_query([&](int b, int h, int h_kv, int i) {
      double delta = dot(d_o.row(b, h, i), o_.row(b, h, i));
      if (p_.d_lse != nullptr) delta -= static_cast<double>(p_.d_lse[row_at(b, h, i)]);
      for (int j = 0; j < p_.kv_len; ++j) {
        const double lse = p_.lse[row_at(b, h, i)];
        const double p = std::exp(score(b, h, h_kv, i, j) - lse);
        const double ds = p * (dot(d_o.row(b, h, i), v_.row(b, h_kv, j)) - delta) *
                          static_cast<double>(p_.softmax_scale);
        for (int d = 0; d < dim_; ++d) {
          d_v.row(b, h_kv, j)[d] += p * d_o.row(b, h, i)[d];
          d_q.row(b, h, i)[d] += ds * k_.row(b, h_kv, j)[d];
          if (!forgets || i < p_.q_len * 3 / 4) d_k.row(b, h_kv, j)[d] += ds * q_.row(b, h, i)[d];
        }
      }
    });
    d_q.write(p_.d_q);
    d_k.write(p_.d_k);
    d_v.write(p_.d_v);
  }

 private:
  HostMatrix queries(const att::Strides& strides) const {
    return {dtype_, strides, p_.heads, p_.q_len, p_.batch, dim_};
  }
  HostMatrix keys(const att::Strides& strides) const {
    return {dtype_, strides, p_.kv_heads, p_.kv_len, p_.batch, dim_};
  }
  int row_at(int b, int h, int i) const { return (b * p_.heads + h) * p_.q_len + i; }
  double dot(const double* a, const double* b) const {
    double sum = 0;
    for (int d = 0; d < dim_; ++d) sum += a[d] * b[d];
    return sum;
  }
  double score(int b, int h, int h_kv, int i, int j) {
    return dot(q_.row(b, h, i), k_.row(b, h_kv, j)) * static_cast<double>(p_.softmax_scale);
  }
  void for_each_query(const std::function<void(int, int, int, int)>& f) const {
    for (int b = 0; b < p_.batch; ++b) {
      for (int h = 0; h < p_.heads; ++h) {
        for (int i = 0; i < p_.q_len; ++i) f(b, h, h / (p_.heads / p_.kv_heads), i);
      }
    }
  }

  const att::LaunchParams& p_;
  const DType dtype_;
  const int dim_;
  HostMatrix q_, k_, v_, o_;
};

}  // namespace attune::tuner_testing
