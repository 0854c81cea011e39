#include "oracle.hpp"

#include <algorithm>
#include <cmath>
#include <complex>

namespace serve {
namespace {

using Vector = std::vector<double>;

Vector normed(const Vector& x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  Vector y = x;
  for (double& value : y) value /= std::sqrt(squares / static_cast<double>(x.size()));
  return y;
}

Vector product(const Vector& x, const std::vector<float>& w) {
  Vector y(w.size() / x.size());
  auto of = w.begin();
  for (const double value : x) {
    for (double& sum : y) sum += value * *of++;
  }
  return y;
}

void add(const Vector& x, Vector& y) {
  for (std::size_t i = 0; i < x.size(); ++i) y[i] += x[i];
}

// Elements i and i + dim / 2 are one complex number, which turns with the position.
void rotate(std::size_t position, std::size_t dim, double* x) {
  for (std::size_t i = 0; i < dim / 2; ++i) {
    const double angle =
        static_cast<double>(position) *
        std::exp(-std::log(10000.0) * 2 * static_cast<double>(i) / static_cast<double>(dim));
    const std::complex<double> turned =
        std::complex<double>(x[i], x[i + dim / 2]) * std::polar(1.0, angle);
    x[i] = turned.real();
    x[i + dim / 2] = turned.imag();
  }
}

// Of the query rows[last] of one head: over the keys of rows 0 to last.
void attend(const ModelShape& shape, const std::vector<Vector>& rows, std::size_t last,
            std::size_t head, double* o) {
  const std::size_t dim = shape.head_dim;
  const std::size_t kv = head / (shape.heads / shape.kv_heads) * dim;
  const std::size_t k = shape.q_columns() + kv, v = k + shape.kv_columns();
  Vector p(last + 1);
  for (std::size_t i = 0; i <= last; ++i) {
    for (std::size_t d = 0; d < dim; ++d) p[i] += rows[last][head * dim + d] * rows[i][k + d];
    p[i] /= std::sqrt(static_cast<double>(dim));
  }
  const double largest = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& value : p) sum += value = std::exp(value - largest);
  for (std::size_t i = 0; i <= last; ++i) {
    for (std::size_t d = 0; d < dim; ++d) o[d] += p[i] / sum * rows[i][v + d];
  }
}

}  // namespace

// Of each token, [tokens, vocabulary].
std::vector<double> Oracle::logits(const std::vector<std::int32_t>& tokens) const {
  const ModelShape& shape = weights_.shape;
  std::vector<Vector> x;
  for (const std::int32_t token : tokens) {
    const auto row = weights_.embedding.begin() + token * static_cast<std::ptrdiff_t>(shape.width);
    x.emplace_back(row, row + static_cast<std::ptrdiff_t>(shape.width));
  }
  for (const Weights::Layer& layer : weights_.layers) {
    std::vector<Vector> qkv;
    for (std::size_t i = 0; i < x.size(); ++i) {
      qkv.push_back(product(normed(x[i]), layer.qkv));
      for (std::size_t head = 0; head < shape.heads + shape.kv_heads; ++head) {
        rotate(i, shape.head_dim, &qkv[i][head * shape.head_dim]);
      }
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      Vector o(shape.q_columns());
      for (std::size_t head = 0; head < shape.heads; ++head) {
        attend(shape, qkv, i, head, &o[head * shape.head_dim]);
      }
      add(product(o, layer.out), x[i]);
      Vector up = product(normed(x[i]), layer.up);
      for (double& value : up) value *= std::erfc(-value / std::sqrt(2.0)) / 2;
      add(product(up, layer.down), x[i]);
    }
  }
  std::vector<double> all;
  for (const Vector& row : x) {
    const Vector of_row = product(normed(row), weights_.head);
    all.insert(all.end(), of_row.begin(), of_row.end());
  }
  return all;
}

std::string Oracle::check(const Request& request) {
  const std::vector<double> all = logits(request.tokens);
  const auto columns = static_cast<std::ptrdiff_t>(weights_.shape.vocabulary);
  for (std::size_t i = request.prompt; i < request.tokens.size(); ++i) {
    const auto row = all.begin() + static_cast<std::ptrdiff_t>(i - 1) * columns;
    const auto best = std::max_element(row, row + columns);
    const double found = request.logits[i - request.prompt];
    const double exact = row[request.tokens[i]];
    const double apart = std::abs(found - exact);
    apart_ = std::max(apart_, apart);
    // False for what is not a number.
    const bool holds = apart <= kTolerance && *best - exact <= kTolerance;
    if (!holds) {
      return "token " + std::to_string(i) + " is " + std::to_string(request.tokens[i]) +
             " with logit " + std::to_string(found) + ", the oracle's is " +
             std::to_string(best - row) + " with " + std::to_string(*best);
    }
  }
  return "";
}

}  // namespace serve
