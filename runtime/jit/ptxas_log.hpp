// What ptxas says about a kernel when it is asked to be verbose.
#pragma once

#include <string>
#include <string_view>

namespace attune {

struct PtxasReport {
  bool found = false;  // the log speaks of the symbol
  int registers = 0;   // a thread
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;
  int stack_bytes = 0;
  int static_shared_bytes = 0;
  // The first "Potential Performance Loss" line: ptxas gave up what the kernel was built for, as
  // when it serialises wgmma (C7510) or ignores setmaxnreg (C7508). Empty: none.
  std::string performance_loss;
};

// Reads the part of `log` (ptxas -v) that is about the entry function `symbol`.
PtxasReport parse_ptxas_log(std::string_view log, std::string_view symbol);

}  // namespace attune
