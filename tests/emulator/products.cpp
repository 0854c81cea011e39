// wgmma: PTX ISA, "Asynchronous warpgroup level matrix" instructions. Threads leave their products
// in a queue; the warpgroup does them when a group is committed, or when it waits for it.
#include <cstring>

#include "tests/emulator/element.hpp"
#include "tests/emulator/machine.hpp"

namespace emu {
namespace {

constexpr int kRows = 64, kDepth = 16, kMostColumns = 256;

// A matrix in shared memory by its descriptor.
struct Operand {
  Operand(u64 descriptor, const Cta& cta)
      : memory(cta.shared),
        start(static_cast<u32>(descriptor & 0x3FFF) << 4),
        leading(static_cast<u32>(descriptor >> 16 & 0x3FFF) << 4),
        stride(static_cast<u32>(descriptor >> 32 & 0x3FFF) << 4),
        swizzle(static_cast<u32>(descriptor >> 62)) {
    if (swizzle > 1) throw Fault("a swizzle of a product that the emulator does not know");
    if ((descriptor >> 49 & 7) != 0) throw Fault("a descriptor with a base offset");
    end = cta.shared_end;
  }

  // Element (row, k); the row is n of B, m of A. Depth is contiguous, or when transposed the rows.
  u16 at(u32 row, u32 k, bool transposed) const {
    u32 offset;
    if (transposed) {
      if (swizzle == 0) throw Fault("a transposed operand without a swizzle");
      offset = start + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2;
    } else if (swizzle == 1) {
      offset = start + row / 8 * stride + row % 8 * 128 + k * 2;
    } else {
      offset = start + row / 8 * stride + row % 8 * 16 + k / 8 * leading + k % 8 * 2;
    }
    if (swizzle == 1) offset ^= (offset >> 7 & 7) << 4;
    if (offset < kDynamicOffset || offset + 2 > end) throw Fault("a product reads beyond memory");
    u16 bits;
    std::memcpy(&bits, memory + offset, 2);
    return bits;
  }

  const unsigned char* memory;
  u32 start, leading, stride, swizzle, end;
};

bool is_same_product(const GroupProduct& a, const GroupProduct& b) {
  return a.columns == b.columns && a.element == b.element && a.adds == b.adds &&
         a.a_in_registers == b.a_in_registers && a.transposes_a == b.transposes_a &&
         a.transposes_b == b.transposes_b && a.a_descriptor == b.a_descriptor &&
         a.b_descriptor == b.b_descriptor;
}

class Group {
 public:
  Group(Cta& cta, std::size_t number) : cta_(cta), first_(number * kGroupThreads) {}

  // All products of the oldest `count` groups.
  void run(std::size_t count) {
    const std::size_t expected = thread(0).product_groups.size();
    for (std::size_t i = 0; i < kGroupThreads; ++i) {
      if (thread(i).product_groups.size() != expected) throw Fault("groups of products differ");
    }
    for (; count > 0; --count) {
      const std::size_t products = thread(0).product_groups.front().size();
      for (std::size_t at = 0; at < products; ++at) {
        for (std::size_t i = 0; i < kGroupThreads; ++i) {
          const auto& own = thread(i).product_groups.front();
          if (own.size() != products || !is_same_product(own[at], product(0, at))) {
            throw Fault("a warpgroup's threads ask for different products");
          }
        }
        multiply(at, at + 1 < products && product(0, at + 1).sums == product(0, at).sums &&
                         product(0, at + 1).columns == product(0, at).columns);
      }
      for (std::size_t i = 0; i < kGroupThreads; ++i) thread(i).product_groups.pop_front();
    }
  }

 private:
  Thread& thread(std::size_t i) { return *cta_.threads[first_ + i]; }
  const GroupProduct& product(std::size_t i, std::size_t at) {
    return thread(i).product_groups.front()[at];
  }

  // `sums_stay`: the next product goes on with them.
  void multiply(std::size_t at, bool sums_stay) {
    const GroupProduct& one = product(0, at);
    read_a(at);
    const Operand b(one.b_descriptor, cta_);
    for (int n = 0; n < one.columns; ++n) {
      for (int k = 0; k < kDepth; ++k) {
        b_[k][n] =
            widened(b.at(static_cast<u32>(n), static_cast<u32>(k), one.transposes_b), one.element);
      }
    }
    if (!has_sums_) move_sums(at, true);
    if (!one.adds) std::memset(sums_, 0, sizeof sums_);
    for (int row = 0; row < kRows; ++row) {
      for (int k = 0; k < kDepth; ++k) {
        const float left = a_[row][k];
        for (int n = 0; n < one.columns; ++n) sums_[row][n] += left * b_[k][n];
      }
    }
    has_sums_ = sums_stay;
    if (!sums_stay) move_sums(at, false);
  }

  void read_a(std::size_t at) {
    const GroupProduct& one = product(0, at);
    if (!one.a_in_registers) {
      const Operand a(one.a_descriptor, cta_);
      for (u32 row = 0; row < kRows; ++row) {
        for (u32 k = 0; k < kDepth; ++k) {
          a_[row][k] = widened(a.at(row, k, one.transposes_a), one.element);
        }
      }
      return;
    }
    for (std::size_t i = 0; i < kGroupThreads; ++i) {
      const GroupProduct& own = product(i, at);
      const std::size_t g = i % 32 / 4, t = i % 4;
      for (std::size_t j = 0; j < 4; ++j) {
        float* const two = &a_[i / 32 * 16 + g + j % 2 * 8][2 * t + j / 2 * 8];
        two[0] = widened(static_cast<u16>(own.a[j]), one.element);
        two[1] = widened(static_cast<u16>(own.a[j] >> 16), one.element);
      }
    }
  }

  // Between the threads' registers and one matrix.
  void move_sums(std::size_t at, bool from_threads) {
    for (std::size_t i = 0; i < kGroupThreads; ++i) {
      const GroupProduct& own = product(i, at);
      for (std::size_t j = 0; j < static_cast<std::size_t>(own.columns) / 2; ++j) {
        float& cell =
            sums_[i / 32 * 16 + i % 32 / 4 + j / 2 % 2 * 8][j / 4 * 8 + i % 4 * 2 + j % 2];
        if (from_threads)
          cell = own.sums[j];
        else
          own.sums[j] = cell;
      }
    }
  }

  Cta& cta_;
  const std::size_t first_;
  bool has_sums_ = false;
  float a_[kRows][kDepth], b_[kDepth][kMostColumns], sums_[kRows][kMostColumns];
};

// The whole warpgroup is here, and all but the latest `left` committed groups are done.
void do_products(const char* what, std::size_t left) {
  Thread& thread = machine.current();
  Cta& cta = machine.cta();
  const auto number = static_cast<std::size_t>(thread.index / kGroupThreads);
  machine.meet(machine.group().meeting, kGroupThreads, what, [&] {
    const std::size_t committed = thread.product_groups.size() - 1;
    static Group* group = nullptr;  // too large for a thread's stack
    delete group;
    group = new Group(cta, number);
    if (committed > left) group->run(committed - left);
  });
}

}  // namespace

void multiply_group(const GroupProduct& product) {
  machine.current().product_groups.back().push_back(product);
}

void products_commit() {
  machine.current().product_groups.emplace_back();
  if (!machine.group().is_late) do_products("wgmma.commit_group", 0);
}

void products_wait(int groups) {
  do_products("wgmma.wait_group", static_cast<std::size_t>(groups));
}

}  // namespace emu
