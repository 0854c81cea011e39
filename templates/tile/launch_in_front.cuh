// What launches do that come in front of a main launch: it may start meanwhile where it waits for
// them of its own accord, and finds its scheduler's counter at zero.
#pragma once

#include "templates/params.h"
#include "templates/ptx/dependent_launch.cuh"

namespace att {

#if ATT_DEVICE_CODE
ATT_FN void begin_launch_in_front(const ForwardParams& p) {
  let_next_launch_start();
  if (p.scheduler_counter != nullptr && block_index() == 0 && thread_index() == 0) {
    *p.scheduler_counter = 0;
  }
}
#endif

}  // namespace att
