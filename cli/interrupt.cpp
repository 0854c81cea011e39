#include "cli/interrupt.hpp"

#include <signal.h>

namespace attune::cli {
namespace {

volatile sig_atomic_t seen = 0;
void remember(int) { seen = 1; }

}  // namespace

void catch_interrupt() {
  struct sigaction action = {};
  action.sa_handler = remember;
  // One shot: the second signal finds the default, which kills.
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return seen != 0; }

}  // namespace attune::cli
