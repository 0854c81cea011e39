#include "runtime/capi/checked_launch.hpp"

#include <cstdint>
#include <type_traits>
#include <vector>

#include "runtime/capi/check_sequences.hpp"

namespace attune {
namespace {

static_assert(std::is_same_v<int, std::int32_t>);

// An array of the device, and, once it is read, what stands in it.
struct Array {
  const int* on_device;  // null: the launch has none
  std::int64_t count;
  std::vector<int> values = {};
};

struct Arrays {
  Array cu_q, cu_kv, used_q, used_kv, page_table;
};

Status read(Device& device, Arrays& arrays, StreamHandle stream) {
  std::vector<HostCopy> copies;
  for (Array* array :
       {&arrays.cu_q, &arrays.cu_kv, &arrays.used_q, &arrays.used_kv, &arrays.page_table}) {
    if (array->on_device == nullptr) continue;
    array->values.resize(static_cast<std::size_t>(array->count));
    copies.push_back({array->values.data(), array->on_device, array->values.size() * sizeof(int)});
  }
  Status copied = device.copy_to_host_behind(stream, copies);
  if (copied.ok() || copied.error().id != kStreamCaptured) return copied;
  return Error{.kind = ErrorKind::kUnsupported,
               .id = "check-in-capture",
               .message =
                   "launches are checked, and the stream is being captured into a graph, "
                   "where nobody can wait for what stands in the device's memory",
               .hint = "unset ATTUNE_CHECK, or launch without graphs while you look for a mistake"};
}

// `given` has all but what stands in the arrays.
Status check(Device& device, Arrays arrays, GivenSequences given, StreamHandle stream) {
  ATT_CHECK(read(device, arrays, stream));
  given.cu_q = arrays.cu_q.values;
  given.cu_kv = arrays.cu_kv.values;
  given.used_q = arrays.used_q.values;
  given.used_kv = arrays.used_kv.values;
  given.page_table = arrays.page_table.values;
  return check_sequences(given);
}

Array table_of(const att::PageTable& table, std::int64_t batch) {
  return {table.entries, batch * table.pages_per_sequence};
}
PageSizes sizes_of(const att::PageTable& table) {
  return {table.pages_per_sequence, table.page_size, table.pages};
}

}  // namespace

Status check_launch(Device& device, const att::LaunchParams& p, StreamHandle stream) {
  const att::SequenceList& list = p.sequences;
  if (list.cu_q == nullptr) return ok_status();
  return check(
      device,
      {.cu_q = {list.cu_q, p.batch + 1},
       .cu_kv = {list.cu_kv, p.batch + 1},
       .used_q = {list.used_q, p.batch},
       .used_kv = {list.used_kv, p.batch},
       .page_table = table_of(p.page_table, p.batch)},
      {.batch = p.batch, .q_len = p.q_len, .kv_len = p.kv_len, .pages = sizes_of(p.page_table)},
      stream);
}

Status check_launch(Device& device, const att::AppendParams& p, StreamHandle stream) {
  return check(device,
               {.cu_q = {p.cu_q, p.batch + 1},
                .cu_kv = {p.cu_kv, p.batch + 1},
                .used_q = {p.used_q, p.batch},
                .used_kv = {p.used_kv, p.batch},
                .page_table = table_of(p.page_table, p.batch)},
               {.batch = p.batch,
                .q_len = p.tokens,
                .kv_len = p.kv_len,
                .pages = sizes_of(p.page_table),
                .appends = true},
               stream);
}

}  // namespace attune
