// Calls that are made again: their guard, their launch, and what an autograd.Function records of
// them.
#include <cstddef>
#include <new>
#include <utility>

#include "launch.hpp"
#include "launcher.hpp"

namespace attune::calls {

namespace {

/// A call, and what tells whether its tensors are as they were.
struct Straight {
  static constexpr char kName[] = "attune.straight";

  Ref check, capsule, record, scalars, told, none;
  Ref draw, drawn_otherwise;  // of calls with dropout; empty: it has none
  Ref names;  // of the scalars that each call brings, by slot; empty: they are `scalars`
  int learned[kMaxTensors], learned_count;  // places among the tensors
  // Of calls that bring more arrays: those that stand behind the spec's tensors, and pairs of
  // places at which there is one array.
  int behind[kMaxMembers], behind_count, twins[kMaxMembers][2], twin_count;
};

/// The spec's tensors, and what stands behind them. Empty: other arrays are one than were before.
Ref given_of(const Straight& call, PyObject* tensors, PyObject* arrays) {
  if (call.behind_count == 0) return Ref::to(tensors);
  if (arrays == nullptr) return {};
  for (int i = 0; i < call.twin_count; ++i) {
    const auto [first, second] = call.twins[i];
    if (PyTuple_GetItem(arrays, first) != PyTuple_GetItem(arrays, second)) return {};
  }
  const Py_ssize_t count = PySequence_Size(tensors);
  Ref all(count < 0 ? nullptr : PyTuple_New(count + call.behind_count));
  for (Py_ssize_t i = 0; all && i < count; ++i) {
    Ref each(PySequence_GetItem(tensors, i));
    if (!each) return {};
    PyTuple_SetItem(all.get(), i, each.release());
  }
  for (int i = 0; all && i < call.behind_count; ++i) {
    PyObject* const each = PyTuple_GetItem(arrays, call.behind[i]);
    if (each == nullptr) return {};
    PyTuple_SetItem(all.get(), count + i, Ref::to(each).release());
  }
  return all;
}

/// 1 or 0, or -1 and an error.
int is_as_it_was(const Straight& call, PyObject* const* operands, PyObject* tensors) {
  const Py_ssize_t count = PySequence_Size(tensors);
  if (count < 0) return -1;
  const Py_ssize_t first = operands[2] == call.none.get() ? 2 : 3;
  Ref found;
  if (count == 0 && first == 3) {
    found = Ref(PyObject_CallFunctionObjArgs(call.check.get(), operands[0], operands[1],
                                             operands[2], nullptr));
  } else {
    const Ref all(PyTuple_New(first + count));
    if (!all) return -1;
    for (Py_ssize_t i = 0; i < first; ++i) {
      PyTuple_SetItem(all.get(), i, Ref::to(operands[i]).release());
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
      Ref each(PySequence_GetItem(tensors, i));
      if (!each) return -1;
      PyTuple_SetItem(all.get(), first + i, each.release());
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

/// A call on its way through torch's apply to `forward`. All of it is the caller's.
struct Recorded {
  PyObject *capsule, *given, *scalars, *told;
  bool with_lse;
  const Drawn* drawn;  // null: there is no dropout
};

/// Beside the arguments of apply, of which torch looks at each: one that is no tensor takes it as
/// long as two that are.
thread_local const Recorded* recorded = nullptr;

/// What apply makes of q, k, v and learned tensors.
template <class Apply>
PyObject* record(const Recorded& call, const Apply& apply) {
  // What torch does before it comes to `forward` may end in another call's.
  const Recorded* const before = std::exchange(recorded, &call);
  PyObject* const made = apply();
  recorded = before;
  return made;
}

PyObject* record(const Straight& call, PyObject* const* operands, PyObject* tensors, bool with_lse,
                 PyObject* told, const Drawn* drawn) {
  const Recorded mine{call.capsule.get(), tensors, call.scalars.get(), told, with_lse, drawn};
  if (call.learned_count == 0) {
    return record(mine, [&] {
      return PyObject_CallFunctionObjArgs(call.record.get(), operands[0], operands[1], operands[2],
                                          nullptr);
    });
  }
  const Ref all(PyTuple_New(3 + call.learned_count));
  if (!all) return nullptr;
  for (int i = 0; i < 3; ++i) PyTuple_SetItem(all.get(), i, Ref::to(operands[i]).release());
  for (int i = 0; i < call.learned_count; ++i) {
    Ref each(PySequence_GetItem(tensors, call.learned[i]));
    if (!each) return nullptr;
    PyTuple_SetItem(all.get(), 3 + i, each.release());
  }
  return record(mine, [&] { return PyObject_CallObject(call.record.get(), all.get()); });
}

/// go(q, k, v, tensors, with_lse, scalars by name, all arrays): O, or O and LSE; None where they
/// are not as they were. The last two may be left out, where no array beside tensors is brought.
PyObject* go(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const auto* call = owned_by<Straight>(self);
  if (call == nullptr || count < 5 || count > 7) return refuse("a call takes seven arguments");
  const int with_lse = PyObject_IsTrue(arguments[4]);
  if (with_lse < 0) return nullptr;
  const Ref given = given_of(*call, arguments[3], count > 6 ? arguments[6] : nullptr);
  if (!given && PyErr_Occurred() != nullptr) return nullptr;
  const int passes = given ? is_as_it_was(*call, arguments, given.get()) : 0;
  if (passes < 0) return nullptr;
  if (passes == 0) return Ref::to(call->none.get()).release();
  Ref told = Ref::to(call->told.get());
  Drawn drawn{};
  const Drawn* const of_launch = call->draw ? &drawn : nullptr;
  if (of_launch != nullptr) {
    told = Ref(PyObject_CallFunctionObjArgs(call->draw.get(), nullptr));
    if (!told) return nullptr;
    if (!take(drawn, PyTuple_GetItem(told.get(), 1))) {
      return PyObject_CallFunctionObjArgs(call->drawn_otherwise.get(), arguments[0], arguments[1],
                                          arguments[2], given.get(), arguments[4], told.get(),
                                          nullptr);
    }
  }
  if (call->record) {
    return record(*call, arguments, given.get(), with_lse != 0, told.get(), of_launch);
  }
  Launcher* const launcher = launcher_of(call->capsule.get());
  const Ref scalars = scalars_of(*call, count > 5 ? arguments[5] : nullptr);
  if (launcher == nullptr || !scalars) return nullptr;
  return as_asked(run(*launcher, arguments, given.get(), with_lse != 0, scalars.get(), of_launch),
                  with_lse != 0);
}

/// False where there is an error.
bool take_places(Straight& call, PyObject* behind, PyObject* twins) {
  const Py_ssize_t behind_count = PyTuple_Size(behind), twin_count = PyTuple_Size(twins);
  if (behind_count < 0 || behind_count > kMaxMembers || twin_count < 0 ||
      twin_count > kMaxMembers) {
    return refuse("too many arrays") != nullptr;
  }
  for (; call.behind_count < behind_count; ++call.behind_count) {
    PyObject* const place = PyTuple_GetItem(behind, call.behind_count);
    call.behind[call.behind_count] = static_cast<int>(PyLong_AsLong(place));
  }
  for (; call.twin_count < twin_count; ++call.twin_count) {
    auto& [first, second] = call.twins[call.twin_count];
    PyObject* const pair = PyTuple_GetItem(twins, call.twin_count);
    if (PyArg_ParseTuple(pair, "ii", &first, &second) == 0) return false;
  }
  return PyErr_Occurred() == nullptr;
}

/// What `forward` says to a Function's context: what its methods of like names do there, in Python.
struct Context {
  static constexpr char kName[] = "attune.context";

  Ref call{PyUnicode_InternFromString("call")};
  Ref to_save{PyUnicode_InternFromString("to_save")};
  Ref materialize{PyUnicode_InternFromString("materialize_grads")};
  Ref of_false;
};

/// Whether the context took it. Captured tensors are saved, too: torch notices where one was
/// changed in between.
bool save(PyObject* context, const Context& names, const Recorded& call, PyObject* const* operands,
          const Outputs& made) {
  const Py_ssize_t count = PySequence_Size(call.given);
  if (count < 0) return false;
  const Ref tensors(PyTuple_New(5 + count));
  if (!tensors) return false;
  PyObject* const first[] = {operands[0], operands[1], operands[2], made.o.get(), made.lse.get()};
  for (Py_ssize_t i = 0; i < 5; ++i) {
    PyTuple_SetItem(tensors.get(), i, Ref::to(first[i]).release());
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    Ref each(PySequence_GetItem(call.given, i));
    if (!each) return false;
    PyTuple_SetItem(tensors.get(), 5 + i, each.release());
  }
  // Of one output there is a gradient wherever the backward pass is asked for.
  return PyObject_SetAttr(context, names.to_save.get(), tensors.get()) == 0 &&
         (!call.with_lse ||
          PyObject_SetAttr(context, names.materialize.get(), names.of_false.get()) == 0) &&
         PyObject_SetAttr(context, names.call.get(), call.told) == 0;
}

/// A Function's forward(ctx, q, k, v, *learned), of the call that is on its way.
PyObject* forward(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const Recorded* const call = std::exchange(recorded, nullptr);
  if (count < 4 || call == nullptr) return refuse("a forward pass takes a call");
  const auto* names = owned_by<Context>(self);
  Launcher* const launcher = launcher_of(call->capsule);
  if (names == nullptr || launcher == nullptr) return nullptr;
  Outputs made = run(*launcher, arguments + 1, call->given, true, call->scalars, call->drawn);
  if (!made.o || !save(arguments[0], *names, *call, arguments + 1, made)) return nullptr;
  return as_asked(std::move(made), call->with_lse);
}

/// A Function's apply.
struct Recorder {
  static constexpr char kName[] = "attune.recorder";

  Ref apply;
};

/// record(call, q, k, v, *learned), `call` being (launcher, given, scalars, whether LSE is asked
/// for, what the backward pass is told).
PyObject* record_call(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const auto* recorder = owned_by<Recorder>(self);
  if (recorder == nullptr || count < 4 || PyTuple_Size(arguments[0]) != 5) {
    return refuse("what is recorded is a call");
  }
  PyObject* part[5];
  for (int i = 0; i < 5; ++i) part[i] = PyTuple_GetItem(arguments[0], i);
  const int with_lse = PyObject_IsTrue(part[3]);
  const Ref all(PyTuple_New(count - 1));
  if (with_lse < 0 || !all) return nullptr;
  for (Py_ssize_t i = 1; i < count; ++i) {
    PyTuple_SetItem(all.get(), i - 1, Ref::to(arguments[i]).release());
  }
  return record({part[0], part[1], part[2], part[4], with_lse != 0, nullptr},
                [&] { return PyObject_CallObject(recorder->apply.get(), all.get()); });
}

PyMethodDef go_method{
    "go", go, METH_FASTCALL,
    "go(q, k, v, tensors, with_lse, scalars): O, or O and LSE; None: they are others"};

PyMethodDef forward_method{"forward", forward, METH_FASTCALL, "forward(ctx, q, k, v, ...)"};

PyMethodDef record_method{"record", record_call, METH_FASTCALL, "record(call, q, k, v, ...)"};

}  // namespace

}  // namespace attune::calls

/// A call as `go`: of (check, capsule, a Function's apply or None, scalars, told, None, names,
/// places of learned tensors, what draws, what runs a call whose seed lies on the device, places of
/// the arrays behind the tensors, pairs of places at which there is one array). What draws gives
/// what the backward pass is told, with the launch's numbers in its second place; None: there is no
/// dropout.
extern "C" ATT_API PyObject* attune_calls_straight(PyObject* given) {
  using namespace attune::calls;
  PyObject* part[12];
  if (PyArg_ParseTuple(given, "OOOOOOOOOOOO", &part[0], &part[1], &part[2], &part[3], &part[4],
                       &part[5], &part[6], &part[7], &part[8], &part[9], &part[10],
                       &part[11]) == 0) {
    return nullptr;
  }
  auto call = std::unique_ptr<Straight>(new (std::nothrow) Straight{});
  if (call == nullptr) return refuse("no memory");
  call->check = Ref::to(part[0]);
  call->capsule = Ref::to(part[1]);
  if (part[2] != part[5]) call->record = Ref::to(part[2]);
  call->scalars = Ref::to(part[3]);
  call->told = Ref::to(part[4]);
  call->none = Ref::to(part[5]);
  call->names = Ref::to(part[6]);
  if (part[8] != part[5]) call->draw = Ref::to(part[8]);
  call->drawn_otherwise = Ref::to(part[9]);
  const Py_ssize_t learned = PyTuple_Size(part[7]);
  if (learned < 0 || learned > kMaxTensors) return refuse("too many tensors");
  for (; call->learned_count < learned; ++call->learned_count) {
    PyObject* const place = PyTuple_GetItem(part[7], call->learned_count);
    call->learned[call->learned_count] = static_cast<int>(PyLong_AsLongLong(place));
  }
  if (!take_places(*call, part[10], part[11])) return nullptr;
  return function_of(go_method, std::move(call));
}

/// What is a Function's `forward` where launches are such, of False.
extern "C" ATT_API PyObject* attune_calls_forward(PyObject* of_false) {
  using namespace attune::calls;
  auto names = std::unique_ptr<Context>(new (std::nothrow) Context);
  if (names == nullptr) return refuse("no memory");
  names->of_false = Ref::to(of_false);
  return function_of(forward_method, std::move(names));
}

/// `record`, of the apply of a Function that has such a `forward`.
extern "C" ATT_API PyObject* attune_calls_recorder(PyObject* apply) {
  using namespace attune::calls;
  auto recorder = std::unique_ptr<Recorder>(new (std::nothrow) Recorder);
  if (recorder == nullptr) return refuse("no memory");
  recorder->apply = Ref::to(apply);
  return function_of(record_method, std::move(recorder));
}
