#include "generator/expr/mask_probe.hpp"

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "generator/expr/evaluator.hpp"

namespace attune::expr {
namespace {

using Random = std::mt19937_64;

constexpr std::int32_t kBatch = 2, kHeads = 8;
// Tensors of more elements are not made up.
constexpr std::int64_t kMaxElements = 1 << 18;
constexpr std::size_t kMaxConstants = 16;
constexpr int kRandomPositions = 6;
constexpr std::int32_t kShort = 64;
// Of nodes of the mask, so that the largest takes a fraction of a second too.
constexpr std::int64_t kMaxVisits = 1 << 23;

// What scalars and tensors hold, one kind after the other.
enum class Fill { kZero, kSmall, kPositions, kExtreme };
constexpr Fill kFills[] = {Fill::kZero, Fill::kSmall, Fill::kPositions, Fill::kExtreme};

double made_up(Type type, Fill fill, std::int32_t kv_len, Random& random) {
  const bool coin = random() % 2 == 0;
  switch (fill) {
    case Fill::kZero:
      return 0;
    case Fill::kSmall:
      if (type == Type::kBool) return coin ? 1 : 0;
      return type == Type::kInt32 ? static_cast<double>(random() % 4)
                                  : std::normal_distribution<double>()(random);
    case Fill::kPositions:
      if (type == Type::kBool) return 1;
      return static_cast<double>(random() % static_cast<std::uint64_t>(kv_len));
    case Fill::kExtreme:
      if (type == Type::kBool) return coin ? 1 : 0;
      if (type == Type::kFloat32) return coin ? 1e30 : -1e30;
      return coin ? std::numeric_limits<std::int32_t>::max()
                  : std::numeric_limits<std::int32_t>::min();
  }
  return 0;
}

std::int64_t size_of(const DimSize& dim, std::int32_t q_len, std::int32_t kv_len) {
  switch (dim.dim) {
    case Dim::kBatch:
      return dim.elements(kBatch);
    case Dim::kHeads:
    case Dim::kKvHeads:
      return dim.elements(kHeads);
    case Dim::kQLen:
      return dim.elements(q_len);
    case Dim::kKvLen:
      return dim.elements(kv_len);
    case Dim::kNumber:
      break;
  }
  return dim.number;
}

void collect(const Expr& e, std::set<std::int64_t>& constants, std::set<int>& tensors) {
  if (e->op == Op::kInt && constants.size() < kMaxConstants) constants.insert(e->int_value);
  if (e->op == Op::kLoad) tensors.insert(e->slot);
  for (const Expr& arg : e->args) collect(arg, constants, tensors);
}

std::int64_t count_nodes(const Expr& e) {
  std::int64_t nodes = 1;
  for (const Expr& arg : e->args) nodes += count_nodes(arg);
  return nodes;
}

class Probe {
 public:
  Probe(const Expr& mask, const Environment& environment) : mask_(mask), environment_(environment) {
    collect(mask, constants_, read_);
    left_ = kMaxVisits / count_nodes(mask);
  }

  MaskProbe run() {
    constexpr std::int32_t kLongest = kMaxSequenceLength;
    constexpr std::pair<std::int32_t, std::int32_t> kLengths[] = {
        {1, 1},       {7, 4096},   {64, 64},     {300, 7},
        {1000, 1000}, {1, 100000}, {4096, 4096}, {kLongest, kLongest}};
    for (const auto& [q_len, kv_len] : kLengths) {
      for (const Fill fill : kFills) {
        if (!make_up(q_len, kv_len, fill)) continue;
        look();
        if ((found_.live && found_.dead) || left_ <= 0) return found_;
        if (environment_.scalars.empty() && read_.empty()) break;
      }
    }
    return found_;
  }

 private:
  // False when the lengths ask for too large a tensor.
  bool make_up(std::int32_t q_len, std::int32_t kv_len, Fill fill) {
    point_.q_len = q_len;
    point_.kv_len = kv_len;
    scalars_.clear();
    tensors_.clear();
    for (const ScalarDecl& scalar : environment_.scalars)
      scalars_.push_back(made_up(scalar.type, fill, kv_len, random_));
    for (std::size_t slot = 0; slot < environment_.tensors.size(); ++slot) {
      const TensorDecl& tensor = environment_.tensors[slot];
      TensorValues& values = tensors_.emplace_back();
      if (!read_.contains(static_cast<int>(slot))) continue;
      std::int64_t count = 1;
      for (const DimSize& dim : tensor.dims) {
        values.sizes.push_back(size_of(dim, q_len, kv_len));
        count *= values.sizes.back();
        if (count > kMaxElements) return false;
      }
      for (std::int64_t i = 0; i < count; ++i)
        values.values.push_back(made_up(element_type(tensor.type), fill, kv_len, random_));
    }
    point_.scalars = scalars_;
    point_.tensors = tensors_;
    return true;
  }

  // Positions of a sequence of `length`, those near `middles` among them; all of a short one.
  std::set<std::int32_t> positions(std::int32_t length, const std::vector<std::int64_t>& middles) {
    std::set<std::int32_t> found = {0, length / 2, length - 1};
    const auto add = [&](std::int64_t at) {
      if (at >= 0 && at < length) found.insert(static_cast<std::int32_t>(at));
    };
    for (std::int32_t at = 0; length <= kShort && at < length; ++at) add(at);
    for (const std::int64_t middle : middles) {
      for (std::int64_t at = middle - 1; at <= middle + 1; ++at) add(at);
    }
    for (int i = 0; i < kRandomPositions; ++i)
      add(static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(length)));
    return found;
  }

  void look() {
    const std::vector<std::int64_t> constants(constants_.begin(), constants_.end());
    for (const std::int32_t q : positions(point_.q_len, constants)) {
      point_.q_idx = q;
      const std::int64_t q_pos = std::int64_t{q} + point_.kv_len - point_.q_len;
      std::vector<std::int64_t> middles = {q, q_pos};
      for (const std::int64_t constant : constants) {
        for (const std::int64_t from : {std::int64_t{0}, std::int64_t{q}, q_pos}) {
          middles.push_back(from + constant);
          middles.push_back(from - constant);
        }
      }
      for (const std::int32_t kv : positions(point_.kv_len, middles)) {
        point_.kv_idx = kv;
        for (const std::int32_t head : {0, 1, kHeads - 1}) {
          point_.h = point_.h_kv = head;
          point_.b = head % kBatch;
          (evaluate(mask_, point_) != 0 ? found_.live : found_.dead) = true;
          if ((found_.live && found_.dead) || --left_ <= 0) return;
        }
      }
    }
  }

  const Expr& mask_;
  const Environment& environment_;
  std::set<std::int64_t> constants_;
  std::set<int> read_;     // slots of tensors
  std::int64_t left_ = 0;  // positions to look at
  Random random_{1};
  Point point_;
  std::vector<double> scalars_;
  std::vector<TensorValues> tensors_;
  MaskProbe found_;
};

}  // namespace

MaskProbe probe_mask(const Expr& mask, const Environment& environment) {
  return Probe(mask, environment).run();
}

}  // namespace attune::expr
