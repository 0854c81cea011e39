// Several processes at once, for tests of what they do to one file.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <vector>

namespace attune::cache_testing {

// Runs body(i) in `count` processes that start together; true when all returned true.
inline bool in_processes(int count, const std::function<bool(int)>& body) {
  int gate[2];
  if (pipe(gate) != 0) return false;
  std::vector<pid_t> children;
  for (int i = 0; i < count; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      char go = 0;
      close(gate[1]);
      (void)!read(gate[0], &go, 1);  // ends when the parent closes its end
      _exit(body(i) ? 0 : 1);
    }
    children.push_back(child);
  }
  close(gate[0]);
  close(gate[1]);
  bool all = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    all = all && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return all;
}

}  // namespace attune::cache_testing
