// What a warp does together: PTX ISA, "Warp-level" instructions and matrix fragments.
#include <cstring>

#include "tests/emulator/element.hpp"
#include "tests/emulator/machine.hpp"

namespace emu {
namespace {

using Words = std::array<std::array<u32, 10>, kLanes>;

// Each lane brings words, and one computes for all.
template <std::size_t kCount, typename Work>
std::array<u32, 10>& together(const char* what, const u32 (&brought)[kCount],
                              const Work& all_here) {
  Warp& warp = machine.warp();
  auto& own = warp.words[static_cast<std::size_t>(machine.current().lane())];
  for (std::size_t i = 0; i < kCount; ++i) own[i] = brought[i];
  machine.meet(warp.meeting, warp.live, what, [&] { all_here(warp.words); });
  return own;
}

template <typename Join>
u32 reduced(const char* what, u32 value, const Join& join) {
  return together(what, {value}, [&](Words& words) {
    u32 all = words[0][0];
    for (std::size_t i = 1; i < kLanes; ++i) all = join(all, words[i][0]);
    for (auto& each : words) each[0] = all;
  })[0];
}

// Matrices of 8 x 8: lane 4g + t has elements [g][2t] and [g][2t + 1] in one word. They are reached
// by shifts: reads through a pointer to halves GCC may put before the writes of words (aliasing).
u16 element(u32 word, int which) { return static_cast<u16>(word >> 16 * which); }
void set_element(u32& word, int which, u16 value) {
  word = (word & ~(0xFFFFu << 16 * which)) | static_cast<u32>(value) << 16 * which;
}

void copy_matrix_row(int row, bool transposed, unsigned char* memory, Words& words,
                     std::size_t matrix, bool is_load) {
  for (int column = 0; column < 8; ++column) {
    const int g = transposed ? column : row, c = transposed ? row : column;
    u32& word = words[static_cast<std::size_t>(4 * g + c / 2)][matrix];
    u16 held = element(word, c % 2);
    if (is_load) {
      std::memcpy(&held, memory + 2 * column, 2);
      set_element(word, c % 2, held);
    } else {
      std::memcpy(memory + 2 * column, &held, 2);
    }
  }
}

void matrices(Words& words, bool transposed, bool is_load) {
  std::array<unsigned char*, kLanes> rows;
  for (std::size_t i = 0; i < kLanes; ++i) {
    rows[i] = static_cast<unsigned char*>(shared_memory(words[i][4], 16));
  }
  for (std::size_t i = 0; i < kLanes; ++i) {
    copy_matrix_row(static_cast<int>(i % 8), transposed, rows[i], words, i / 8, is_load);
  }
}

}  // namespace

u32 shuffle(u32 value, u32 lanes, u32 bounds, bool is_butterfly) {
  const auto move = [is_butterfly](Words& words) {
    u32 brought[kLanes];
    for (u32 i = 0; i < kLanes; ++i) brought[i] = words[i][0];
    for (u32 i = 0; i < kLanes; ++i) {
      const u32 lane = words[i][1] & 31, segment = words[i][2] >> 8 & 31;
      const u32 most = (i & segment) | (words[i][2] & 31 & ~segment);
      u32 from = is_butterfly ? i ^ lane : (i & segment) | (lane & ~segment);
      if (from > most) from = i;
      words[i][0] = brought[from];
    }
  };
  return together(is_butterfly ? "shfl.bfly" : "shfl.idx", {value, lanes, bounds}, move)[0];
}

u32 reduce_least(u32 value) {
  return reduced("redux.min", value, [](u32 a, u32 b) { return a < b ? a : b; });
}
u32 reduce_most(u32 value) {
  return reduced("redux.max", value, [](u32 a, u32 b) { return a > b ? a : b; });
}
u32 reduce_sum(u32 value) {
  return reduced("redux.add", value, [](u32 a, u32 b) { return a + b; });
}
u32 ballot(bool value) {
  const u32 lane = static_cast<u32>(machine.current().lane());
  return reduced("vote", value ? 1u << lane : 0, [](u32 a, u32 b) { return a | b; });
}

u32 lanes_of_same(u32 value) {
  return together("match", {value}, [](Words& words) {
    for (auto& one : words) {
      one[1] = 0;
      for (u32 i = 0; i < kLanes; ++i) one[1] |= words[i][0] == one[0] ? 1u << i : 0;
    }
  })[1];
}

u32 transposed_matrix(u32 two) {
  return together("movmatrix", {two}, [](Words& words) {
    const Words brought = words;
    for (int row = 0; row < 8; ++row) {
      for (int column = 0; column < 8; ++column) {
        set_element(
            words[static_cast<std::size_t>(4 * column + row / 2)][0], row % 2,
            element(brought[static_cast<std::size_t>(4 * row + column / 2)][0], column % 2));
      }
    }
  })[0];
}

void load_matrices(u32 (&words)[4], u32 address, bool transposed) {
  const auto& found = together("ldmatrix", {0, 0, 0, 0, address},
                               [&](Words& all) { matrices(all, transposed, true); });
  std::memcpy(words, found.data(), sizeof words);
}

void store_matrices(u32 address, const u32 (&words)[4], bool transposed) {
  together("stmatrix", {words[0], words[1], words[2], words[3], address},
           [&](Words& all) { matrices(all, transposed, false); });
}

void multiply_warp(u32 (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], Element type) {
  const auto& found = together(
      "mma", {sums[0], sums[1], sums[2], sums[3], a[0], a[1], a[2], a[3], b[0], b[1]},
      [type](Words& words) {
        const int depth = type == Element::tf32 ? 8 : 16;
        float left[16][16], right[16][8];
        for (int lane = 0; lane < kLanes; ++lane) {
          const int g = lane / 4, t = lane % 4;
          const auto& own = words[static_cast<std::size_t>(lane)];
          for (int i = 0; i < 4; ++i) {  // of A: rows g and g + 8, then the other half of columns
            const int row = g + i % 2 * 8;
            if (type == Element::tf32) {
              left[row][t + i / 2 * 4] = tf32(own[static_cast<std::size_t>(4 + i)]);
              continue;
            }
            for (int half = 0; half < 2; ++half) {
              left[row][2 * t + half + i / 2 * 8] =
                  widened(element(own[static_cast<std::size_t>(4 + i)], half), type);
            }
          }
          for (int i = 0; i < 2; ++i) {
            if (type == Element::tf32) {
              right[t + i * 4][g] = tf32(own[static_cast<std::size_t>(8 + i)]);
              continue;
            }
            for (int half = 0; half < 2; ++half) {
              right[2 * t + half + i * 8][g] =
                  widened(element(own[static_cast<std::size_t>(8 + i)], half), type);
            }
          }
        }
        for (int lane = 0; lane < kLanes; ++lane) {
          for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            u32& word = words[static_cast<std::size_t>(lane)][static_cast<std::size_t>(i)];
            float sum = __builtin_bit_cast(float, word);
            for (int k = 0; k < depth; ++k) sum += left[row][k] * right[k][column];
            word = __builtin_bit_cast(u32, sum);
          }
        }
      });
  std::memcpy(sums, found.data(), sizeof sums);
}

}  // namespace emu
