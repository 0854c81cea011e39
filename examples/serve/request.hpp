// What is asked for, and how far it has come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shared.hpp"

namespace serve {

struct Request {
  std::size_t number = 0, arrival = 0;  // arrival: the first step that knows of it
  std::size_t prompt = 0, wanted = 0;   // tokens of the prompt, and to be generated
  bool speculates = false;
  std::vector<std::int32_t> tokens;  // the prompt, then what was generated
  std::vector<float> logits;         // of each generated token, where the model chose it
  std::vector<std::int32_t> pages;   // of the cache
  // Of how many of the first tokens the cache has keys and values. All but the last, once the
  // prompt is read; none again after a preemption.
  std::size_t cached = 0;

  std::size_t last_length() const { return prompt + wanted; }
  bool is_done() const { return tokens.size() == last_length(); }
  // Tokens that the cache lacks. With 1, the request is decoding.
  std::size_t missing() const { return tokens.size() - cached; }
};

// Prompts of up to 60 random tokens, up to 50 tokens to generate; two out of three speculate. One
// or two arrive each step. The same for the same seed.
inline std::vector<Request> draw_requests(std::size_t count, std::size_t vocabulary,
                                          std::uint64_t seed) {
  Random random(seed);
  std::vector<Request> requests(count);
  std::size_t step = 1;
  for (std::size_t i = 0; i < count; ++i) {
    Request& request = requests[i];
    request.number = i;
    request.arrival = step += random.below(2);
    request.prompt = 1 + random.below(60);
    request.wanted = 1 + random.below(50);
    request.speculates = random.below(3) > 0;
    for (std::size_t j = 0; j < request.prompt; ++j) {
      request.tokens.push_back(static_cast<std::int32_t>(random.below(vocabulary)));
    }
  }
  return requests;
}

}  // namespace serve
