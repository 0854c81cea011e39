// Ctrl-C: the first asks the command to stop at the next safe point, the second ends it at once.
#pragma once

namespace attune::cli {

void catch_interrupt();
bool interrupted();

}  // namespace attune::cli
