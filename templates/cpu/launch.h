// The contract between a CPU kernel and the device that runs it: plain data, read by both.
//
// A kernel of symbol S exports two C functions, thread-safe and without state:
//   void S_work(const ForwardParams*, CpuWork*)           what the launch takes
//   void S(const ForwardParams*, int item, void* scratch) does one item of those that the recipe
//                                                         counts; they are independent
// The params are LaunchParams: a kernel of a backward pass declares BackwardParams.
#pragma once

#include "templates/params.h"

namespace att {

struct CpuWork {
  // Work of an item in any unit, for ordering only; null: items are alike.
  int (*weight)(const ForwardParams*, int item);
  int items_per_head;       // consecutive items that share K and V
  long long scratch_bytes;  // for each thread, 64-byte aligned; contents need not survive an item
};

}  // namespace att
