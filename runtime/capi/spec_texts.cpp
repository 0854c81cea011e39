#include "runtime/capi/spec_texts.hpp"

#include <utility>

namespace attune {

Result<SpecTexts::Text> SpecTexts::hold(const std::string& hash, std::string text) {
  const std::lock_guard lock(mutex_);
  if (texts_.size() >= sweep_at_) {
    std::erase_if(texts_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = 2 * texts_.size() + 64;
  }
  std::weak_ptr<const std::string>& known = texts_[hash];
  if (Text held = known.lock()) {
    if (*held == text) return held;
    return Error{.kind = ErrorKind::kFailed,
                 .id = "spec-collision",
                 .message = "a spec of another text has the hash " + hash,
                 .hint = "destroy the other spec and every runtime that used it first"};
  }
  auto held = std::make_shared<const std::string>(std::move(text));
  known = held;
  return held;
}

std::size_t SpecTexts::size() const {
  const std::lock_guard lock(mutex_);
  return texts_.size();
}

}  // namespace attune
