#include "drafter.hpp"

#include <algorithm>

namespace serve {
namespace {

constexpr std::size_t kBranches = 2;

}  // namespace

int Draft::child(int parent, std::int32_t token) const {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].parent == parent && nodes[i].token == token) return static_cast<int>(i);
  }
  return -1;
}

void Drafter::learn(std::int32_t token, std::int32_t follower) {
  std::vector<std::int32_t>& known = followers_[static_cast<std::size_t>(token)];
  std::erase(known, follower);
  known.insert(known.begin(), follower);
  known.resize(std::min(known.size(), kBranches));
}

Draft Drafter::draft(std::int32_t token, std::size_t nodes, std::size_t depth) const {
  Draft draft;
  for (int parent = -1; parent < static_cast<int>(draft.nodes.size()); ++parent) {
    const Draft::Node of =
        parent < 0 ? Draft::Node{token, -1, 0} : draft.nodes[static_cast<std::size_t>(parent)];
    if (of.depth == depth) break;
    for (const std::int32_t follower : followers_[static_cast<std::size_t>(of.token)]) {
      if (draft.nodes.size() == nodes) return draft;
      draft.nodes.push_back({follower, parent, of.depth + 1});
    }
  }
  return draft;
}

}  // namespace serve
