// Kernels are found by the hash of their spec's text. Specs come from anywhere, and the hash is no
// cryptographic one: so of two living specs with one hash the second is refused.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "generator/support/result.hpp"

namespace attune {

// Thread-safe.
class SpecTexts {
 public:
  using Text = std::shared_ptr<const std::string>;
  // The text, which the hash stands for as long as somebody holds it. kFailed, id "spec-collision",
  // while it stands for another one.
  Result<Text> hold(const std::string& hash, std::string text);
  // Texts that are remembered, those that nobody holds any more among them: as many again at most.
  std::size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<const std::string>> texts_;
  std::size_t sweep_at_ = 64;
};

}  // namespace attune
