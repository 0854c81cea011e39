// An SQLite VFS over the system's that fails, or kills its process, at a chosen call.
#pragma once

#include <string>

namespace attune::fault_testing {

enum class Fault {
  kNone,
  kNoSpace,     // a write, or making a file, fails with ENOSPC
  kIoError,     // any call fails with EIO
  kShortWrite,  // half of a write reaches the file, then ENOSPC
  kKill,        // SIGKILL, before a write, sync, truncation or deletion
};

struct Plan {
  Fault fault = Fault::kNone;
  int at_call = 0;        // counts the calls that the fault could hit, from 1
  bool for_good = false;  // every later call fails too
};

// Registers the VFS once and arms it. Returns its name for StoreOptions::vfs.
std::string arm(const Plan& plan);
// Calls since arm() that the fault could have hit.
int calls();

}  // namespace attune::fault_testing
