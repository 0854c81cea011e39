#include "workers.hpp"

#include <algorithm>
#include <atomic>

namespace train {

// Threads take range after range. A thread that comes late finds none left, so that nobody waits
// for one that another program keeps from running.
struct Workers::Loop {
  const std::function<void(std::size_t, std::size_t)>& body;
  const std::size_t count, share, ranges;
  std::atomic<std::size_t> next{0}, done{0};

  void take() {
    for (std::size_t range; (range = next.fetch_add(1)) < ranges;) {
      const std::size_t first = range * share;
      body(first, std::min(count, first + share));
      if (done.fetch_add(1) + 1 == ranges) done.notify_all();
    }
  }
  void wait() const {
    for (std::size_t seen; (seen = done.load()) < ranges;) done.wait(seen);
  }
};

Workers::Workers() {
  const std::size_t others = std::max(1u, std::thread::hardware_concurrency()) - 1;
  for (std::size_t i = 0; i < others; ++i) threads_.emplace_back([this] { work(); });
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
  if (count == 0) return;
  // A few ranges for each thread: they end at about the same time.
  const std::size_t grains = (count + grain - 1) / grain, wanted = 4 * (threads_.size() + 1);
  const std::size_t share = (grains + wanted - 1) / wanted * grain;
  const std::size_t ranges = (count + share - 1) / share;
  if (ranges == 1 || threads_.empty()) return body(0, count);
  const auto loop = std::make_shared<Loop>(body, count, share, ranges);
  {
    const std::lock_guard lock(mutex_);
    loop_ = loop;
  }
  begin_.notify_all();
  loop->take();
  loop->wait();
}

void Workers::work() {
  std::shared_ptr<Loop> seen;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      begin_.wait(lock, [&] { return ends_ || loop_ != seen; });
      if (ends_) return;
      seen = loop_;
    }
    seen->take();
  }
}

}  // namespace train
