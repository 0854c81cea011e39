#include "tuner/search/compile_ahead.hpp"

#include <ranges>
#include <utility>

namespace attune {

CompileAhead::CompileAhead(Executor& executor, int threads) : executor_(executor) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

CompileAhead::~CompileAhead() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

void CompileAhead::submit(std::span<const Candidate> candidates) {
  {
    const std::lock_guard lock(mutex_);
    for (const Candidate& candidate : std::views::reverse(candidates)) {
      const bool waits = std::erase(queue_, candidate) > 0;
      if (results_.try_emplace(candidate).second || waits) queue_.push_front(candidate);
    }
  }
  changed_.notify_all();
}

std::pair<Candidate, Result<CompiledFacts>> CompileAhead::take_any(
    std::span<const Candidate> candidates) {
  std::unique_lock lock(mutex_);
  while (true) {
    for (const Candidate& candidate : candidates) {
      std::optional<Result<CompiledFacts>>& finished = results_.at(candidate);
      if (!finished) continue;
      std::pair taken(candidate, *std::move(finished));
      results_.erase(candidate);
      return taken;
    }
    changed_.wait(lock);
  }
}

void CompileAhead::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const Candidate candidate = queue_.front();
    queue_.pop_front();
    lock.unlock();
    Result<CompiledFacts> result = executor_.compile(candidate);
    lock.lock();
    results_.at(candidate) = std::move(result);
    changed_.notify_all();
  }
}

}  // namespace attune
