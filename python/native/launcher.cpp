// From tensors of Python to att_forward: what attune.torch._launcher does, without running
// bytecode. What torch is asked it is asked by the objects that Python hands over, so that nothing
// here knows its ABI. Whatever is not as usual goes the way of Python, which says what is wrong.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "attune/attune.h"
#include "stable.hpp"

namespace {

constexpr int kMaxScalars = 32, kMaxTensors = 16;  // attune.torch._native has them, too
constexpr std::uint64_t kMisaligned = 15;
constexpr std::size_t kScratchAlignment = 64;
constexpr char kLauncher[] = "attune.launcher", kNames[] = "attune.names",
               kStraight[] = "attune.straight", kFinder[] = "attune.finder";

/// Owns one reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_DecRef(object_); }  // of null, too

  static Ref to(PyObject* borrowed) {
    Py_IncRef(borrowed);
    return Ref(borrowed);
  }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

/// What torch.empty_strided is given.
struct Kind {
  Ref sizes, strides, dtype;
};

/// A scalar that launches bring.
struct Slot {
  int at;
  bool is_int;
};

/// A ForwardPlan's launch. Nothing of it changes but `scratch`.
struct Launcher {
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

/// O and LSE, or none of them and an error.
struct Outputs {
  Ref o, lse;
};

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

Launcher* launcher_of(PyObject* capsule) {
  return static_cast<Launcher*>(PyCapsule_GetPointer(capsule, kLauncher));
}

PyObject* refuse(const char* what) {
  if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_TypeError, what);
  return nullptr;
}

/// O, or O and LSE, or null and an error.
PyObject* as_asked(Outputs made, bool with_lse) {
  if (!made.o || !with_lse) return made.o.release();
  return PyTuple_Pack(2, made.o.get(), made.lse.get());
}

/// launch(q, k, v, tensors, with_lse, scalars): O, or O and LSE.
PyObject* launch(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  Launcher* const launcher = launcher_of(self);
  if (launcher == nullptr || count != 6) return refuse("a launch takes six arguments");
  const int with_lse = PyObject_IsTrue(arguments[4]);
  if (with_lse < 0) return nullptr;
  return as_asked(run(*launcher, arguments, arguments[3], with_lse != 0, arguments[5]),
                  with_lse != 0);
}

/// A call, and what tells whether its tensors are as they were.
struct Straight {
  Ref check, capsule, record, scalars, told, of_false, of_true, none;
  Ref names;     // of the scalars that each call brings, by slot; empty: they are `scalars`
  Ref calls[2];  // what `record` is given where there are no tensors: without LSE, with it
  int learned[kMaxTensors], learned_count;  // places among the tensors
};

/// 1 or 0, or -1 and an error.
int is_as_it_was(const Straight& call, PyObject* const* operands, PyObject* tensors) {
  const Py_ssize_t count = PySequence_Size(tensors);
  if (count < 0) return -1;
  Ref found;
  if (count == 0) {
    found = Ref(PyObject_CallFunctionObjArgs(call.check.get(), operands[0], operands[1],
                                             operands[2], nullptr));
  } else {
    const Ref all(PyTuple_New(3 + count));
    if (!all) return -1;
    for (Py_ssize_t i = 0; i < 3; ++i) {
      PyTuple_SetItem(all.get(), i, Ref::to(operands[i]).release());
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
      Ref each(PySequence_GetItem(tensors, i));
      if (!each) return -1;
      PyTuple_SetItem(all.get(), 3 + i, each.release());
    }
    found = Ref(PyObject_CallObject(call.check.get(), all.get()));
  }
  return found ? PyObject_IsTrue(found.get()) : -1;
}

/// What the call brings of a mapping.
Ref scalars_of(const Straight& call, PyObject* given) {
  const Py_ssize_t count = PyTuple_Size(call.names.get());
  if (count <= 0 || given == nullptr) return Ref::to(call.scalars.get());
  Ref found(PyTuple_New(count));
  for (Py_ssize_t i = 0; found && i < count; ++i) {
    Ref each(PyObject_GetItem(given, PyTuple_GetItem(call.names.get(), i)));
    if (!each) return {};
    PyTuple_SetItem(found.get(), i, each.release());
  }
  return found;
}

PyObject* record(const Straight& call, PyObject* const* operands, PyObject* tensors,
                 bool with_lse) {
  PyObject* recorded = call.calls[with_lse ? 1 : 0].get();
  Ref with_tensors;
  if (PySequence_Size(tensors) != 0) {
    with_tensors = Ref(PyTuple_Pack(6, call.capsule.get(), tensors, call.scalars.get(),
                                    (with_lse ? call.of_true : call.of_false).get(),
                                    call.of_false.get(), call.told.get()));
    recorded = with_tensors.get();
  }
  if (recorded == nullptr) return nullptr;
  if (call.learned_count == 0) {
    return PyObject_CallFunctionObjArgs(call.record.get(), recorded, operands[0], operands[1],
                                        operands[2], nullptr);
  }
  const Ref all(PyTuple_New(4 + call.learned_count));
  if (!all) return nullptr;
  PyTuple_SetItem(all.get(), 0, Ref::to(recorded).release());
  for (int i = 0; i < 3; ++i) PyTuple_SetItem(all.get(), 1 + i, Ref::to(operands[i]).release());
  for (int i = 0; i < call.learned_count; ++i) {
    Ref each(PySequence_GetItem(tensors, call.learned[i]));
    if (!each) return nullptr;
    PyTuple_SetItem(all.get(), 4 + i, each.release());
  }
  return PyObject_CallObject(call.record.get(), all.get());
}

/// go(q, k, v, tensors, with_lse, scalars by name, all arrays): O, or O and LSE; None where they
/// are not as they were. The last two may be left out.
PyObject* go(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const auto* call = static_cast<const Straight*>(PyCapsule_GetPointer(self, kStraight));
  if (call == nullptr || count < 5 || count > 7) return refuse("a call takes seven arguments");
  const int with_lse = PyObject_IsTrue(arguments[4]);
  if (with_lse < 0) return nullptr;
  const int passes = is_as_it_was(*call, arguments, arguments[3]);
  if (passes < 0) return nullptr;
  if (passes == 0) return Ref::to(call->none.get()).release();
  if (call->record) return record(*call, arguments, arguments[3], with_lse != 0);
  Launcher* const launcher = launcher_of(call->capsule.get());
  const Ref scalars = scalars_of(*call, count > 5 ? arguments[5] : nullptr);
  if (launcher == nullptr || !scalars) return nullptr;
  return as_asked(run(*launcher, arguments, arguments[3], with_lse != 0, scalars.get()),
                  with_lse != 0);
}

/// What an argument is to `find`; attune._met has the same numbers.
enum Argument : long { kByValue, kOfLaunch, kLse, kTensors, kScalars, kArrays };  // and behind them
constexpr long kArrayCount = 7;

/// Finds calls that were made before, as attune._met does.
struct Finder {
  Ref calls;  // by key
  Ref is_grad_enabled, none, of_false, of_true, empty, go;
};

/// What a call says beside q, k and v.
struct Said {
  Ref key, tensors;
  PyObject *with_lse, *scalars;        // borrowed
  PyObject* arrays[kArrayCount] = {};  // borrowed, too; null: there are none
  bool has_arrays = false;
};

/// False where there is an error.
bool read(const Finder& finder, PyObject* v, PyObject* given, PyObject* kinds, Said& said) {
  const Py_ssize_t count = PyTuple_Size(kinds) - 1;
  const Ref grad(PyObject_CallFunctionObjArgs(finder.is_grad_enabled.get(), nullptr));
  said.key = Ref(PyTuple_New(3 + count));
  if (!grad || !said.key) return false;
  PyObject* const no_v = (v == finder.none.get() ? finder.of_true : finder.of_false).get();
  PyTuple_SetItem(said.key.get(), 0, Ref::to(PyTuple_GetItem(kinds, 0)).release());
  PyTuple_SetItem(said.key.get(), 1, Ref::to(no_v).release());
  PyTuple_SetItem(said.key.get(), 2, Ref::to(grad.get()).release());
  said.tensors = Ref::to(finder.empty.get());
  said.with_lse = finder.of_false.get();
  said.scalars = finder.none.get();
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (PyDict_Next(given, &position, &name, &value) == 0) return false;
    const long kind = PyLong_AsLong(PyTuple_GetItem(kinds, 1 + i));
    Ref part = Ref::to(kind == kByValue ? value : finder.none.get());
    if (kind == kLse) said.with_lse = value;
    if (kind >= kArrays && kind < kArrays + kArrayCount) {
      const bool is_none = value == finder.none.get();
      part = Ref::to((is_none ? finder.of_true : finder.of_false).get());
      said.arrays[kind - kArrays] = value;
      said.has_arrays = true;
    }
    if (kind == kTensors || kind == kScalars) {
      const int some = PyObject_IsTrue(value);
      if (some < 0) return false;
      if (some != 0) {
        part = Ref(PySequence_Tuple(value));
        if (kind == kScalars) {
          said.scalars = value;
        } else {
          said.tensors = Ref(PyMapping_Values(value));
        }
        if (!part || !said.tensors) return false;
      }
    }
    PyTuple_SetItem(said.key.get(), 3 + i, part.release());
  }
  return true;
}

/// All arrays of a call, None where there is none.
Ref arrays_of(const Finder& finder, PyObject* const* operands, const Said& said) {
  Ref all(PyTuple_New(3 + kArrayCount));
  for (Py_ssize_t i = 0; all && i < 3 + kArrayCount; ++i) {
    PyObject* each = i < 3 ? operands[i] : said.arrays[i - 3];
    PyTuple_SetItem(all.get(), i, Ref::to(each == nullptr ? finder.none.get() : each).release());
  }
  return all;
}

/// find(q, k, v, arguments by name, their kinds): what the call gives; None where it is not among
/// those that were made before. Of errors nothing is said: the call is worked out, and says them.
PyObject* find(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const auto* finder = static_cast<const Finder*>(PyCapsule_GetPointer(self, kFinder));
  if (finder == nullptr || count != 5) return refuse("find takes five arguments");
  Said said{};
  Ref bound, arrays;
  if (read(*finder, arguments[2], arguments[3], arguments[4], said)) {
    bound = Ref::to(PyDict_GetItemWithError(finder->calls.get(), said.key.get()));
    if (bound && said.has_arrays) arrays = arrays_of(*finder, arguments, said);
  }
  const Py_ssize_t known = bound ? PyTuple_Size(bound.get()) : 0;
  for (Py_ssize_t i = 0; i < known; ++i) {
    const Ref go(PyObject_GetAttr(PyTuple_GetItem(bound.get(), i), finder->go.get()));
    if (!go || go.get() == finder->none.get()) break;
    Ref found(PyObject_CallFunctionObjArgs(go.get(), arguments[0], arguments[1], arguments[2],
                                           said.tensors.get(), said.with_lse, said.scalars,
                                           arrays.get(), nullptr));
    if (!found || found.get() != finder->none.get()) return found.release();
  }
  PyErr_Clear();
  return Ref::to(finder->none.get()).release();
}

/// The names of what is asked of a Function's context.
struct Names {
  Ref call{PyUnicode_InternFromString("call")};
  Ref save{PyUnicode_InternFromString("save_for_backward")};
  Ref materialize{PyUnicode_InternFromString("set_materialize_grads")};
};

bool save(PyObject* context, PyObject* const* operands, const Outputs& made, PyObject* given,
          PyObject* of_backward, const Names& names) {
  if (PyObject_SetAttr(context, names.call.get(), of_backward) < 0) return false;
  const Py_ssize_t count = PySequence_Size(given);
  if (count < 0) return false;
  Ref saved;
  if (count == 0) {
    saved = Ref(PyObject_CallMethodObjArgs(context, names.save.get(), operands[0], operands[1],
                                           operands[2], made.o.get(), made.lse.get(), nullptr));
    return static_cast<bool>(saved);
  }
  const Ref method(PyObject_GetAttr(context, names.save.get()));
  const Ref tensors(PyTuple_New(5 + count));
  if (!method || !tensors) return false;
  PyObject* const first[] = {operands[0], operands[1], operands[2], made.o.get(), made.lse.get()};
  for (Py_ssize_t i = 0; i < 5; ++i) {
    PyTuple_SetItem(tensors.get(), i, Ref::to(first[i]).release());
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    Ref each(PySequence_GetItem(given, i));
    if (!each) return false;
    PyTuple_SetItem(tensors.get(), 5 + i, each.release());
  }
  saved = Ref(PyObject_CallObject(method.get(), tensors.get()));
  return static_cast<bool>(saved);
}

/// A Function's forward(ctx, call, q, k, v, *learned), `call` being (launcher, given, scalars,
/// with_lse, false, what the backward pass is told).
PyObject* forward(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 5 || PyTuple_Size(arguments[1]) != 6) return refuse("a forward pass takes a call");
  const auto* names = static_cast<const Names*>(PyCapsule_GetPointer(self, kNames));
  PyObject* const context = arguments[0];
  PyObject* part[6];
  for (int i = 0; i < 6; ++i) part[i] = PyTuple_GetItem(arguments[1], i);
  Launcher* const launcher = launcher_of(part[0]);
  const int with_lse = PyObject_IsTrue(part[3]);
  if (names == nullptr || launcher == nullptr || with_lse < 0) return nullptr;
  Outputs made = run(*launcher, arguments + 2, part[1], true, part[2]);
  if (!made.o) return nullptr;
  if (with_lse != 0 &&
      !Ref(PyObject_CallMethodObjArgs(context, names->materialize.get(), part[4], nullptr))) {
    return nullptr;
  }
  if (!save(context, arguments + 2, made, part[1], part[5], *names)) return nullptr;
  return as_asked(std::move(made), with_lse != 0);
}

bool take(Kind& kind, PyObject* given) {
  PyObject *sizes = nullptr, *strides = nullptr, *dtype = nullptr;
  if (PyArg_ParseTuple(given, "OOO", &sizes, &strides, &dtype) == 0) return false;
  kind = {Ref::to(sizes), Ref::to(strides), Ref::to(dtype)};
  return true;
}

PyMethodDef launch_method{"launch", launch, METH_FASTCALL,
                          "launch(q, k, v, tensors, with_lse, scalars): O, or O and LSE"};
PyMethodDef go_method{
    "go", go, METH_FASTCALL,
    "go(q, k, v, tensors, with_lse, scalars): O, or O and LSE; None: they are others"};
PyMethodDef find_method{"find", find, METH_FASTCALL,
                        "find(q, k, v, given, kinds): what the call gives, or None"};
PyMethodDef forward_method{"forward", forward, METH_FASTCALL, "forward(ctx, call, q, k, v, ...)"};

}  // namespace

/// The launch of a plan as a function of Python, behind the capsule that `forward` takes. The one
/// argument has what attune.torch._native puts there.
extern "C" ATT_API PyObject* attune_calls_launcher(PyObject* given) {
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
  std::memcpy(launcher->tensors, args->tensor_views,
              sizeof(att_tensor) * static_cast<std::size_t>(args->tensor_view_count));
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
  const Ref capsule(
      PyCapsule_New(launcher.get(), kLauncher, [](PyObject* owner) { delete launcher_of(owner); }));
  if (!capsule) return nullptr;
  static_cast<void>(launcher.release());
  const Ref function_object(PyCFunction_NewEx(&launch_method, capsule.get(), nullptr));
  if (!function_object) return nullptr;
  return PyTuple_Pack(2, function_object.get(), capsule.get());
}

/// A call as `go`: of (check, capsule, record or None, scalars, told, None, False, True, names,
/// places of learned tensors).
extern "C" ATT_API PyObject* attune_calls_straight(PyObject* given) {
  PyObject* part[10];
  if (PyArg_ParseTuple(given, "OOOOOOOOOO", &part[0], &part[1], &part[2], &part[3], &part[4],
                       &part[5], &part[6], &part[7], &part[8], &part[9]) == 0) {
    return nullptr;
  }
  auto call = std::unique_ptr<Straight>(new (std::nothrow) Straight{});
  const Ref no_tensors(PyTuple_New(0));
  if (call == nullptr || !no_tensors) return refuse("no memory");
  call->check = Ref::to(part[0]);
  call->capsule = Ref::to(part[1]);
  if (part[2] != part[5]) call->record = Ref::to(part[2]);
  call->scalars = Ref::to(part[3]);
  call->told = Ref::to(part[4]);
  call->none = Ref::to(part[5]);
  call->of_false = Ref::to(part[6]);
  call->of_true = Ref::to(part[7]);
  call->names = Ref::to(part[8]);
  const Py_ssize_t learned = PyTuple_Size(part[9]);
  if (learned < 0 || learned > kMaxTensors) return refuse("too many tensors");
  for (; call->learned_count < learned; ++call->learned_count) {
    PyObject* const place = PyTuple_GetItem(part[9], call->learned_count);
    call->learned[call->learned_count] = static_cast<int>(PyLong_AsLongLong(place));
  }
  for (int with_lse = 0; with_lse < 2; ++with_lse) {
    call->calls[with_lse] = Ref(
        PyTuple_Pack(6, part[1], no_tensors.get(), part[3], part[6 + with_lse], part[6], part[4]));
    if (!call->calls[with_lse]) return nullptr;
  }
  const Ref capsule(PyCapsule_New(call.get(), kStraight, [](PyObject* owner) {
    delete static_cast<Straight*>(PyCapsule_GetPointer(owner, kStraight));
  }));
  if (!capsule) return nullptr;
  static_cast<void>(call.release());
  return PyCFunction_NewEx(&go_method, capsule.get(), nullptr);
}

/// `find`, of (calls, torch.is_grad_enabled, None, False, True).
extern "C" ATT_API PyObject* attune_calls_finder(PyObject* given) {
  PyObject* part[5];
  if (PyArg_ParseTuple(given, "OOOOO", &part[0], &part[1], &part[2], &part[3], &part[4]) == 0) {
    return nullptr;
  }
  auto finder = std::unique_ptr<Finder>(new (std::nothrow) Finder{});
  if (finder == nullptr) return refuse("no memory");
  finder->calls = Ref::to(part[0]);
  finder->is_grad_enabled = Ref::to(part[1]);
  finder->none = Ref::to(part[2]);
  finder->of_false = Ref::to(part[3]);
  finder->of_true = Ref::to(part[4]);
  finder->empty = Ref(PyTuple_New(0));
  finder->go = Ref(PyUnicode_InternFromString("go"));
  if (!finder->empty || !finder->go) return nullptr;
  const Ref capsule(PyCapsule_New(finder.get(), kFinder, [](PyObject* owner) {
    delete static_cast<Finder*>(PyCapsule_GetPointer(owner, kFinder));
  }));
  if (!capsule) return nullptr;
  static_cast<void>(finder.release());
  return PyCFunction_NewEx(&find_method, capsule.get(), nullptr);
}

/// What is a Function's `forward` where launches are such; made once.
extern "C" ATT_API PyObject* attune_calls_forward() {
  const Ref capsule(PyCapsule_New(new Names, kNames, nullptr));
  return capsule ? PyCFunction_NewEx(&forward_method, capsule.get(), nullptr) : nullptr;
}
