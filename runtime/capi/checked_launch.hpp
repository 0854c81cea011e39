// The checking mode (docs/runtime.md, ATTUNE_CHECK): what a launch is to read of sequences and
// pages is read here first.
#pragma once

#include "generator/support/result.hpp"
#include "runtime/device/device.hpp"
#include "templates/append/params.h"
#include "templates/params.h"

namespace attune {

// The errors of check_sequences() for the arrays that `params` point to, as they are once all that
// was enqueued on `stream` is done; fine where there are none. The parameters themselves have been
// checked. On a GPU it waits for the stream: kUnsupported "check-in-capture" where that is being
// captured into a graph, which goes on. Allocates as much as the arrays take.
Status check_launch(Device& device, const att::LaunchParams& params, StreamHandle stream);
Status check_launch(Device& device, const att::AppendParams& params, StreamHandle stream);

}  // namespace attune
