// Calls that are made again: their guard, their launch, and what an autograd.Function records of
// them.
#include <cstddef>
#include <new>

#include "attune/attune.h"
#include "launcher.hpp"

namespace attune::calls {

namespace {

/// A call, and what tells whether its tensors are as they were.
struct Straight {
  static constexpr char kName[] = "attune.straight";

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
  const auto* call = owned_by<Straight>(self);
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

/// The names of what is asked of a Function's context.
struct Names {
  static constexpr char kName[] = "attune.names";

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
  const auto* names = owned_by<Names>(self);
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

PyMethodDef go_method{
    "go", go, METH_FASTCALL,
    "go(q, k, v, tensors, with_lse, scalars): O, or O and LSE; None: they are others"};

PyMethodDef forward_method{"forward", forward, METH_FASTCALL, "forward(ctx, call, q, k, v, ...)"};

}  // namespace

}  // namespace attune::calls

/// A call as `go`: of (check, capsule, record or None, scalars, told, None, False, True, names,
/// places of learned tensors).
extern "C" ATT_API PyObject* attune_calls_straight(PyObject* given) {
  using namespace attune::calls;
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
  return function_of(go_method, std::move(call));
}

/// What is a Function's `forward` where launches are such; made once.
extern "C" ATT_API PyObject* attune_calls_forward() {
  using namespace attune::calls;
  return function_of(forward_method, std::make_unique<Names>());
}
