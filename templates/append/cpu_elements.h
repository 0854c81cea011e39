// Stored elements on CPU cores, which convert fp16 by instructions of their vector extension.
#pragma once

#include "templates/cpu/vector.h"
