// Which exponentials are not worth taking.
#pragma once

namespace att {

// Scores so far below one that their row has met, log2, have exponentials that do not count: of
// 2^20 of them less than the last bit of the row's sum.
constexpr float kNegligible = 44.0f;

}  // namespace att
