// Another process that holds a lock.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace attune::tuner_testing {

class LockHolder {
 public:
  // `acquire` returns a Result with the lock; it runs in the other process.
  template <typename Acquire>
  explicit LockHolder(const Acquire& acquire) {
    int told[2];
    if (pipe(told) != 0) return;
    child_ = fork();
    if (child_ == 0) {
      const auto lock = acquire();
      const char got = lock.ok() ? 'y' : 'n';
      if (write(told[1], &got, 1) == 1) pause();
      _exit(1);
    }
    char got = 0;
    holds_ = read(told[0], &got, 1) == 1 && got == 'y';
    close(told[0]);
    close(told[1]);
  }
  ~LockHolder() { kill(); }
  LockHolder(const LockHolder&) = delete;
  LockHolder& operator=(const LockHolder&) = delete;

  bool holds() const { return holds_; }
  // By a signal that leaves it no time to give anything back.
  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = -1;
  }

 private:
  pid_t child_ = -1;
  bool holds_ = false;
};

}  // namespace attune::tuner_testing
