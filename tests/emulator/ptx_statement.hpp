// One inline assembly statement of PTX as C++.
#pragma once

#include <string>
#include <string_view>

namespace attune::emulator {

// `arguments` is what an asm statement's parentheses enclose: text, outputs, inputs, clobbers.
// `number` tells statements' labels apart. The C++ is one block.
std::string ptx_statement(std::string_view arguments, int number);

}  // namespace attune::emulator
