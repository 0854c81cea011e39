// The layout of the first version's structs in two headers.
#pragma once

#include <string>
#include <vector>

struct AbiEntry {
  std::string name;
  long offset;  // or value
  std::size_t bytes;
};

std::vector<AbiEntry> old_abi_layout();  // by tests/fixtures/abi/0.1
std::vector<AbiEntry> abi_layout();      // by runtime/include
