// The legal plans of one spec on one device, arranged so that a shape's best is found in a fraction
// of a millisecond.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "generator/plan/family.hpp"

namespace attune {

// Immutable, thread-safe.
class PlanSpace {
 public:
  PlanSpace(const AttentionSpec& spec, const DeviceFacts& device);

  struct Wanted {
    Pass pass = Pass::kForward;
    bool any_strides = false;  // of families that take any
  };
  // The first of those in plans_by_cost(); nullopt when there is none.
  std::optional<KernelPlan> best(const ProblemShape& shape, const Wanted& wanted) const;

  bool is_of(const AttentionSpec& spec, const DeviceFacts& device) const;

 private:
  struct Candidate {
    PlanCost cost;
    std::size_t place;  // in the families' order
    KernelPlan plan;
  };
  // Plans of a pass with one ShapeCost, without those that another before them is no dearer than
  // anywhere.
  struct Group {
    const FamilyOperations* family;
    std::vector<Candidate> candidates;
  };
  struct Bound {
    double us;
    const Group* group;
  };
  const Candidate& cheapest(const Group& group, const ShapeCost& shape) const;
  class Samples;
  std::vector<Bound> bounds(const ProblemShape& shape, const Wanted& wanted,
                            Samples& samples) const;

  const AttentionSpec spec_;
  const DeviceFacts device_;
  const LiveShare live_share_;
  std::vector<Group> groups_;
  int smallest_q_ = 1 << 20, smallest_kv_ = 1 << 20;  // tiles of all groups
};

// That of a spec and a device, made at the first call and kept while it is among the last that were
// asked for. Thread-safe.
std::shared_ptr<const PlanSpace> plan_space(const AttentionSpec& spec, const DeviceFacts& device);

}  // namespace attune
