// The gradients of calls that are made again: what attune.torch._plans' BackwardPlan does, without
// running bytecode.
#include <cstdint>
#include <new>

#include "launch.hpp"

namespace attune::calls {

namespace {

// q, k, v, o and lse, and behind them the spec's tensors and what else a launch is given.
constexpr Py_ssize_t kSaved = 5;
constexpr Py_ssize_t kBoundAt = 3;

/// A BackwardPlan's launch on tensors that are as others were.
struct Bound {
  static constexpr char kName[] = "attune.bound_backward";

  decltype(&att_backward) backward;
  const att_kernel* kernel;
  att_backward_args args;  // all but addresses
  Ref check;               // of what was saved, and the gradient of o
  Kind gradients[3 + kMaxTensors];
  int learned[kMaxTensors], learned_count;  // slots of the tensors whose gradients there are
  Launch launch;
};

/// A Function's backward.
struct Gradients {
  static constexpr char kName[] = "attune.gradients";

  Ref is_grad_enabled, is_deterministic, otherwise, none;
  Ref call{PyUnicode_InternFromString("call")};
  Ref saved_tensors{PyUnicode_InternFromString("saved_tensors")};
};

/// 1 or 0, or -1 and an error.
int ask(PyObject* function, PyObject* arguments) {
  const Ref found(PyObject_CallObject(function, arguments));
  return found ? PyObject_IsTrue(found.get()) : -1;
}

/// The items from `first` on, and `last` behind them where it is not null.
Ref items_from(PyObject* tuple, Py_ssize_t first, PyObject* last = nullptr) {
  const Py_ssize_t count = PyTuple_Size(tuple) - first;
  Ref found(PyTuple_New(count + (last == nullptr ? 0 : 1)));
  for (Py_ssize_t i = 0; found && i < count; ++i) {
    PyTuple_SetItem(found.get(), i, Ref::to(PyTuple_GetItem(tuple, first + i)).release());
  }
  if (found && last != nullptr) PyTuple_SetItem(found.get(), count, Ref::to(last).release());
  return found;
}

/// Whether all of them lie as a launch wants it. Sets no error.
bool find_operands(const Bound& bound, PyObject* saved, PyObject* d_o, att_backward_args& args) {
  std::uint64_t at[kSaved + 1], any = 0;
  for (Py_ssize_t i = 0; i <= kSaved; ++i) {
    if (!address_of(bound.launch, i < kSaved ? PyTuple_GetItem(saved, i) : d_o, at[i])) {
      PyErr_Clear();
      return false;
    }
    any |= at[i];
  }
  args.q = reinterpret_cast<const void*>(at[0]);
  args.k = reinterpret_cast<const void*>(at[1]);
  args.v = reinterpret_cast<const void*>(at[2]);
  args.o = reinterpret_cast<const void*>(at[3]);
  args.lse = reinterpret_cast<const float*>(at[4]);
  args.d_o = reinterpret_cast<const void*>(at[5]);
  return (any & kMisaligned) == 0;
}

/// New tensors of all gradients; null and an error where there are none to be had.
Ref new_gradients(const Bound& bound, att_backward_args& args, float** of_tensors) {
  const int count = 3 + bound.learned_count;
  Ref made(PyTuple_New(count));
  void** const of_operands[] = {&args.d_q, &args.d_k, &args.d_v};
  for (int i = 0; made && i < count; ++i) {
    Ref each = new_tensor(bound.launch, bound.gradients[i]);
    const bool has =
        each && (i < 3 ? address_of(bound.launch, each.get(), *of_operands[i])
                       : address_of(bound.launch, each.get(), of_tensors[bound.learned[i - 3]]));
    if (!has) return {};
    PyTuple_SetItem(made.get(), i, each.release());
  }
  return made;
}

/// The gradients, or null: with an error, or without one where it is no launch like others.
PyObject* run(Bound& bound, PyObject* saved, PyObject* d_o, PyObject* numbers) {
  Launch& launch = bound.launch;
  Frame frame;
  Drawn drawn{};
  if (launch.draws && !take(drawn, numbers)) return nullptr;
  PyObject* const scalars = PyTuple_GetItem(numbers, 0);
  att_backward_args args = bound.args;
  const Ref tensors = items_from(saved, kSaved);
  if (!tensors || !is_current(launch) || !find_operands(bound, saved, d_o, args) ||
      !fill(launch, tensors.get(), scalars, frame)) {
    return nullptr;
  }
  put(launch, frame, args);
  if (launch.draws) {
    args.dropout_seed = drawn.seed;
    args.dropout_offset = drawn.offset;
  }
  float* of_tensors[kMaxTensors] = {};
  Ref made = new_gradients(bound, args, of_tensors);
  if (bound.learned_count != 0) {
    args.d_tensors = of_tensors;
    args.d_tensor_count = launch.tensor_count;
  }
  void* stream = nullptr;
  Workspace workspace(launch);
  if (!made || !find_stream(launch, stream) || !workspace.take(args.workspace)) return nullptr;
  void* const thread = PyEval_SaveThread();
  int status = ATT_OK;
  void* const of_operands[] = {args.d_q, args.d_k, args.d_v};
  for (int i = 0; i < 3 && status == ATT_OK; ++i) {
    status = fill_rest(launch, bound.kernel, frame, bound.gradients[i], of_operands[i], stream);
  }
  if (status == ATT_OK) status = bound.backward(bound.kernel, &args, stream);
  PyEval_RestoreThread(thread);
  if (status != 0) {
    raise(launch, status);
    return nullptr;
  }
  return made.release();
}

/// As `run`, of a Function's context and the gradient of o. `saved` is what was saved, once it was
/// asked for.
PyObject* run_bound(const Gradients& of, PyObject* context, PyObject* d_o, Ref& saved) {
  // Where gradients of gradients are wanted, or another kernel, Python knows what to do.
  const int records = ask(of.is_grad_enabled.get(), nullptr);
  const int is_ordered = ask(of.is_deterministic.get(), nullptr);
  if (records != 0 || is_ordered != 0) return nullptr;
  const Ref call(PyObject_GetAttr(context, of.call.get()));
  if (!call) return nullptr;
  PyObject* const known = PyTuple_GetItem(call.get(), kBoundAt);
  const Py_ssize_t count = known == nullptr ? -1 : PySequence_Size(known);
  if (count <= 0) return nullptr;
  saved = Ref(PyObject_GetAttr(context, of.saved_tensors.get()));
  if (!saved || PyTuple_Size(saved.get()) < kSaved) return nullptr;
  const Ref all = items_from(saved.get(), 0, d_o);
  for (Py_ssize_t i = 0; all && i < count; ++i) {
    const Ref capsule(PySequence_GetItem(known, i));
    auto* const bound = capsule ? owned_by<Bound>(capsule.get()) : nullptr;
    if (bound == nullptr) return nullptr;
    const int passes = ask(bound->check.get(), all.get());
    if (passes < 0) return nullptr;
    if (passes == 0) continue;
    return run(*bound, saved.get(), d_o, PyTuple_GetItem(call.get(), 1));
  }
  return nullptr;
}

/// backward(ctx, d_o[, d_lse]) of a Function.
PyObject* backward(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const auto* of = owned_by<Gradients>(self);
  if (of == nullptr || count < 2) return refuse("a backward pass takes a gradient");
  PyObject* const none = of->none.get();
  Ref saved;
  if (arguments[1] != none && (count == 2 || (count == 3 && arguments[2] == none))) {
    PyObject* const found = run_bound(*of, arguments[0], arguments[1], saved);
    if (found != nullptr || PyErr_Occurred() != nullptr) return found;
  }
  // Hooks on what is saved let it be asked for once.
  return PyObject_CallFunctionObjArgs(of->otherwise.get(), arguments[0], arguments[1],
                                      count > 2 ? arguments[2] : none, saved ? saved.get() : none,
                                      nullptr);
}

PyMethodDef backward_method{"backward", backward, METH_FASTCALL, "backward(ctx, d_o, d_lse)"};

}  // namespace

}  // namespace attune::calls

/// What is a Function's `backward`: of (is_grad_enabled, whether torch asks for an order of sums,
/// what does it in Python, None). A context's `call` has the capsules of launches in its fourth
/// place, and in its second one the launch's numbers.
extern "C" ATT_API PyObject* attune_calls_backward(PyObject* given) {
  using namespace attune::calls;
  PyObject* part[4];
  if (PyArg_ParseTuple(given, "OOOO", &part[0], &part[1], &part[2], &part[3]) == 0) return nullptr;
  auto of = std::unique_ptr<Gradients>(new (std::nothrow) Gradients);
  if (of == nullptr) return refuse("no memory");
  of->is_grad_enabled = Ref::to(part[0]);
  of->is_deterministic = Ref::to(part[1]);
  of->otherwise = Ref::to(part[2]);
  of->none = Ref::to(part[3]);
  return function_of(backward_method, std::move(of));
}

/// A launch of the backward pass as a capsule. The one argument has what attune.torch._native puts
/// there.
extern "C" ATT_API PyObject* attune_calls_bound_backward(PyObject* given) {
  using namespace attune::calls;
  unsigned long long function = 0, kernel = 0, address = 0;
  PyObject *check = nullptr, *gradients = nullptr, *learned = nullptr, *of_launch = nullptr;
  if (PyArg_ParseTuple(given, "KKKOOOO", &function, &kernel, &address, &check, &gradients, &learned,
                       &of_launch) == 0) {
    return nullptr;
  }
  auto bound = std::unique_ptr<Bound>(new (std::nothrow) Bound{});
  const auto* args = reinterpret_cast<const att_backward_args*>(address);
  if (bound == nullptr || args->struct_size != sizeof(att_backward_args)) {
    return refuse("a launch of another version");
  }
  bound->backward = reinterpret_cast<decltype(&att_backward)>(function);
  bound->kernel = reinterpret_cast<const att_kernel*>(kernel);
  bound->args = *args;
  bound->check = Ref::to(check);
  if (!take(bound->launch, of_launch, *args)) return nullptr;
  const Py_ssize_t count = PyTuple_Size(learned);
  if (count < 0 || count > args->tensor_view_count || PyTuple_Size(gradients) != 3 + count) {
    return refuse("gradients of other tensors");
  }
  for (; bound->learned_count < count; ++bound->learned_count) {
    const long slot = PyLong_AsLong(PyTuple_GetItem(learned, bound->learned_count));
    if (slot < 0 || slot >= args->tensor_view_count) return refuse("no such tensor");
    bound->learned[bound->learned_count] = static_cast<int>(slot);
  }
  for (Py_ssize_t i = 0; i < 3 + count; ++i) {
    if (!take(bound->gradients[i], bound->launch, PyTuple_GetItem(gradients, i))) return nullptr;
  }
  return capsule_of(std::move(bound)).release();
}
