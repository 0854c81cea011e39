// What translated kernels call: PTX instructions under their own names, with "_" for "." and ":".
// These reach memory and other threads, and ask the machine; those of a thread's own registers are
// in registers.hpp.
#pragma once

#include <tuple>
#include <utility>

#include "tests/emulator/machine_calls.hpp"
#include "tests/emulator/registers.hpp"

namespace emu {

// Global memory.
template <typename T>
T& global(u64 address) {
  return *static_cast<T*>(global_memory(address, sizeof(T)));
}
inline void ld_global_nc_s32(u32& d, u64 a) { d = global<u32>(a); }
inline void ld_global_nc_f32(u32& d, u64 a) { d = global<u32>(a); }
inline void ld_global_nc_u8(u32& d, u64 a) { d = global<unsigned char>(a); }
inline void ld_global_nc_u16(u16& d, u64 a) { d = global<u16>(a); }
inline void ld_global_nc_u64(u64& d, u64 a) { d = global<u64>(a); }
template <typename List>
void load_list(const List& d, void* from) {
  const u32* words = static_cast<const u32*>(from);
  std::apply([&](auto&... each) { ((each = *words++), ...); }, d);
}
template <typename List>
void store_list(void* to, const List& a) {
  u32* words = static_cast<u32*>(to);
  std::apply([&](const auto&... each) { ((*words++ = each), ...); }, a);
}
#define EMU_LOAD(name, memory)                            \
  template <typename List, typename Address>              \
  void name(const List& d, Address a) {                   \
    load_list(d, memory(a, 4 * std::tuple_size_v<List>)); \
  }
#define EMU_STORE(name, memory)                            \
  template <typename List, typename Address>               \
  void name(Address a, const List& b) {                    \
    store_list(memory(a, 4 * std::tuple_size_v<List>), b); \
  }
EMU_LOAD(ld_global_nc_v4_b32, global_memory)
EMU_LOAD(ld_global_cg_v4_f32, global_memory)
EMU_STORE(st_global_v4_b32, global_memory)
EMU_STORE(st_global_v2_b32, global_memory)
inline void prefetch_global_L1(u64) {}
inline void cp_async_bulk_prefetch_L2_global(u64, u32) {}
inline void prefetch_tensormap(u64) {}
// Threads take turns, never within an instruction: atomics are plain. Who reads what others write
// may be waiting for it, and lets them.
inline void ld_acquire_gpu_global_u32(u32& d, u64 a) {
  let_others_run();
  d = global<u32>(a);
}
inline void ld_relaxed_gpu_global_u32(u32& d, u64 a) { ld_acquire_gpu_global_u32(d, a); }
inline void nanosleep_u32(u32) { let_others_run(); }
inline void atom_relaxed_gpu_global_add_u32(u32& d, u64 a, u32 b) {
  d = global<u32>(a);
  global<u32>(a) = d + b;
}
inline void atom_acq_rel_gpu_global_add_u32(u32& d, u64 a, u32 b) {
  atom_relaxed_gpu_global_add_u32(d, a, b);
}
inline void atom_acq_rel_gpu_global_add_u64(u64& d, u64 a, u64 b) {
  d = global<u64>(a);
  global<u64>(a) = d + b;
}
inline void ld_relaxed_gpu_global_u64(u64& d, u64 a) {
  let_others_run();
  d = global<u64>(a);
}
inline void atom_relaxed_gpu_global_cas_b64(u64& d, u64 a, u64 expected, u64 b) {
  d = global<u64>(a);
  if (d == expected) global<u64>(a) = b;
}
inline void atom_relaxed_gpu_global_exch_b128(u128& d, u64 a, u128 b) {
  d = global<u128>(a);
  global<u128>(a) = b;
}
inline void red_release_gpu_global_max_s32(u64 a, u32 b) {
  int& place = global<int>(a);
  if (static_cast<int>(b) > place) place = static_cast<int>(b);
}
inline void red_relaxed_gpu_global_add_f32(u64 a, u32 b) { global<float>(a) += as_float(b); }
inline void red_relaxed_gpu_global_add_f64(u64 a, u64 b) { global<double>(a) += as_double(b); }
template <typename List>
void red_relaxed_gpu_global_add_v4_f32(u64 a, const List& b) {
  float* to = static_cast<float*>(global_memory(a, 16));
  std::apply([&](const auto&... each) { ((*to++ += as_float(each)), ...); }, b);
}

// Shared memory.
template <typename T>
T& shared(u32 address) {
  return *static_cast<T*>(shared_memory(address, sizeof(T)));
}
inline void cvta_to_shared_u64(u64& d, u64 a) { d = shared_address(reinterpret_cast<void*>(a)); }
inline void ld_shared_b32(u32& d, u32 a) { d = shared<u32>(a); }
inline void ld_relaxed_cta_shared_b32(u32& d, u32 a) {
  let_others_run();
  d = shared<u32>(a);
}
inline void st_shared_b32(u32 a, u32 b) { shared<u32>(a) = b; }
EMU_LOAD(ld_shared_v2_b32, shared_memory)
EMU_LOAD(ld_shared_v2_f32, shared_memory)
EMU_LOAD(ld_shared_v4_b32, shared_memory)
EMU_LOAD(ld_shared_v4_f32, shared_memory)
EMU_STORE(st_shared_v2_b32, shared_memory)
EMU_STORE(st_shared_v2_f32, shared_memory)
EMU_STORE(st_shared_v4_b32, shared_memory)
EMU_STORE(st_shared_v4_f32, shared_memory)
#undef EMU_LOAD
#undef EMU_STORE
inline void atom_shared_add_u32(u32& d, u32 a, u32 b) {
  d = shared<u32>(a);
  shared<u32>(a) = d + b;
}
inline void red_shared_add_s32(u32 a, u32 b) { shared<u32>(a) += b; }
inline void atom_shared_add_s32(u32& d, u32 a, u32 b) {
  d = shared<u32>(a);
  shared<u32>(a) += b;
}
inline void red_shared_max_s32(u32 a, u32 b) {
  int& place = shared<int>(a);
  if (static_cast<int>(b) > place) place = static_cast<int>(b);
}
inline void red_shared_or_b32(u32 a, u32 b) { shared<u32>(a) |= b; }
inline void red_relaxed_cluster_shared__cluster_or_b32(u32 a, u32 b) { shared<u32>(a) |= b; }
inline void mapa_shared__cluster_u32(u32& d, u32 a, u32 rank) {
  d = (a & kOffsetBits) | rank << kRankShift;
}
template <typename List>
void st_async_shared__cluster_mbarrier__complete_tx__bytes_v2_f32(u32 a, const List& b, u32 told) {
  u32 words[std::tuple_size_v<List>];
  store_list(words, b);
  store_async(a, words, std::tuple_size_v<List>, told);
}
template <typename List>
void st_async_shared__cluster_mbarrier__complete_tx__bytes_v4_f32(u32 a, const List& b, u32 told) {
  st_async_shared__cluster_mbarrier__complete_tx__bytes_v2_f32(a, b, told);
}

// Copies.
inline void cp_async_cg_shared_global_L2__128B(u32 to, u64 from, u32 bytes, u32 read = 16) {
  copy_async(to, from, bytes, read);
}
inline void cp_async_ca_shared_global(u32 to, u64 from, u32 bytes, u32 read) {
  copy_async(to, from, bytes, read);
}
inline void cp_async_commit_group() { copy_commit(); }
inline void cp_async_wait_group(int groups) { copy_wait(groups); }
inline void cp_async_mbarrier_arrive_noinc_shared_b64(u32 barrier) { copy_arrive(barrier); }
inline void cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes(u32 to, u64 from,
                                                                              u32 bytes,
                                                                              u32 barrier) {
  bulk_load(to, from, bytes, barrier);
}
template <typename List>
Position position(const List& at) {
  const auto of = [](const auto&... each) { return Position{static_cast<int>(each)...}; };
  return std::apply(of, at);
}
template <typename List>
void box_load(u32 to, u64 map, const List& at, u32 barrier, u32 ctas) {
  tensor_load(to, map, position(at), std::tuple_size_v<List>, barrier, ctas);
}
constexpr u32 kOwnCta = 0;
template <typename List>
void cp_async_bulk_tensor_4d_shared__cluster_global_mbarrier__complete_tx__bytes_L2__cache_hint(
    u32 to, u64 map, const List& at, u32 barrier, u64) {
  box_load(to, map, at, barrier, kOwnCta);
}
template <typename List>
void cp_async_bulk_tensor_5d_shared__cluster_global_mbarrier__complete_tx__bytes_L2__cache_hint(
    u32 to, u64 map, const List& at, u32 barrier, u64) {
  box_load(to, map, at, barrier, kOwnCta);
}
template <typename List>
void cp_async_bulk_tensor_4d_shared__cluster_global_mbarrier__complete_tx__bytes_multicast__cluster_L2__cache_hint(
    u32 to, u64 map, const List& at, u32 barrier, u16 ctas, u64) {
  box_load(to, map, at, barrier, ctas);
}
template <typename List>
void cp_async_bulk_tensor_5d_shared__cluster_global_mbarrier__complete_tx__bytes_multicast__cluster_L2__cache_hint(
    u32 to, u64 map, const List& at, u32 barrier, u16 ctas, u64) {
  box_load(to, map, at, barrier, ctas);
}
template <typename List>
void cp_async_bulk_tensor_4d_global_shared__cta_bulk_group(u64 map, const List& at, u32 from) {
  tensor_store(map, position(at), std::tuple_size_v<List>, from);
}
template <typename List>
void cp_async_bulk_tensor_5d_global_shared__cta_bulk_group(u64 map, const List& at, u32 from) {
  cp_async_bulk_tensor_4d_global_shared__cta_bulk_group(map, at, from);
}
inline void cp_async_bulk_commit_group() { store_commit(); }
inline void cp_async_bulk_wait_group_read(int groups) { store_wait(groups); }
inline void cp_async_bulk_wait_group(int groups) { store_wait(groups); }
inline void fence_proxy_async_shared__cta() {}
inline void fence_proxy_async_global() {}
inline void fence_mbarrier_init_release_cluster() {}

// Barriers.
inline void mbarrier_init_shared__cta_b64(u32 a, u32 arrivals) { mbarrier_init(a, arrivals); }
inline void mbarrier_arrive_shared__cta_b64(u32 a) { mbarrier_arrive(a, 0); }
inline void mbarrier_arrive_shared__cluster_b64(u32 a) { mbarrier_arrive(a, 0); }
inline void mbarrier_arrive_release_cluster_shared__cluster_b64(u32 a) { mbarrier_arrive(a, 0); }
inline void mbarrier_arrive_expect_tx_shared__cta_b64(u32 a, u32 bytes) {
  mbarrier_arrive(a, bytes);
}
inline void mbarrier_try_wait_parity_shared__cta_b64(bool& p, u32 a, u32 parity) {
  p = mbarrier_try_wait(a, parity);
}
inline void mbarrier_try_wait_parity_acquire_cluster_shared__cta_b64(bool& p, u32 a, u32 parity) {
  p = mbarrier_try_wait(a, parity);
}
inline void barrier_cta_sync(u32 barrier, u32 threads) { barrier_arrive(barrier, threads, true); }
inline void barrier_cta_arrive(u32 barrier, u32 threads) {
  barrier_arrive(barrier, threads, false);
}
inline void barrier_cta_red_or_pred(bool& d, u32 barrier, u32 threads, bool p) {
  d = barrier_any(barrier, threads, p);
}
inline void barrier_cluster_arrive_release_aligned() { cluster_arrive(); }
inline void barrier_cluster_wait_acquire_aligned() { cluster_wait(); }
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}
inline void setmaxnreg_inc_sync_aligned_u32(int) {}
inline void setmaxnreg_dec_sync_aligned_u32(int) {}
[[noreturn]] inline void exit() { end_thread(); }
inline u32 special_cluster_ctarank() { return cluster_rank(); }

// Warps.
constexpr u32 kWholeWarp = 0xFFFFFFFFu;
inline void whole(u32 mask) {
  if (mask != kWholeWarp) fault("a warp's instruction without all lanes");
}
inline void shfl_sync_bfly_b32(u32& d, u32 a, u32 lanes, u32 bounds, u32 mask) {
  whole(mask);
  d = shuffle(a, lanes, bounds, true);
}
inline void shfl_sync_idx_b32(u32& d, u32 a, u32 lane, u32 bounds, u32 mask) {
  whole(mask);
  d = shuffle(a, lane, bounds, false);
}
inline void redux_sync_min_u32(u32& d, u32 a, u32 mask) { whole(mask), d = reduce_least(a); }
inline void redux_sync_max_u32(u32& d, u32 a, u32 mask) { whole(mask), d = reduce_most(a); }
inline void redux_sync_add_s32(u32& d, u32 a, u32 mask) { whole(mask), d = reduce_sum(a); }
inline void vote_sync_ballot_b32(u32& d, bool p, u32 mask) { whole(mask), d = ballot(p); }
inline void match_any_sync_b32(u32& d, u32 a, u32 mask) { whole(mask), d = lanes_of_same(a); }
inline void bar_warp_sync(u32 mask) { whole(mask), ballot(false); }
inline void movmatrix_sync_aligned_m8n8_trans_b16(u32& d, u32 a) { d = transposed_matrix(a); }
template <typename List, bool kTransposed = false>
void ldmatrix_sync_aligned_m8n8_x4_shared_b16(const List& d, u32 address) {
  u32 words[4];
  load_matrices(words, address, kTransposed);
  load_list(d, words);
}
template <typename List>
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(const List& d, u32 address) {
  ldmatrix_sync_aligned_m8n8_x4_shared_b16<List, true>(d, address);
}
template <typename List, bool kTransposed = false>
void stmatrix_sync_aligned_m8n8_x4_shared_b16(u32 address, const List& a) {
  u32 words[4];
  store_list(words, a);
  store_matrices(address, words, kTransposed);
}
template <typename List>
void stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(u32 address, const List& a) {
  stmatrix_sync_aligned_m8n8_x4_shared_b16<List, true>(address, a);
}
template <typename D, typename A, typename B>
void warp_product(const D& d, const A& a, const B& b, Element element) {
  u32 sums[4], left[4], right[2];
  store_list(sums, d);
  store_list(left, a);
  store_list(right, b);
  multiply_warp(sums, left, right, element);
  load_list(d, sums);
}
template <typename D, typename A, typename B>
void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(const D& d, const A& a, const B& b,
                                                         const D&) {
  warp_product(d, a, b, Element::bf16);
}
template <typename D, typename A, typename B>
void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(const D& d, const A& a, const B& b,
                                                       const D&) {
  warp_product(d, a, b, Element::f16);
}
template <typename D, typename A, typename B>
void mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(const D& d, const A& a, const B& b,
                                                        const D&) {
  warp_product(d, a, b, Element::tf32);
}

// Warpgroups. D's registers are written where they are, when the products are done.
struct Accumulators {
  float* first;
};
template <typename... T>
Accumulators registers(float& first, T&... others) {
  const float* each = &first;
  if (!((&others == ++each) && ...)) fault("a product's registers are not one array");
  return {&first};
}
struct Fragment {
  u32 words[4];
};
inline Fragment registers(u32 a, u32 b, u32 c, u32 d) { return {{a, b, c, d}}; }
inline void wgmma_fence_sync_aligned() {}
inline void wgmma_commit_group_sync_aligned() { products_commit(); }
inline void wgmma_wait_group_sync_aligned(int groups) { products_wait(groups); }
inline void wgmma_mma_async(int columns, Element element, Accumulators d, const Fragment& a, u64 b,
                            bool adds, int, int, int transposes_b) {
  multiply_group({.sums = d.first,
                  .columns = columns,
                  .element = element,
                  .adds = adds,
                  .a_in_registers = true,
                  .transposes_b = transposes_b != 0,
                  .a = {a.words[0], a.words[1], a.words[2], a.words[3]},
                  .b_descriptor = b});
}
inline void wgmma_mma_async(int columns, Element element, Accumulators d, u64 a, u64 b, bool adds,
                            int, int, int transposes_a, int transposes_b) {
  multiply_group({.sums = d.first,
                  .columns = columns,
                  .element = element,
                  .adds = adds,
                  .transposes_a = transposes_a != 0,
                  .transposes_b = transposes_b != 0,
                  .a_descriptor = a,
                  .b_descriptor = b});
}

// Kernels.
template <auto kKernel>
struct Bound;
template <typename... T, void (*kKernel)(T...)>
struct Bound<kKernel> : BoundKernel {
  explicit Bound(void** arguments) : values(read(arguments, std::index_sequence_for<T...>())) {}
  void run() const override { std::apply(kKernel, values); }
  template <std::size_t... kIndex>
  static std::tuple<T...> read(void** arguments, std::index_sequence<kIndex...>) {
    return {*static_cast<T*>(arguments[kIndex])...};
  }
  std::tuple<T...> values;
};
template <auto kKernel>
BoundKernel* bound(void** arguments) {
  return new Bound<kKernel>(arguments);
}
static const KernelEntry* last_kernel = nullptr;
inline KernelEntry::KernelEntry(const char* its_name, BoundKernel* (*its_bind)(void**))
    : name(its_name), bind(its_bind), next(last_kernel) {
  last_kernel = this;
}
extern "C" const KernelEntry* emu_kernels() { return last_kernel; }

}  // namespace emu

#define threadIdx (::emu::Index{::emu::thread_index(), 0, 0})
#define blockDim (::emu::Index{::emu::block_size(), 1, 1})
#define blockIdx (::emu::block_index())
#define gridDim (::emu::block_counts())
inline void __syncthreads() { ::emu::sync_threads(false); }
inline int __syncthreads_or(int value) { return ::emu::sync_threads(value != 0); }
inline void __syncwarp() { ::emu::bar_warp_sync(::emu::kWholeWarp); }
inline float __shfl_xor_sync(unsigned mask, float value, int lanes) {
  ::emu::whole(mask);
  return ::emu::as_float(
      ::emu::shuffle(::emu::of_float(value), static_cast<unsigned>(lanes), 31, true));
}
inline unsigned __float_as_uint(float value) { return ::emu::of_float(value); }
inline float __uint_as_float(unsigned value) { return ::emu::as_float(value); }
