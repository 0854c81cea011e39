#include "launch.hpp"

#include <cstdlib>

namespace attune::calls {

namespace {

constexpr std::size_t kScratchAlignment = 64;

bool is_a(PyObject* object, PyTypeObject& type) {
  return PyObject_IsInstance(object, reinterpret_cast<PyObject*>(&type)) == 1;
}

/// Only of numbers: what converts itself to one, as a tensor of one element does, is for Python to
/// take or to refuse.
bool fill_scalars(const Launch& launch, PyObject* scalars, Frame& frame) {
  if (launch.slot_count != 0) std::memset(frame.scalars, 0, sizeof frame.scalars);
  for (int i = 0; i < launch.slot_count; ++i) {
    const auto [at, is_int] = launch.slots[i];
    PyObject* const given = PyTuple_GetItem(scalars, i);
    if (!is_a(given, PyLong_Type) && (is_int || !is_a(given, PyFloat_Type))) return false;
    if (is_int) {
      const long long value = PyLong_AsLongLong(given);
      if (value != static_cast<std::int32_t>(value) || (value == -1 && PyErr_Occurred())) {
        return false;
      }
      frame.scalars[at].i = static_cast<std::int32_t>(value);
    } else {
      const double value = PyFloat_AsDouble(given);
      if (value == -1 && PyErr_Occurred()) return false;
      frame.scalars[at].f = static_cast<float>(value);
    }
  }
  return true;
}

bool fill_tensors(const Launch& launch, PyObject* tensors, Frame& frame) {
  for (int i = 0; i < launch.tensor_count; ++i) {
    frame.tensors[i] = launch.tensors[i];
    const Ref tensor(PySequence_GetItem(tensors, i));
    if (!tensor || !address_of(launch, tensor.get(), frame.tensors[i].data)) return false;
  }
  for (int i = 0; i < launch.behind_count; ++i) {
    const Ref tensor(PySequence_GetItem(tensors, launch.tensor_count + i));
    if (!tensor || !address_of(launch, tensor.get(), frame.behind[i])) return false;
  }
  return true;
}

bool take_slots(Launch& launch, PyObject* slots) {
  const Py_ssize_t count = PyTuple_Size(slots);
  if (count < 0 || count > kMaxScalars) return refuse("too many scalars") != nullptr;
  for (launch.slot_count = 0; launch.slot_count < count; ++launch.slot_count) {
    int at = 0, is_int = 0;
    PyObject* const slot = PyTuple_GetItem(slots, launch.slot_count);
    if (PyArg_ParseTuple(slot, "ii", &at, &is_int) == 0) return false;
    if (at < 0 || at >= kMaxScalars) return refuse("too many scalars") != nullptr;
    launch.slots[launch.slot_count] = {at, is_int != 0};
  }
  return true;
}

bool take_members(Launch& launch, PyObject* members, std::size_t argument_bytes) {
  const Py_ssize_t count = PyTuple_Size(members);
  if (count < 0 || count > kMaxMembers) return refuse("too many members") != nullptr;
  for (launch.member_count = 0; launch.member_count < count; ++launch.member_count) {
    unsigned long long at = 0;
    int tensor = 0;
    if (PyArg_ParseTuple(PyTuple_GetItem(members, launch.member_count), "Ki", &at, &tensor) == 0) {
      return false;
    }
    if (at > argument_bytes - sizeof(void*) || tensor < 0 || tensor >= launch.behind_count) {
      return refuse("no such member") != nullptr;
    }
    launch.members[launch.member_count] = {static_cast<std::size_t>(at), tensor};
  }
  return true;
}

}  // namespace

Launch::~Launch() { std::free(scratch.load()); }

Workspace::~Workspace() {
  if (kept_ != nullptr) std::free(launch_.scratch.exchange(kept_));
}

bool Workspace::take(void*& found) {
  found = nullptr;
  if (launch_.workspace_bytes == 0) return true;
  if (launch_.keeps_scratch) {
    kept_ = launch_.scratch.exchange(nullptr);
    if (kept_ == nullptr) {
      const std::size_t bytes = (launch_.workspace_bytes | (kScratchAlignment - 1)) + 1;
      kept_ = std::aligned_alloc(kScratchAlignment, bytes);
    }
    found = kept_;
  }
  if (found != nullptr) return true;
  tensor_ = new_tensor(launch_, launch_.workspace);
  return tensor_ && address_of(launch_, tensor_.get(), found);
}

bool take(Kind& kind, const Launch& launch, PyObject* given) {
  PyObject *sizes = nullptr, *strides = nullptr, *dtype = nullptr;
  Untouched rows{};
  long long outer = 0, count = 0, inner = 0;
  if (PyArg_ParseTuple(given, "OOO(LLLIii)", &sizes, &strides, &dtype, &outer, &count, &inner,
                       &rows.args.word, &rows.offsets, &rows.args.sequences) == 0) {
    return false;
  }
  if (rows.offsets >= launch.behind_count) return refuse("no such tensor") != nullptr;
  rows.args.struct_size = inner == 0 ? 0 : sizeof rows.args;
  rows.args.outer = outer;
  rows.args.rows = count;
  rows.args.inner = inner;
  kind = {Ref::to(sizes), Ref::to(strides), Ref::to(dtype), rows};
  return true;
}

bool take(Launch& launch, PyObject* given, const att_tensor* tensors, int tensor_count,
          std::size_t workspace_bytes, std::size_t argument_bytes) {
  PyObject *slots = nullptr, *workspace = nullptr, *empty = nullptr, *current = nullptr,
           *stream = nullptr, *index = nullptr, *data_ptr = nullptr, *raise = nullptr,
           *keep = nullptr, *members = nullptr;
  int is_on_gpu = 0, keeps_scratch = 0, draws = 0;
  unsigned long long fill_untouched = 0;
  if (PyArg_ParseTuple(given, "OOOOOOOOOiiiiOK", &slots, &workspace, &empty, &current, &stream,
                       &index, &data_ptr, &raise, &keep, &is_on_gpu, &keeps_scratch, &draws,
                       &launch.behind_count, &members, &fill_untouched) == 0) {
    return false;
  }
  if (tensor_count > kMaxTensors || launch.behind_count < 0 || launch.behind_count > kMaxMembers) {
    return refuse("too many tensors") != nullptr;
  }
  launch.tensor_count = tensor_count;
  for (int i = 0; i < tensor_count; ++i) launch.tensors[i] = tensors[i];
  launch.workspace_bytes = workspace_bytes;
  if (!take_slots(launch, slots) || !take_members(launch, members, argument_bytes)) return false;
  launch.fill_untouched = reinterpret_cast<decltype(&att_fill_untouched)>(fill_untouched);
  launch.device = -1;
  if (is_on_gpu != 0) {
    launch.device = PyLong_AsLongLong(index);
    if (launch.device < 0) return refuse("no device") != nullptr;
  }
  launch.keeps_scratch = keeps_scratch != 0;
  launch.draws = draws != 0;
  launch.empty = Ref::to(empty);
  launch.current_device = Ref::to(current);
  launch.stream = Ref::to(stream);
  launch.device_index = Ref::to(index);
  launch.data_ptr = Ref::to(data_ptr);
  launch.raise = Ref::to(raise);
  launch.keep = Ref::to(keep);
  return take(launch.workspace, launch, workspace);
}

bool take(Drawn& drawn, PyObject* numbers) {
  constexpr Py_ssize_t kSeedAt = 3, kOffsetAt = 4;
  drawn.seed_object = PyTuple_GetItem(numbers, kSeedAt);
  drawn.offset_object = PyTuple_GetItem(numbers, kOffsetAt);
  if (drawn.offset_object != nullptr) {
    drawn.seed = PyLong_AsUnsignedLongLong(drawn.seed_object);
    drawn.offset = PyLong_AsUnsignedLongLong(drawn.offset_object);
  }
  if (PyErr_Occurred() == nullptr) return true;
  PyErr_Clear();
  return false;
}

bool is_current(const Launch& launch) {
  if (launch.device < 0) return true;
  const Ref index(PyObject_CallFunctionObjArgs(launch.current_device.get(), nullptr));
  if (index && PyLong_AsLongLong(index.get()) == launch.device) return true;
  PyErr_Clear();
  return false;
}

bool find_stream(const Launch& launch, void*& stream) {
  stream = nullptr;
  if (launch.device < 0) return true;
  const Ref number(
      PyObject_CallFunctionObjArgs(launch.stream.get(), launch.device_index.get(), nullptr));
  if (!number) return false;
  stream = reinterpret_cast<void*>(PyLong_AsUnsignedLongLong(number.get()));
  return PyErr_Occurred() == nullptr;
}

bool fill(const Launch& launch, PyObject* tensors, PyObject* scalars, Frame& frame) {
  if (PySequence_Size(tensors) == launch.tensor_count + launch.behind_count &&
      PyTuple_Size(scalars) == launch.slot_count && fill_scalars(launch, scalars, frame) &&
      fill_tensors(launch, tensors, frame)) {
    return true;
  }
  PyErr_Clear();
  return false;
}

}  // namespace attune::calls
