// Copies that a thread starts and does not wait for: cp.async, TMA, st.async.
#include <cstring>

#include "tests/emulator/machine.hpp"
#include "tests/emulator/tensor_map.hpp"

namespace emu {
namespace {

void do_now_or_later(std::function<void()> work) {
  if (!machine.is_late()) return work();
  // Addresses and barriers are those of the CTA that asked.
  machine.postpone(
      [asks = &machine.current(), work = std::move(work)] { machine.as(*asks, work); });
}

u32 swizzled(u32 offset, u32 mode) { return offset ^ (offset >> 7 & ((1u << mode) - 1)) << 4; }

// Calls each(shared offset, global address, bytes) for pieces of a box; the address is 0 outside of
// the tensor. A piece is 16 bytes that a swizzle keeps together, or less where the tensor ends.
template <typename Each>
void for_box(const TensorMap& map, const Position& at, const Each& each) {
  std::array<u32, 5> in_box{};
  const u32 row_bytes = map.box[0] * map.element_bytes;
  for (u32 row = 0;; ++row) {
    u64 address = map.address;
    bool is_inside = true;
    for (u32 dim = 1; dim < map.rank; ++dim) {
      const long long place = static_cast<long long>(at[dim]) + in_box[dim];
      is_inside &= place >= 0 && place < map.dims[dim];
      address += static_cast<u64>(place) * map.strides[dim - 1];
    }
    const u32 in_piece = 16 / map.element_bytes;
    for (u32 column = 0; column < map.box[0]; column += in_piece) {
      const long long place = static_cast<long long>(at[0]) + column;
      const u32 offset = row * row_bytes + column * map.element_bytes;
      const u64 from = address + static_cast<u64>(place) * map.element_bytes;
      if (!is_inside ||
          (place >= 0 && place + in_piece <= map.dims[0] && column + in_piece <= map.box[0])) {
        each(offset, is_inside ? from : 0, std::min(16u, row_bytes - column * map.element_bytes));
        continue;
      }
      for (u32 i = 0; i < in_piece && column + i < map.box[0]; ++i) {
        const bool has_one = place + i >= 0 && place + i < map.dims[0];
        each(offset + i * map.element_bytes, has_one ? from + i * map.element_bytes : 0,
             map.element_bytes);
      }
    }
    u32 dim = 1;
    while (dim < map.rank && ++in_box[dim] == map.box[dim]) in_box[dim++] = 0;
    if (dim >= map.rank) return;
  }
}

u32 box_bytes(const TensorMap& map) {
  u32 bytes = map.element_bytes;
  for (u32 dim = 0; dim < map.rank; ++dim) bytes *= map.box[dim];
  return bytes;
}

TensorMap read_map(u64 address, int rank) {
  TensorMap map;
  std::memcpy(&map, reinterpret_cast<const void*>(address), sizeof map);
  if (map.rank != rank) throw Fault("a tensor map of another rank than the copy's");
  return map;
}

// Work of the thread's own, which it waits for by groups.
using Groups = std::deque<std::vector<Thread::Work>>;
void do_now_or_in_group(Groups& groups, Thread::Work work) {
  if (!machine.is_late()) return work();
  groups.back().push_back(std::move(work));
}

// All groups but the latest `left` ones that are committed.
void finish(Groups& groups, int left) {
  while (groups.size() > static_cast<std::size_t>(left) + 1) {
    for (const Thread::Work& work : groups.front()) work();
    groups.pop_front();
  }
}

}  // namespace

void copy_async(u32 to, u64 from, u32 bytes, u32 read) {
  shared_memory(to, bytes);
  if (read > 0) global_memory(from, bytes);
  do_now_or_in_group(machine.current().copy_groups, [=] {
    void* const place = shared_memory(to, bytes);
    std::memset(place, 0, bytes);
    if (read > 0) std::memcpy(place, global_memory(from, bytes), read);
  });
}

void copy_commit() { machine.current().copy_groups.emplace_back(); }

void copy_wait(int groups) { finish(machine.current().copy_groups, groups); }

void copy_arrive(u32 barrier) {
  Thread& thread = machine.current();
  std::vector<Thread::Work> before;
  for (auto& group : thread.copy_groups) {
    for (Thread::Work& work : group) before.push_back(std::move(work));
    group.clear();
  }
  do_now_or_later([before = std::move(before), barrier] {
    for (const Thread::Work& work : before) work();
    mbarrier_arrive(barrier, 0);
  });
}

void bulk_load(u32 to, u64 from, u32 bytes, u32 barrier) {
  if (bytes % 16 != 0 || bytes == 0) throw Fault("a bulk copy of a part of 16 bytes");
  do_now_or_later([=] {
    for (u32 i = 0; i < bytes; i += 16) {
      std::memcpy(shared_memory(to + i, 16), global_memory(from + i, 16), 16);
    }
    mbarrier_complete(barrier, bytes);
  });
}

void store_async(u32 to, const u32* words, int count, u32 barrier) {
  std::vector<u32> values(words, words + count);
  do_now_or_later([=] {
    const u32 bytes = static_cast<u32>(4 * count);
    std::memcpy(shared_memory(to, bytes), values.data(), bytes);
    mbarrier_complete(barrier, bytes);
  });
}

void tensor_load(u32 to, u64 map_address, const Position& at, int rank, u32 barrier, u32 ctas) {
  const TensorMap map = read_map(map_address, rank);
  if (to % 128 != 0) throw Fault("a box is not aligned to 128 bytes");
  if (ctas == 0) ctas = 1u << (to >> kRankShift);
  do_now_or_later([=] {
    const std::size_t size = machine.cta().cluster->ctas.size();
    for (u32 rank_to = 0; rank_to < size; ++rank_to) {
      if ((ctas >> rank_to & 1) == 0) continue;
      const u32 base = rank_to << kRankShift | (to & kOffsetBits);
      for_box(map, at, [&](u32 offset, u64 address, u32 bytes) {
        void* const cell = shared_memory(swizzled(base + offset, map.swizzle), bytes);
        if (address == 0)
          std::memset(cell, 0, bytes);
        else
          std::memcpy(cell, global_memory(address, bytes), bytes);
      });
      mbarrier_complete(rank_to << kRankShift | (barrier & kOffsetBits), box_bytes(map));
    }
  });
}

void tensor_store(u64 map_address, const Position& at, int rank, u32 from) {
  const TensorMap map = read_map(map_address, rank);
  if (from % 128 != 0) throw Fault("a box is not aligned to 128 bytes");
  do_now_or_in_group(machine.current().store_groups, [=] {
    for_box(map, at, [&](u32 offset, u64 address, u32 bytes) {
      const void* const cell = shared_memory(swizzled(from + offset, map.swizzle), bytes);
      if (address != 0) std::memcpy(global_memory(address, bytes), cell, bytes);
    });
  });
}

void store_commit() { machine.current().store_groups.emplace_back(); }

void store_wait(int groups) { finish(machine.current().store_groups, groups); }

// OCP 8-bit floating point, e4m3: to nearest even, saturating.
unsigned char narrowed_e4m3(float x) {
  const u32 all = __builtin_bit_cast(u32, x);
  const auto sign = static_cast<unsigned char>(all >> 24 & 0x80);
  if (x != x) return 0x7F;
  const float size = __builtin_fabsf(x);
  unsigned char best = 0;
  float nearest = __builtin_inff();
  for (unsigned char code = 0; code < 0x7F; ++code) {
    const int exponent = code >> 3, fraction = code & 7;
    const float value = exponent == 0 ? static_cast<float>(fraction) * 0x1p-9f
                                      : (1 + static_cast<float>(fraction) / 8) *
                                            __builtin_ldexpf(1.0f, exponent - 7);
    const float distance = __builtin_fabsf(value - size);
    if (distance < nearest || (distance == nearest && code % 2 == 0)) {
      nearest = distance;
      best = code;
    }
  }
  return sign | best;
}

}  // namespace emu
