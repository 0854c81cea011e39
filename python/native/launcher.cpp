// What attune.torch._launcher does, without running bytecode. What torch is asked it is asked by
// the objects that Python hands over, so that nothing here knows its ABI.
#include "launcher.hpp"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "attune/attune.h"

namespace attune::calls {

namespace {

constexpr std::uint64_t kMisaligned = 15;
constexpr std::size_t kScratchAlignment = 64;

/// What torch.empty_strided is given.
struct Kind {
  Ref sizes, strides, dtype;
};

/// A scalar that launches bring.
struct Slot {
  int at;
  bool is_int;
};

}  // namespace

/// A ForwardPlan's launch. Nothing of it changes but `scratch`.
struct Launcher {
  static constexpr char kName[] = "attune.launcher";

  decltype(&att_forward) forward;
  const att_kernel* kernel;
  att_forward_args args;  // all but addresses
  att_tensor tensors[kMaxTensors];
  Slot slots[kMaxScalars];
  int slot_count;
  long long device;  // of CUDA; negative: the CPU
  bool keeps_scratch;
  std::atomic<void*> scratch;  // kept for the next launch; null: there is none, or it is in use
  Kind o, lse, workspace;
  Ref empty, current_device, stream, device_index, data_ptr, otherwise, raise;
  Ref keep;

  ~Launcher() { std::free(scratch.load()); }
};

namespace {

/// False with an error set where it is no tensor that has memory.
bool address_of(const Launcher& launcher, PyObject* tensor, std::uint64_t& found) {
  const Ref number(PyObject_CallFunctionObjArgs(launcher.data_ptr.get(), tensor, nullptr));
  if (!number) return false;
  found = PyLong_AsUnsignedLongLong(number.get());
  return found != ~0ull || PyErr_Occurred() == nullptr;
}

template <class T>
bool address_of(const Launcher& launcher, PyObject* tensor, T*& found) {
  std::uint64_t address = 0;
  if (!address_of(launcher, tensor, address)) return false;
  found = reinterpret_cast<T*>(address);
  return true;
}

Ref new_tensor(const Launcher& launcher, const Kind& kind) {
  return Ref(PyObject_CallFunctionObjArgs(launcher.empty.get(), kind.sizes.get(),
                                          kind.strides.get(), kind.dtype.get(), nullptr));
}

/// One launch's arguments. They are the caller's, as are those of every thread.
struct Frame {
  att_forward_args args;
  att_tensor tensors[kMaxTensors];
  att_scalar scalars[kMaxScalars];
};

/// Whether all that is brought beside operands is such as a launch takes. Sets no error.
bool fill(const Launcher& launcher, PyObject* tensors, PyObject* scalars, Frame& frame) {
  if (PySequence_Size(tensors) != launcher.args.tensor_view_count ||
      PyTuple_Size(scalars) != launcher.slot_count) {
    PyErr_Clear();
    return false;
  }
  if (launcher.slot_count != 0) std::memset(frame.scalars, 0, sizeof frame.scalars);
  for (int i = 0; i < launcher.slot_count; ++i) {
    const auto [at, is_int] = launcher.slots[i];
    PyObject* const given = PyTuple_GetItem(scalars, i);
    if (is_int) {
      const long long value = PyLong_AsLongLong(given);
      if (value != static_cast<std::int32_t>(value) || (value == -1 && PyErr_Occurred())) {
        PyErr_Clear();
        return false;
      }
      frame.scalars[at].i = static_cast<std::int32_t>(value);
    } else {
      const double value = PyFloat_AsDouble(given);
      if (value == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return false;
      }
      frame.scalars[at].f = static_cast<float>(value);
    }
  }
  if (launcher.slot_count != 0) frame.args.scalars = frame.scalars;
  const int count = launcher.args.tensor_view_count;
  for (int i = 0; i < count; ++i) {
    frame.tensors[i] = launcher.tensors[i];
    const Ref tensor(PySequence_GetItem(tensors, i));
    if (!tensor || !address_of(launcher, tensor.get(), frame.tensors[i].data)) {
      PyErr_Clear();
      return false;
    }
  }
  if (count != 0) frame.args.tensor_views = frame.tensors;
  return true;
}

bool is_current(const Launcher& launcher) {
  if (launcher.device < 0) return true;
  const Ref index(PyObject_CallFunctionObjArgs(launcher.current_device.get(), nullptr));
  if (index && PyLong_AsLongLong(index.get()) == launcher.device) return true;
  PyErr_Clear();
  return false;
}

Outputs run_in_python(const Launcher& launcher, PyObject* const* operands, PyObject* tensors,
                      bool with_lse, PyObject* scalars) {
  const Ref flag(PyLong_FromLong(with_lse));
  const Ref found(PyObject_CallFunctionObjArgs(launcher.otherwise.get(), operands[0], operands[1],
                                               operands[2], tensors, flag.get(), scalars, nullptr));
  if (!found) return {};
  return {Ref(PySequence_GetItem(found.get(), 0)), Ref(PySequence_GetItem(found.get(), 1))};
}

}  // namespace

Outputs run(Launcher& launcher, PyObject* const* operands, PyObject* tensors, bool with_lse,
            PyObject* scalars) {
  Frame frame;
  frame.args = launcher.args;
  std::uint64_t at[3];
  for (int i = 0; i < 3; ++i) {
    if (!address_of(launcher, operands[i], at[i])) return {};
  }
  if (((at[0] | at[1] | at[2]) & kMisaligned) != 0 || !is_current(launcher) ||
      !fill(launcher, tensors, scalars, frame)) {
    return run_in_python(launcher, operands, tensors, with_lse, scalars);
  }
  att_forward_args& args = frame.args;
  args.q = reinterpret_cast<const void*>(at[0]);
  args.k = reinterpret_cast<const void*>(at[1]);
  args.v = reinterpret_cast<const void*>(at[2]);
  Outputs made;
  made.o = new_tensor(launcher, launcher.o);
  if (!made.o || !address_of(launcher, made.o.get(), args.o)) return {};
  if (with_lse) {
    made.lse = new_tensor(launcher, launcher.lse);
    if (!made.lse || !address_of(launcher, made.lse.get(), args.lse)) return {};
  }
  Ref workspace;  // of a GPU it is free once the launch is enqueued: the next one is behind it
  void* stream = nullptr;
  if (launcher.device >= 0) {
    const Ref number(
        PyObject_CallFunctionObjArgs(launcher.stream.get(), launcher.device_index.get(), nullptr));
    if (!number) return {};
    stream = reinterpret_cast<void*>(PyLong_AsUnsignedLongLong(number.get()));
    if (PyErr_Occurred() != nullptr) return {};
  }
  void* scratch = nullptr;
  if (launcher.keeps_scratch) {
    scratch = launcher.scratch.exchange(nullptr);
    if (scratch == nullptr) {
      const std::size_t bytes = (args.workspace_bytes | (kScratchAlignment - 1)) + 1;
      scratch = std::aligned_alloc(kScratchAlignment, bytes);
    }
    args.workspace = scratch;
  }
  if (args.workspace_bytes != 0 && scratch == nullptr) {
    workspace = new_tensor(launcher, launcher.workspace);
    if (!workspace || !address_of(launcher, workspace.get(), args.workspace)) return {};
  }
  void* const thread = PyEval_SaveThread();
  const int status = launcher.forward(launcher.kernel, &args, stream);
  PyEval_RestoreThread(thread);
  if (scratch != nullptr) std::free(launcher.scratch.exchange(scratch));
  if (status != 0) {
    const Ref code(PyLong_FromLong(status));
    const Ref raised(PyObject_CallFunctionObjArgs(launcher.raise.get(), code.get(), nullptr));
    return {};
  }
  return made;
}

Launcher* launcher_of(PyObject* capsule) { return owned_by<Launcher>(capsule); }

namespace {

/// launch(q, k, v, tensors, with_lse, scalars): O, or O and LSE.
PyObject* launch(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  Launcher* const launcher = launcher_of(self);
  if (launcher == nullptr || count != 6) return refuse("a launch takes six arguments");
  const int with_lse = PyObject_IsTrue(arguments[4]);
  if (with_lse < 0) return nullptr;
  return as_asked(run(*launcher, arguments, arguments[3], with_lse != 0, arguments[5]),
                  with_lse != 0);
}

bool take(Kind& kind, PyObject* given) {
  PyObject *sizes = nullptr, *strides = nullptr, *dtype = nullptr;
  if (PyArg_ParseTuple(given, "OOO", &sizes, &strides, &dtype) == 0) return false;
  kind = {Ref::to(sizes), Ref::to(strides), Ref::to(dtype)};
  return true;
}

PyMethodDef launch_method{"launch", launch, METH_FASTCALL,
                          "launch(q, k, v, tensors, with_lse, scalars): O, or O and LSE"};

}  // namespace

}  // namespace attune::calls

/// The launch of a plan as a function of Python, behind the capsule that `forward` takes. The one
/// argument has what attune.torch._native puts there.
extern "C" ATT_API PyObject* attune_calls_launcher(PyObject* given) {
  using namespace attune::calls;
  unsigned long long function = 0, kernel = 0, address = 0;
  PyObject *slots = nullptr, *o = nullptr, *lse = nullptr, *workspace = nullptr, *empty = nullptr,
           *current = nullptr, *stream = nullptr, *index = nullptr, *data_ptr = nullptr,
           *otherwise = nullptr, *raise = nullptr, *keep = nullptr;
  int is_on_gpu = 0, keeps_scratch = 0;
  if (PyArg_ParseTuple(given, "KKKOOOOOOOOOOOOii", &function, &kernel, &address, &slots, &o, &lse,
                       &workspace, &empty, &current, &stream, &index, &data_ptr, &otherwise, &raise,
                       &keep, &is_on_gpu, &keeps_scratch) == 0) {
    return nullptr;
  }
  auto launcher = std::unique_ptr<Launcher>(new (std::nothrow) Launcher{});
  const auto* args = reinterpret_cast<const att_forward_args*>(address);
  if (launcher == nullptr || args->struct_size != sizeof(att_forward_args) ||
      args->tensor_view_count > kMaxTensors) {
    return refuse("a launch of another version, or of too many tensors");
  }
  launcher->forward = reinterpret_cast<decltype(&att_forward)>(function);
  launcher->kernel = reinterpret_cast<const att_kernel*>(kernel);
  launcher->args = *args;
  if (args->tensor_view_count > 0) {
    std::memcpy(launcher->tensors, args->tensor_views,
                sizeof(att_tensor) * static_cast<std::size_t>(args->tensor_view_count));
  }
  const Py_ssize_t count = PyTuple_Size(slots);
  if (count < 0 || count > kMaxScalars) return refuse("too many scalars");
  for (launcher->slot_count = 0; launcher->slot_count < count; ++launcher->slot_count) {
    int at = 0, is_int = 0;
    PyObject* const slot = PyTuple_GetItem(slots, launcher->slot_count);
    if (PyArg_ParseTuple(slot, "ii", &at, &is_int) == 0) return nullptr;
    if (at < 0 || at >= kMaxScalars) return refuse("too many scalars");
    launcher->slots[launcher->slot_count] = {at, is_int != 0};
  }
  launcher->device = -1;
  if (is_on_gpu != 0) {
    launcher->device = PyLong_AsLongLong(index);
    if (launcher->device < 0) return refuse("no device");
  }
  launcher->keeps_scratch = keeps_scratch != 0;
  if (!take(launcher->o, o) || !take(launcher->lse, lse) || !take(launcher->workspace, workspace)) {
    return nullptr;
  }
  launcher->empty = Ref::to(empty);
  launcher->current_device = Ref::to(current);
  launcher->stream = Ref::to(stream);
  launcher->device_index = Ref::to(index);
  launcher->data_ptr = Ref::to(data_ptr);
  launcher->otherwise = Ref::to(otherwise);
  launcher->raise = Ref::to(raise);
  launcher->keep = Ref::to(keep);
  const Ref capsule = capsule_of(std::move(launcher));
  if (!capsule) return nullptr;
  const Ref function_object(PyCFunction_NewEx(&launch_method, capsule.get(), nullptr));
  if (!function_object) return nullptr;
  return PyTuple_Pack(2, function_object.get(), capsule.get());
}
