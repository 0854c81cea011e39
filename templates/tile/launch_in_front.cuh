// What launches do that come in front of a main launch: it may start meanwhile where it waits for
// them of its own accord, and finds its scheduler's counter at zero.
#pragma once

#include "templates/ptx/dependent_launch.cuh"
#include "templates/sequence.h"

namespace att {

ATT_FN void begin_launch_in_front(const ForwardParams& p) {
  let_next_launch_start();
  if (p.scheduler_counter != nullptr && block_index() == 0 && thread_index() == 0) {
    *p.scheduler_counter = 0;
  }
}

}  // namespace att
