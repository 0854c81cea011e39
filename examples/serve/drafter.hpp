// Guesses what follows, for the model to verify in one pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace serve {

// A tree of tokens that may follow a sequence. A node comes after its parent.
struct Draft {
  struct Node {
    std::int32_t token;
    int parent;         // -1: follows the sequence's last token
    std::size_t depth;  // from 1
  };
  std::vector<Node> nodes;

  // The child of `parent` with this token; -1: there is none.
  int child(int parent, std::int32_t token) const;
};

// Remembers which tokens the model chose after each token, in whatever request, and guesses that it
// will do so again.
class Drafter {
 public:
  explicit Drafter(std::size_t vocabulary) : followers_(vocabulary) {}

  void learn(std::int32_t token, std::int32_t follower);
  // The tree of what was chosen after `token` lately, and after that, and so on: level by level, at
  // most `nodes` nodes, none deeper than `depth`.
  Draft draft(std::int32_t token, std::size_t nodes, std::size_t depth) const;

 private:
  std::vector<std::vector<std::int32_t>> followers_;  // of each token, the latest first
};

}  // namespace serve
