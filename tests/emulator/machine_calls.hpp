// What translated kernels ask of the machine that runs them. All of it is of the thread that runs.
#pragma once

#include <array>

namespace emu {

using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;

struct Index {
  u32 x, y, z;
};
u32 thread_index();
u32 block_size();
Index block_index();
Index block_counts();
u32 cluster_rank();

// A kernel with its arguments.
struct BoundKernel {
  virtual ~BoundKernel() = default;
  virtual void run() const = 0;  // one thread of it
};
// A kernel of one object, in the list of them.
struct KernelEntry {
  KernelEntry(const char* its_name, BoundKernel* (*its_bind)(void** arguments));
  const char* const name;
  BoundKernel* (*const bind)(void** arguments);
  const KernelEntry* const next;
};

[[noreturn]] void fault(const char* what);
[[noreturn]] void end_thread();
void let_others_run();

// The memory behind an address. Faults where it is not the kernel's, or not aligned to `bytes`.
void* global_memory(u64 address, u32 bytes);
void* shared_memory(u32 address, u32 bytes);
u32 shared_address(const void* pointer);
unsigned char* dynamic_shared();
void* static_shared(int number, u64 bytes, u64 alignment);

// A shared address bears its CTA's rank in the cluster.
constexpr u32 kRankShift = 24, kOffsetBits = (1u << kRankShift) - 1;

// Asynchronous copies.
void copy_async(u32 to, u64 from, u32 bytes, u32 read);
void copy_commit();
void copy_wait(int groups);
void copy_arrive(u32 barrier);
void bulk_load(u32 to, u64 from, u32 bytes, u32 barrier);
void store_async(u32 to, const u32* words, int count, u32 barrier);
using Position = std::array<int, 5>;
// `ctas`: a bit for each CTA of the cluster; 0: the one that asks.
void tensor_load(u32 to, u64 map, const Position& at, int rank, u32 barrier, u32 ctas);
void tensor_store(u64 map, const Position& at, int rank, u32 from);
void store_commit();
void store_wait(int groups);

// Barriers.
void mbarrier_init(u32 barrier, u32 arrivals);
void mbarrier_arrive(u32 barrier, u32 expected_bytes);
bool mbarrier_try_wait(u32 barrier, u32 parity);
void barrier_arrive(u32 barrier, u32 threads, bool waits);
bool barrier_any(u32 barrier, u32 threads, bool value);
bool sync_threads(bool value);  // whether it was true for any
void cluster_arrive();
void cluster_wait();

// Warps.
u32 shuffle(u32 value, u32 lanes, u32 bounds, bool is_butterfly);
u32 reduce_least(u32 value);
u32 reduce_most(u32 value);
u32 reduce_sum(u32 value);
u32 ballot(bool value);
u32 lanes_of_same(u32 value);
u32 transposed_matrix(u32 two);
void load_matrices(u32 (&words)[4], u32 address, bool transposed);
void store_matrices(u32 address, const u32 (&words)[4], bool transposed);
enum class Element { bf16, f16, tf32 };
void multiply_warp(u32 (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], Element element);

// Warpgroups: D[64, columns] = or += A[64, 16] B[16, columns].
struct GroupProduct {
  float* sums;
  int columns;
  Element element;
  bool adds;
  bool a_in_registers = false;
  bool transposes_a = false, transposes_b = false;
  u32 a[4] = {};
  u64 a_descriptor = 0, b_descriptor = 0;
};
void multiply_group(const GroupProduct& product);
void products_commit();
void products_wait(int groups);

unsigned char narrowed_e4m3(float x);

}  // namespace emu
