// Values that are expensive to make and made once: the first caller makes it, the others wait.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "generator/support/result.hpp"

namespace attune {

// Keeps every value made. A failure is told to those who waited for it and then forgotten, so that
// the next caller tries again. Thread-safe.
template <typename T>
class SingleFlight {
 public:
  template <typename Make>
  Result<std::shared_ptr<T>> get(const std::string& key, const Make& make) {
    std::unique_lock lock(mutex_);
    std::shared_ptr<Flight>& slot = flights_[key];
    if (slot != nullptr) {
      const std::shared_ptr<Flight> flight = slot;
      landed_.wait(lock, [&] { return flight->landed; });
      return flight->result;
    }
    const std::shared_ptr<Flight> flight = slot = std::make_shared<Flight>();
    lock.unlock();
    Result<std::shared_ptr<T>> result = make();
    lock.lock();
    flight->result = result;
    flight->landed = true;
    if (!result.ok()) flights_.erase(key);
    landed_.notify_all();
    return result;
  }

  // The value of `key` if it is made; null otherwise, also while it is being made.
  std::shared_ptr<T> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = flights_.find(key);
    if (found == flights_.end() || !found->second->landed || !found->second->result.ok()) return {};
    return *found->second->result;
  }

 private:
  struct Flight {
    bool landed = false;
    Result<std::shared_ptr<T>> result = std::shared_ptr<T>();
  };

  std::mutex mutex_;
  std::condition_variable landed_;
  std::map<std::string, std::shared_ptr<Flight>> flights_;
};

}  // namespace attune
