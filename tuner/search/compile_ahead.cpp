#include "tuner/search/compile_ahead.hpp"

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

void CompileAhead::submit(std::span<const KernelPlan> plans) {
  {
    const std::lock_guard lock(mutex_);
    for (const KernelPlan& plan : plans) {
      if (results_.try_emplace(plan).second) queue_.push_back(plan);
    }
  }
  changed_.notify_all();
}

std::pair<KernelPlan, Result<CompiledFacts>> CompileAhead::take_any(
    std::span<const KernelPlan> plans) {
  std::unique_lock lock(mutex_);
  while (true) {
    for (const KernelPlan& plan : plans) {
      auto& result = results_.at(plan);
      if (result) return {plan, *std::exchange(result, std::nullopt)};
    }
    changed_.wait(lock);
  }
}

void CompileAhead::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const KernelPlan plan = queue_.front();
    queue_.pop_front();
    lock.unlock();
    Result<CompiledFacts> result = executor_.compile(plan);
    lock.lock();
    results_.at(plan) = std::move(result);
    changed_.notify_all();
  }
}

}  // namespace attune
