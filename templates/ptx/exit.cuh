// The end of a thread. PTX ISA, "Control Flow Instructions: exit".
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

ATT_FN void exit_thread() {
  asm volatile("exit;" ::: "memory");
  __builtin_unreachable();
}

}  // namespace att
