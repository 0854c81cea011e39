// Ctrl-C: the first asks the command to stop at the next safe point, the second ends it at once.
#pragma once

namespace attune::cli {

// From now on; for commands that ask interrupted() again and again. Others end at the first.
void catch_interrupt();
bool interrupted();

}  // namespace attune::cli
