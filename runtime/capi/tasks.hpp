// What works for a runtime on threads of its own, beside its dispatcher's: tuning. This library
// knows only that it must end first.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace attune {

class RuntimeTask {
 public:
  virtual ~RuntimeTask() = default;
  virtual bool is_over() const = 0;
  // Asks it to stop, and returns when it has; nothing of the runtime is used from then on. From any
  // thread but the task's own.
  virtual void end() noexcept = 0;
};

// Ends all of them when it goes. Thread-safe.
class RuntimeTasks {
 public:
  RuntimeTasks() = default;
  ~RuntimeTasks() {
    for (const auto& task : tasks_) task->end();
  }
  RuntimeTasks(const RuntimeTasks&) = delete;
  RuntimeTasks& operator=(const RuntimeTasks&) = delete;

  // Keeps it until it is over, and until the next one comes.
  void add(std::shared_ptr<RuntimeTask> task) {
    const std::lock_guard lock(mutex_);
    std::erase_if(tasks_, [](const auto& other) { return other->is_over(); });
    tasks_.push_back(std::move(task));
  }

 private:
  std::mutex mutex_;  // guards tasks_
  std::vector<std::shared_ptr<RuntimeTask>> tasks_;
};

}  // namespace attune
