#include "generator/plan/plan_space.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace attune {
namespace {

// Of the area that the smallest tiles leave, larger ones leave at least this part: they are unions
// of those, but no two samples look at the same places.
constexpr double kLeastShare = 0.75;

bool never_dearer(const PlanCost& a, const PlanCost& b) {
  return a.item <= b.item && a.tile <= b.tile && a.launch_us <= b.launch_us;
}

// Both are read off the expressions' trees, so two specs that share them share the rest of meaning.
bool same_kernels(const AttentionSpec& a, const AttentionSpec& b) {
  const auto same_scalar = [](const expr::ScalarDecl& x, const expr::ScalarDecl& y) {
    return std::tie(x.type, x.is_constant, x.value) == std::tie(y.type, y.is_constant, y.value);
  };
  const auto same_tensor = [](const expr::TensorDecl& x, const expr::TensorDecl& y) {
    return std::tie(x.type, x.dims, x.grad) == std::tie(y.type, y.dims, y.grad);
  };
  const auto sizes = [](const AttentionSpec& s) {
    return std::tie(s.dtype, s.precision, s.accuracy, s.head_dim_qk, s.head_dim_v, s.layout, s.mask,
                    s.score, s.sink, s.softmax_scale, s.dropout, s.seed_on_device, s.deterministic,
                    s.batch_invariant, s.kv_dtype, s.v_in_k, s.shared_prefixes, s.passes,
                    s.residues);
  };
  return sizes(a) == sizes(b) &&
         std::ranges::equal(a.environment.scalars, b.environment.scalars, same_scalar) &&
         std::ranges::equal(a.environment.tensors, b.environment.tensors, same_tensor);
}

bool same_device(const DeviceFacts& a, const DeviceFacts& b) {
  const auto facts = [](const DeviceFacts& d) {
    return std::tie(d.name, d.target, d.processor_count, d.shared_memory_per_block_bytes,
                    d.shared_memory_per_processor_bytes, d.registers_per_processor, d.l2_bytes,
                    d.memory_bytes, d.clock_ghz, d.matrix_tflops, d.memory_gb_per_s);
  };
  return facts(a) == facts(b);
}

// Of the score square, with what the last tiles have beyond it.
double tiled_area(const ProblemShape& shape, int tile_q, int tile_kv) {
  const auto tiled = [](std::int64_t length, int tile) {
    return double((length + tile - 1) / tile * tile);
  };
  return tiled(shape.q_len, tile_q) * tiled(shape.kv_len, tile_kv);
}

}  // namespace

// The samples of one choice, each tile shape's once.
class PlanSpace::Samples {
 public:
  Samples(const LiveShare& share, const ProblemShape& shape)
      : share_(share), shape_(shape), tensors_(share.tensors(shape)) {}

  LiveWork work(const LiveRows& rows) const { return share_.work(rows, tensors_.get()); }

  const LiveRows& rows(const LiveTile& wanted) {
    for (const auto& [tile, rows] : known_) {
      if (tile == wanted) return rows;
    }
    known_.emplace_back(wanted, share_.rows(shape_, wanted, tensors_.get()));
    return known_.back().second;
  }

 private:
  const LiveShare& share_;
  const ProblemShape& shape_;
  const std::shared_ptr<const MaskTensors> tensors_;
  std::deque<std::pair<LiveTile, LiveRows>> known_;
};

PlanSpace::PlanSpace(const AttentionSpec& spec, const DeviceFacts& device)
    : spec_(spec), device_(device), live_share_(spec) {
  std::map<std::tuple<Family, Pass, decltype(PlanCost::group)>, std::size_t> known;
  std::size_t place = 0;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const auto families = families_for(spec, device.target, pass);
    for (const Family family : families.ok() ? *families : std::vector<Family>{}) {
      const FamilyOperations* operations = family_operations(family, pass);
      for (KernelPlan& plan : legal_plans(spec, family, device, pass)) {
        const PlanCost cost = operations->plan_cost(spec, plan, device);
        const auto [found, is_new] = known.try_emplace({family, pass, cost.group}, groups_.size());
        if (is_new) groups_.push_back({operations, {}});
        std::vector<Candidate>& candidates = groups_[found->second].candidates;
        const auto beats = [&](const Candidate& one) { return never_dearer(one.cost, cost); };
        if (std::ranges::none_of(candidates, beats))
          candidates.push_back({cost, place, std::move(plan)});
        ++place;
      }
    }
  }
  for (const Group& group : groups_) {
    const Tiling tiling =
        group.family->tiling(spec, group.candidates.front().plan, ProblemShape{}, device);
    if (tiling.tile_q == 0) continue;
    smallest_q_ = std::min(smallest_q_, tiling.tile_q);
    smallest_kv_ = std::min(smallest_kv_, tiling.tile_kv);
  }
}

bool PlanSpace::is_of(const AttentionSpec& spec, const DeviceFacts& device) const {
  return same_kernels(spec_, spec) && live_share_.is_of(spec) && same_device(device_, device);
}

const PlanSpace::Candidate& PlanSpace::cheapest(const Group& group, const ShapeCost& shape) const {
  return *std::ranges::min_element(
      group.candidates, {}, [&](const Candidate& one) { return launch_us(one.cost, shape); });
}

// What each group takes at least, the least first.
std::vector<PlanSpace::Bound> PlanSpace::bounds(const ProblemShape& shape, const Wanted& wanted,
                                                Samples& samples) const {
  LiveWork least = samples.work(samples.rows({smallest_q_, smallest_kv_}));
  // Nor have they more without a dead element; samples differ by so much.
  least.full_parts = std::min(1.0, 0.05 + 1.2 * (1 - least.partial));
  least.longest = least.shortest = least.partial = 0;
  least.live_parts = 1;
  const double live_area = kLeastShare * least.share * tiled_area(shape, smallest_q_, smallest_kv_);
  std::vector<Bound> found;
  found.reserve(groups_.size());
  for (const Group& group : groups_) {
    const KernelPlan& any = group.candidates.front().plan;
    if (any.pass != wanted.pass) continue;
    if (wanted.any_strides && !group.family->takes_any_strides) continue;
    const Tiling tiling = group.family->tiling(spec_, any, shape, device_);
    if (tiling.tile_q > 0)
      least.share = std::min(1.0, live_area / tiled_area(shape, tiling.tile_q, tiling.tile_kv));
    const ShapeCost cost = group.family->shape_cost(spec_, any, shape, device_, least);
    found.push_back({launch_us(cheapest(group, cost).cost, cost), &group});
  }
  std::ranges::sort(found, {}, &Bound::us);
  return found;
}

std::optional<KernelPlan> PlanSpace::best(const ProblemShape& shape, const Wanted& wanted) const {
  Samples samples(live_share_, shape);
  const Candidate* best = nullptr;
  double best_us = std::numeric_limits<double>::infinity();
  for (const Bound& bound : bounds(shape, wanted, samples)) {
    if (bound.us > best_us) break;
    const FamilyOperations& family = *bound.group->family;
    const KernelPlan& any = bound.group->candidates.front().plan;
    const Tiling tiling = family.tiling(spec_, any, shape, device_);
    LiveWork work;
    ShapeCost cost;
    const Candidate* candidate = nullptr;
    const auto look = [&] {
      cost = family.shape_cost(spec_, any, shape, device_, work);
      candidate = &cheapest(*bound.group, cost);
      return launch_us(candidate->cost, cost);
    };
    double us = 0;
    if (tiling.tile_q == 0) {
      us = look();
    } else {
      const LiveRows& rows = samples.rows(tiling.tile());
      work = samples.work(rows);
      us = look();
      if (tiling.order && us <= best_us) {
        work.busiest = LiveShare::busiest(rows, work, shape, tiling.tile_q, *tiling.order);
        us = look();
      }
    }
    if (std::pair(us, candidate->place) < std::pair(best_us, best ? best->place : 0)) {
      best_us = us;
      best = candidate;
    }
  }
  if (best == nullptr) return std::nullopt;
  return best->plan;
}

std::shared_ptr<const PlanSpace> plan_space(const AttentionSpec& spec, const DeviceFacts& device) {
  constexpr std::size_t kKept = 32;
  static std::mutex mutex;
  static std::deque<std::shared_ptr<const PlanSpace>> last;  // the latest first
  const auto known = [&] {
    const auto found =
        std::ranges::find_if(last, [&](const auto& space) { return space->is_of(spec, device); });
    if (found == last.end()) return std::shared_ptr<const PlanSpace>();
    std::rotate(last.begin(), found, found + 1);
    return last.front();
  };
  {
    const std::lock_guard lock(mutex);
    if (auto space = known()) return space;
  }
  auto made = std::make_shared<const PlanSpace>(spec, device);
  const std::lock_guard lock(mutex);
  if (auto space = known()) return space;  // another thread was first
  last.push_front(made);
  if (last.size() > kKept) last.pop_back();
  return made;
}

}  // namespace attune
