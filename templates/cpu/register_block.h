// Which register blocks a plan's products have: read by kernels and by their cost model.
#pragma once

namespace att {

// Rows of a register block whose plan has `most`, where there are `rows` of them, a multiple of 4.
constexpr int rows_of_block(int rows, int most) {
  return rows % most == 0 ? most : rows % 8 == 0 && most > 8 ? 8 : 4;
}

}  // namespace att
