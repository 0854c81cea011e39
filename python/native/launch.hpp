// What the launches of both passes share: what they ask torch by the objects that Python hands
// over, so that nothing here knows its ABI, and what of their arguments stays.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "attune/attune.h"
#include "objects.hpp"

namespace attune::calls {

constexpr int kMaxScalars = 32, kMaxTensors = 16;  // attune.torch._native has them, too
constexpr int kMaxMembers = 8;
constexpr std::uint64_t kMisaligned = 15;

/// Rows of a new tensor that a launch leaves as they are.
struct Untouched {
  att_untouched_args args;  // all but addresses; struct_size 0: the launch writes every row
  int offsets;              // place of `cu` among the tensors behind the spec's; negative: none
};

/// What torch.empty_strided is given, and the rows of it that a launch leaves as they are.
struct Kind {
  Ref sizes, strides, dtype;
  Untouched untouched;
};

/// A scalar that launches bring.
struct Slot {
  int at;
  bool is_int;
};

/// A member of a launch's arguments that points to a tensor.
struct Member {
  std::size_t at;  // in bytes, of the arguments
  int tensor;      // place among those behind the spec's
};

/// Nothing of it changes but `scratch`.
struct Launch {
  att_tensor tensors[kMaxTensors];
  int tensor_count;
  Slot slots[kMaxScalars];
  int slot_count;
  Member members[kMaxMembers];
  int member_count, behind_count;  // `behind_count`: tensors behind the spec's
  decltype(&att_fill_untouched) fill_untouched;
  long long device;  // of CUDA; negative: the CPU
  std::size_t workspace_bytes;
  bool keeps_scratch;
  bool draws;                  // each launch brings dropout's seed and offset
  std::atomic<void*> scratch;  // kept for the next launch; null: there is none, or it is in use
  Kind workspace;
  Ref empty, current_device, stream, device_index, data_ptr, raise, keep;

  ~Launch();
};

/// Dropout's seed and offset of one launch, as numbers and as Python has them, which are borrowed.
struct Drawn {
  std::uint64_t seed, offset;
  PyObject *seed_object, *offset_object;
};

/// One launch's numbers and tensors. They are the caller's, as are those of every thread.
struct Frame {
  att_tensor tensors[kMaxTensors];
  att_scalar scalars[kMaxScalars];
  const void* behind[kMaxMembers];
};

/// A launch's scratch memory, which of a GPU is free once the launch is enqueued: the next one is
/// behind it.
class Workspace {
 public:
  explicit Workspace(Launch& launch) : launch_(launch) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace();

  /// Null where none is needed. False with an error set where there is none to be had.
  bool take(void*& found);

 private:
  Launch& launch_;
  void* kept_ = nullptr;
  Ref tensor_;
};

/// Of (slots, workspace's kind, empty, current device, stream, device's index, data_ptr, raise,
/// keep, whether it is on a GPU, whether it keeps its scratch memory, whether launches bring a
/// seed, how many tensors stand behind the spec's, (offset in the arguments, place among those) of
/// each member that points to one, att_fill_untouched's address), and of what a launch's arguments
/// say. False where there is an error.
bool take(Launch& launch, PyObject* given, const att_tensor* tensors, int tensor_count,
          std::size_t workspace_bytes, std::size_t argument_bytes);
template <class Arguments>
bool take(Launch& launch, PyObject* given, const Arguments& of) {
  return take(launch, given, of.tensor_views, of.tensor_view_count, of.workspace_bytes, sizeof of);
}
/// Of a new tensor of these launches.
bool take(Kind& kind, const Launch& launch, PyObject* given);

/// Of a launch's numbers, as attune.torch._launch_plan has them. False without an error where the
/// seed is no number: it lies on the device.
bool take(Drawn& drawn, PyObject* numbers);

/// Whether the device is the one on which new tensors are made. Sets no error.
bool is_current(const Launch& launch);
/// False where there is an error.
bool find_stream(const Launch& launch, void*& stream);

/// Whether all that is brought beside operands is such as a launch takes: the spec's tensors and
/// those behind them, and scalars. Sets no error.
bool fill(const Launch& launch, PyObject* tensors, PyObject* scalars, Frame& frame);

/// Writes into the arguments what the frame has, which must live as long.
template <class Arguments>
void put(const Launch& launch, Frame& frame, Arguments& arguments) {
  if (launch.slot_count != 0) arguments.scalars = frame.scalars;
  if (launch.tensor_count != 0) arguments.tensor_views = frame.tensors;
  for (int i = 0; i < launch.member_count; ++i) {
    const auto [at, tensor] = launch.members[i];
    std::memcpy(reinterpret_cast<char*>(&arguments) + at, &frame.behind[tensor], sizeof(void*));
  }
}

/// Fills what a launch of `kernel` does not write of a new tensor, where there is one, in front of
/// it: an att_status.
inline int fill_rest(const Launch& launch, const att_kernel* kernel, const Frame& frame,
                     const Kind& kind, void* at, void* stream) {
  att_untouched_args args = kind.untouched.args;
  if (args.struct_size == 0 || at == nullptr) return ATT_OK;
  const int place = kind.untouched.offsets;
  args.tensor = at;
  if (place >= 0) args.cu = static_cast<const std::int32_t*>(frame.behind[place]);
  return launch.fill_untouched(kernel, &args, stream);
}

/// False with an error set where it is no tensor that has memory.
inline bool address_of(const Launch& launch, PyObject* tensor, std::uint64_t& found) {
  const Ref number(PyObject_CallFunctionObjArgs(launch.data_ptr.get(), tensor, nullptr));
  if (!number) return false;
  found = PyLong_AsUnsignedLongLong(number.get());
  return found != ~0ull || PyErr_Occurred() == nullptr;
}

template <class T>
bool address_of(const Launch& launch, PyObject* tensor, T*& found) {
  std::uint64_t address = 0;
  if (!address_of(launch, tensor, address)) return false;
  found = reinterpret_cast<T*>(address);
  return true;
}

inline Ref new_tensor(const Launch& launch, const Kind& kind) {
  return Ref(PyObject_CallFunctionObjArgs(launch.empty.get(), kind.sizes.get(), kind.strides.get(),
                                          kind.dtype.get(), nullptr));
}

/// Raises what an att_status that is not 0 means.
inline void raise(const Launch& launch, int status) {
  const Ref code(PyLong_FromLong(status));
  const Ref raised(PyObject_CallFunctionObjArgs(launch.raise.get(), code.get(), nullptr));
}

}  // namespace attune::calls
