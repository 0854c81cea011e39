// Which plan stands for a problem that was measured on several kinds of data.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "cache/store.hpp"

namespace attune::cache {

// By label of the data, the plan that the cost model would have taken without any measurement.
using FirstGuesses = std::map<std::string, std::string>;

// What was measured on every kind of data, by what it loses to the best on the worst kind; times
// are those losses of the first kind's best. `guess`, where it is among them, goes before all that
// do not lose less by more than noise. Where nothing was measured on all kinds, the one that most
// was measured on.
std::vector<MeasuredPlan> least_loss(std::span<const DataPlans> kinds,
                                     const std::string& guess = "");

// Of what tensors are said to be like, the plans that were measured on its variations too, by what
// they lose on all of them on average; then the others. (On the worst of kinds that are all as
// likely, what gains most elsewhere gives way for a chance.) A known first guess gives its place
// only to plans that are faster on average by more than noise and slower on none by more than that:
// launches bring tensors that are of none of the kinds.
void rank_by_variations(std::span<const DataPlans> kinds, const FirstGuesses& guesses,
                        DataPlans& described);

// The plans that more kinds of data may yet put before the first guess, the most promising first:
// on these kinds they gain on average and lose on none by more than kinds may differ. What is known
// of a plan is too little to say more. Empty where the guess was not measured on all of these.
std::vector<std::string> may_beat(std::span<const DataPlans> kinds, const std::string& guess);

}  // namespace attune::cache
