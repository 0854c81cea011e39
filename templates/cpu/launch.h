// The contract between a CPU kernel and the device that runs it: plain data, read by both.
//
// A kernel of symbol S exports three C functions, thread-safe and without state:
//   void S_work(const ForwardParams*, CpuWork*)           what the launch consists of
//   int S_weight(const ForwardParams*, int item)          keys the item walks; for ordering only
//   void S(const ForwardParams*, int item, void* scratch) does one item
#pragma once

namespace att {

struct CpuWork {
  int items;                // independent of each other; each writes rows of o and lse of its own
  int items_per_head;       // consecutive items that share K and V
  long long scratch_bytes;  // for each thread, 64-byte aligned; contents need not survive an item
};

}  // namespace att
