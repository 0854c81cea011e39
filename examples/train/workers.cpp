#include "workers.hpp"

#include <algorithm>

namespace train {

Workers::Workers() {
  const std::size_t others = std::max(1u, std::thread::hardware_concurrency()) - 1;
  for (std::size_t i = 1; i <= others; ++i) threads_.emplace_back([this, i] { work(i); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::run(std::size_t count, std::size_t grain,
                  const std::function<void(std::size_t, std::size_t)>& body) {
  const std::size_t grains = (count + grain - 1) / grain;
  const std::size_t all = threads_.size() + 1;
  if (grains < 2 || all == 1) {
    if (count > 0) body(0, count);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    body_ = &body;
    count_ = count;
    share_ = (grains + all - 1) / all * grain;
    busy_ = threads_.size();
    ++generation_;
  }
  begin_.notify_all();
  take(0);
  std::unique_lock lock(mutex_);
  end_.wait(lock, [this] { return busy_ == 0; });
}

void Workers::take(std::size_t worker) const {
  const std::size_t first = std::min(count_, worker * share_);
  const std::size_t last = std::min(count_, first + share_);
  if (first < last) (*body_)(first, last);
}

void Workers::work(std::size_t worker) {
  std::size_t seen = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      begin_.wait(lock, [&] { return ends_ || generation_ != seen; });
      if (ends_) return;
      seen = generation_;
    }
    take(worker);
    const std::lock_guard lock(mutex_);
    if (--busy_ == 0) end_.notify_one();
  }
}

}  // namespace train
