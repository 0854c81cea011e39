// Values that are expensive to make and made once: the first caller makes it, the others wait.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "generator/support/result.hpp"

namespace attune {

// Keeps a value that was made until it is forgotten. A failure is told to those who waited for it
// and then forgotten, so that the next caller tries again; so is an exception, which goes on in the
// caller that made it. Thread-safe.
template <typename T>
class SingleFlight {
 public:
  template <typename Make>
  Result<std::shared_ptr<T>> get(const std::string& key, const Make& make) {
    std::unique_lock lock(mutex_);
    if (const auto found = flights_.find(key); found != flights_.end()) {
      const std::shared_ptr<Flight> flight = found->second;
      landed_.wait(lock, [&] { return flight->landed; });
      return flight->result;
    }
    const auto flight = std::make_shared<Flight>();
    flights_.emplace(key, flight);
    lock.unlock();
    const Landing landing(*this, key, *flight);  // ends last, unlocked
    Result<std::shared_ptr<T>> result = make();
    const std::lock_guard again(mutex_);
    flight->result = result;
    return result;
  }

  // The value of `key` if it is made; null otherwise, also while it is being made.
  std::shared_ptr<T> find(const std::string& key) const {
    const std::lock_guard lock(mutex_);
    const auto found = flights_.find(key);
    if (found == flights_.end() || !found->second->landed || !found->second->result.ok()) return {};
    return *found->second->result;
  }

  // Of values that are kept or being made.
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return flights_.size();
  }

  // For a value that its users keep themselves, or that has become something else: here it would
  // take memory to the end. Whoever asks for it after all makes it again. One that is being made
  // stays, for those who wait for it.
  void forget(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = flights_.find(key);
    if (found != flights_.end() && found->second->landed) flights_.erase(found);
  }

 private:
  struct Flight {
    bool landed = false;
    Result<std::shared_ptr<T>> result =
        Error{.id = "make-threw", .message = "another thread ran out of memory at this"};
  };

  // Ends a flight whichever way its maker leaves.
  class Landing {
   public:
    Landing(SingleFlight& flights, const std::string& key, Flight& flight)
        : flights_(flights), key_(key), flight_(flight) {}
    ~Landing() {
      const std::lock_guard lock(flights_.mutex_);
      flight_.landed = true;
      if (!flight_.result.ok()) flights_.flights_.erase(key_);
      flights_.landed_.notify_all();
    }
    Landing(const Landing&) = delete;
    Landing& operator=(const Landing&) = delete;

   private:
    SingleFlight& flights_;
    const std::string& key_;
    Flight& flight_;
  };

  mutable std::mutex mutex_;
  std::condition_variable landed_;
  std::map<std::string, std::shared_ptr<Flight>> flights_;
};

}  // namespace attune
