// A child process that is talked to in lines, and that may die or hang at any moment.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "generator/support/result.hpp"

namespace attune {

// Not thread-safe. The child is killed when the object goes.
class ChildProcess {
 public:
  // Starts `argv` with pipes on its standard input and output and its standard error kept for
  // died().
  static Result<ChildProcess> start(const std::vector<std::string>& argv);
  ChildProcess(ChildProcess&& other) noexcept { *this = std::move(other); }
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess() { kill(); }

  // Sends one line and waits for one. "worker-hung" when none came before the deadline,
  // "worker-died", with how in its message, when the child ended. After either the child is gone.
  Result<std::string> ask(const std::string& line, std::chrono::milliseconds deadline);
  bool running() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }
  void kill();

 private:
  ChildProcess() = default;
  Error died();

  pid_t pid_ = -1;
  int to_child_ = -1, from_child_ = -1, errors_ = -1;
  std::string received_;
};

}  // namespace attune
