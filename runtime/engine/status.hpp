// What a runtime has and does, as JSON. docs/runtime.md lists the fields.
#pragma once

#include <string>

#include "runtime/engine/dispatcher.hpp"

namespace attune {

// "measured", "nearest", "model" or "stand-in".
const char* to_string(PlanSource source);

// Opens the compiler to say which it is. Thread-safe; a moment's picture, not a consistent one.
std::string status_json(const Dispatcher& dispatcher);

}  // namespace attune
