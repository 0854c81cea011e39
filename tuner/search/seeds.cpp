#include "tuner/search/seeds.hpp"

#include <algorithm>
#include <cctype>
#include <climits>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>

namespace attune {
namespace {

// At least so many of every family: a model is most often wrong between families. They differ in so
// many parts: plans that resemble each other are as good or bad as each other, and the neighbours
// of the best are asked for anyway.
constexpr std::size_t kSeedsPerFamily = 2;
constexpr int kSeedDistance = 3;

}  // namespace

int plan_distance(const KernelPlan& a, const KernelPlan& b) {
  if (a.family() != b.family()) return INT_MAX;
  const auto words = [](const KernelPlan& plan) {
    std::istringstream text(to_string(plan));
    std::multiset<std::string> parts;
    std::string last;
    for (std::string word; text >> word; last = word) {
      if (word == "psmem") continue;  // where P goes follows from the tile
      // An order of work items and its grouping of heads ("longest g16") are one choice.
      const bool grouping = word.size() > 1 && word[0] == 'g' && std::isdigit(word[1]) != 0;
      if (grouping) parts.erase(parts.find(last));
      parts.insert(grouping ? last + word : word);
    }
    return parts;
  };
  const auto a_words = words(a), b_words = words(b);
  std::vector<std::string> only_a, only_b;
  std::ranges::set_difference(a_words, b_words, std::back_inserter(only_a));
  std::ranges::set_difference(b_words, a_words, std::back_inserter(only_b));
  // A changed part is a word less and a word more; a flag is one of the two.
  return static_cast<int>(std::max(only_a.size(), only_b.size()));
}

std::vector<KernelPlan> search_seeds(std::span<const KernelPlan> plans, std::size_t most) {
  std::vector<KernelPlan> seeds;
  std::map<Family, std::size_t> of_family;
  // Small spaces do not have so many that differ so much.
  for (int distance = kSeedDistance; distance > 0; --distance) {
    for (const KernelPlan& plan : plans) {
      const bool wanted = seeds.size() < most || of_family[plan.family()] < kSeedsPerFamily;
      const auto resembles = [&](const KernelPlan& seed) {
        return plan_distance(plan, seed) < distance;
      };
      if (!wanted || std::ranges::any_of(seeds, resembles)) continue;
      seeds.push_back(plan);
      ++of_family[plan.family()];
    }
  }
  return seeds;
}

}  // namespace attune
