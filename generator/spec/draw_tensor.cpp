#include "generator/spec/draw_tensor.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "generator/spec/shape.hpp"

namespace attune {
namespace {

using Random = std::mt19937_64;

constexpr double kRun = 8;  // elements of neighbours that are alike, where a sample is skewed

// Along the last dim, of which tensors are made row by row.
using Row = std::span<double>;

std::int64_t whole_between(double low, double high, Random& random) {
  return std::uniform_int_distribution<std::int64_t>(std::llround(low), std::llround(high))(random);
}

bool is_true(double share, Random& random) { return std::bernoulli_distribution(share)(random); }

// Between both, three in four in the lower half.
double skewed_between(double low, double high, Random& random) {
  const double share = std::uniform_real_distribution<double>(0, 1)(random);
  return low + (high - low) * share * share * share;
}

double uniform(const expr::TensorDecl& tensor, const Sample& sample, Random& random) {
  const auto [low, high] = sample.arguments;
  if (sample.skewed) return skewed_between(low, high, random);
  if (tensor.type == expr::TensorType::kInt32)
    return static_cast<double>(whole_between(low, high, random));
  return low < high ? std::uniform_real_distribution<double>(low, high)(random) : low;
}

// Numbers of segments whose mean length is `mean`. Skewed: of a fourth it is three times as much,
// of the others a third.
void draw_segments(Row row, double mean, bool skewed, Random& random) {
  const auto of_segment = [&] {
    return !skewed ? mean : is_true(0.25, random) ? 3 * mean : std::max(1.0, mean / 3);
  };
  double segment = 0, own_mean = of_segment();
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (i > 0 && is_true(std::min(1.0, 1 / own_mean), random)) {
      ++segment;
      own_mean = of_segment();
    }
    row[i] = segment;
  }
}

// Neighbours have the same value: the first one's of each of the runs, `length` long on average.
void repeat_neighbours(Row row, double length, Random& random) {
  for (std::size_t i = 1; i < row.size(); ++i) {
    if (!is_true(1 / length, random)) row[i] = row[i - 1];
  }
}

// 0 to n - 1. Skewed: every other one is in its place.
void draw_permutation(Row row, bool skewed, Random& random) {
  std::iota(row.begin(), row.end(), 0.0);
  if (!skewed) {
    std::ranges::shuffle(row, random);
    return;
  }
  std::vector<double> moved;
  for (std::size_t i = 0; i < row.size(); i += 2) moved.push_back(row[i]);
  std::ranges::shuffle(moved, random);
  for (std::size_t i = 0; i < row.size(); i += 2) row[i] = moved[i / 2];
}

// The parent of every node of a random tree in preorder, the root's -1: a node has no child with
// probability 1 - 1 / branch, else `branch` on average, all below one root. Skewed: a node that has
// none is followed by a child of any of those above it, so that a few nodes have many.
std::vector<std::int64_t> draw_parents(std::size_t nodes, double branch, bool skewed,
                                       Random& random) {
  std::bernoulli_distribution descends(1 / branch);
  std::vector<std::int64_t> parents(nodes, -1), path;
  for (std::size_t node = 1; node < nodes; ++node) {
    auto parent = static_cast<std::int64_t>(node) - 1;
    if (skewed) {
      path.push_back(parent);
      if (!descends(random))
        path.resize(std::uniform_int_distribution<std::size_t>(1, path.size())(random));
      parent = path.back();
    }
    while (!skewed && parent != 0 && !descends(random))
      parent = parents[static_cast<std::size_t>(parent)];
    parents[node] = parent;
  }
  return parents;
}

void draw_subtree_ends(Row row, double branch, bool skewed, Random& random) {
  const std::vector<std::int64_t> parents = draw_parents(row.size(), branch, skewed, random);
  for (std::size_t node = row.size(); node-- > 0;) {
    row[node] = std::max(row[node], static_cast<double>(node + 1));
    if (node == 0) continue;
    double& end = row[static_cast<std::size_t>(parents[node])];
    end = std::max(end, row[node]);
  }
}

// `row` is the matrix [nodes, columns] of the last two dims.
void draw_ancestors(Row matrix, std::size_t columns, const Sample& sample, Random& random) {
  const std::size_t nodes = matrix.size() / columns;
  const std::vector<std::int64_t> parents =
      draw_parents(nodes, sample.arguments[0], sample.skewed, random);
  for (std::size_t node = 0; node < nodes; ++node) {
    for (auto at = static_cast<std::int64_t>(node); at >= 0;
         at = parents[static_cast<std::size_t>(at)]) {
      if (at < static_cast<std::int64_t>(columns))
        matrix[node * columns + static_cast<std::size_t>(at)] = 1;
    }
  }
}

// int32 along a sequence, of which nothing is known: documents.
bool is_along_sequence(const expr::TensorDecl& tensor) {
  if (tensor.dims.empty()) return false;
  const expr::DimSize& last = tensor.dims.back();
  return last.is_plain() && (last.dim == expr::Dim::kQLen || last.dim == expr::Dim::kKvLen);
}

void draw_unsaid(const expr::TensorDecl& tensor, const ProblemShape& shape, Row row,
                 Random& random) {
  switch (tensor.type) {
    case expr::TensorType::kBool:
      for (double& value : row) value = is_true(0.75, random) ? 1 : 0;
      return;
    case expr::TensorType::kInt32:
      if (is_along_sequence(tensor)) {
        draw_segments(row, std::max(1.0, static_cast<double>(row.size()) / 3), false, random);
        return;
      }
      for (double& value : row)
        value = static_cast<double>(whole_between(0, static_cast<double>(shape.kv_len), random));
      return;
    default: {
      std::normal_distribution<double> normal;
      for (double& value : row) value = 0.5 * normal(random);
    }
  }
}

void draw_row(const expr::TensorDecl& tensor, const Sample& sample, const ProblemShape& shape,
              Row row, Random& random) {
  const auto [first, second] = sample.arguments;
  switch (sample.kind) {
    case SampleKind::kUnsaid:
    case SampleKind::kGiven:
    case SampleKind::kAncestors:
      return draw_unsaid(tensor, shape, row, random);
    case SampleKind::kConstant:
      std::ranges::fill(row, first);
      return;
    case SampleKind::kUniform:
      for (double& value : row) value = uniform(tensor, sample, random);
      if (sample.skewed && is_along_sequence(tensor)) repeat_neighbours(row, kRun, random);
      return;
    case SampleKind::kNormal: {
      std::normal_distribution<double> normal;
      for (double& value : row) value = first + second * normal(random);
      return;
    }
    case SampleKind::kSorted:
      for (double& value : row) value = uniform(tensor, sample, random);
      std::ranges::sort(row);
      return;
    case SampleKind::kSegments:
      return draw_segments(row, first, sample.skewed, random);
    case SampleKind::kPermutation:
      return draw_permutation(row, sample.skewed, random);
    case SampleKind::kSubtreeEnds:
      return draw_subtree_ends(row, first, sample.skewed, random);
    case SampleKind::kLengths: {
      const auto keys = static_cast<double>(shape.kv_len);
      for (double& value : row) {
        value = sample.skewed
                    ? std::nearbyint(skewed_between(first * keys, second * keys, random))
                    : static_cast<double>(whole_between(first * keys, second * keys, random));
      }
      return;
    }
    case SampleKind::kChance:
      for (double& value : row) value = is_true(first, random) ? 1 : 0;
      if (sample.skewed) repeat_neighbours(row, kRun, random);
      return;
    case SampleKind::kSlopes:
      for (std::size_t i = 0; i < row.size(); ++i)
        row[i] = std::exp2(-8.0 * static_cast<double>(i + 1) / static_cast<double>(row.size()));
  }
}

// Every element where it lies in `given`, whose sizes it goes round.
void repeat_given(const expr::TensorValues& given, expr::TensorValues& tensor) {
  std::vector<std::int64_t> index(tensor.sizes.size(), 0);
  for (double& value : tensor.values) {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < index.size(); ++i)
      at = at * given.sizes[i] + index[i] % given.sizes[i];
    value = given.values[static_cast<std::size_t>(at)];
    for (std::size_t i = index.size(); i-- > 0 && ++index[i] == tensor.sizes[i];) index[i] = 0;
  }
}

}  // namespace

expr::TensorValues draw_tensor(const expr::TensorDecl& tensor, const Sample& sample,
                               const ProblemShape& shape, Random& random) {
  if (sample.another) {
    Sample same = sample;
    same.another = false;
    Random other(random());
    return draw_tensor(tensor, same, shape, other);
  }
  expr::TensorValues drawn;
  std::size_t count = 1;
  for (const expr::DimSize& dim : tensor.dims) {
    drawn.sizes.push_back(dim_size(dim, shape));
    count *= static_cast<std::size_t>(drawn.sizes.back());
  }
  drawn.values.resize(count);
  if (sample.kind == SampleKind::kGiven && sample.given->sizes.size() == drawn.sizes.size()) {
    repeat_given(*sample.given, drawn);
    return drawn;
  }
  const auto columns = static_cast<std::size_t>(drawn.sizes.empty() ? 1 : drawn.sizes.back());
  if (sample.kind == SampleKind::kAncestors) {
    const std::size_t matrix =
        columns * static_cast<std::size_t>(drawn.sizes[drawn.sizes.size() - 2]);
    for (std::size_t at = 0; at < count; at += matrix)
      draw_ancestors(Row(drawn.values).subspan(at, matrix), columns, sample, random);
    return drawn;
  }
  for (std::size_t at = 0; at < count; at += columns)
    draw_row(tensor, sample, shape, Row(drawn.values).subspan(at, columns), random);
  for (double& value : drawn.values) {
    if (tensor.type == expr::TensorType::kInt32) value = std::nearbyint(value);
    if (tensor.type == expr::TensorType::kBool) value = value != 0 ? 1 : 0;
  }
  return drawn;
}

}  // namespace attune
