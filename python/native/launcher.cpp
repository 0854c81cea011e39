// What attune.torch._launcher does, without running bytecode.
#include "launcher.hpp"

#include <new>

#include "launch.hpp"

namespace attune::calls {

/// A ForwardPlan's launch.
struct Launcher {
  static constexpr char kName[] = "attune.launcher";

  decltype(&att_forward) forward;
  const att_kernel* kernel;
  att_forward_args args;  // all but addresses
  Kind o, lse;
  Ref otherwise, none;
  Launch launch;
};

namespace {

Outputs run_in_python(const Launcher& launcher, PyObject* const* operands, PyObject* tensors,
                      bool with_lse, PyObject* scalars, const Drawn* drawn) {
  const Ref flag(PyLong_FromLong(with_lse));
  PyObject* const none = launcher.none.get();  // no scale, no probability
  PyObject* const seed = drawn == nullptr ? nullptr : drawn->seed_object;
  const Ref found(PyObject_CallFunctionObjArgs(
      launcher.otherwise.get(), operands[0], operands[1], operands[2], tensors, flag.get(), scalars,
      seed == nullptr ? nullptr : none, none, seed,
      drawn == nullptr ? nullptr : drawn->offset_object, nullptr));
  if (!found) return {};
  return {Ref(PySequence_GetItem(found.get(), 0)), Ref(PySequence_GetItem(found.get(), 1))};
}

}  // namespace

Outputs run(Launcher& launcher, PyObject* const* operands, PyObject* tensors, bool with_lse,
            PyObject* scalars, const Drawn* drawn) {
  Launch& launch = launcher.launch;
  if (launch.draws != (drawn != nullptr)) {
    refuse("dropout's seed is brought where there is dropout");
    return {};
  }
  Frame frame;
  std::uint64_t at[3] = {};
  const int operand_count = operands[2] == launcher.none.get() ? 2 : 3;  // V may lie in K
  for (int i = 0; i < operand_count; ++i) {
    if (!address_of(launch, operands[i], at[i])) return {};
  }
  if (((at[0] | at[1] | at[2]) & kMisaligned) != 0 || !is_current(launch) ||
      !fill(launch, tensors, scalars, frame)) {
    return run_in_python(launcher, operands, tensors, with_lse, scalars, drawn);
  }
  att_forward_args args = launcher.args;
  put(launch, frame, args);
  if (drawn != nullptr) {
    args.dropout_seed = drawn->seed;
    args.dropout_offset = drawn->offset;
  }
  args.q = reinterpret_cast<const void*>(at[0]);
  args.k = reinterpret_cast<const void*>(at[1]);
  args.v = reinterpret_cast<const void*>(at[2]);
  Outputs made;
  made.o = new_tensor(launch, launcher.o);
  if (!made.o || !address_of(launch, made.o.get(), args.o)) return {};
  if (with_lse) {
    made.lse = new_tensor(launch, launcher.lse);
    if (!made.lse || !address_of(launch, made.lse.get(), args.lse)) return {};
  }
  void* stream = nullptr;
  Workspace workspace(launch);
  if (!find_stream(launch, stream) || !workspace.take(args.workspace)) return {};
  void* const thread = PyEval_SaveThread();
  int status = fill_rest(launch, launcher.kernel, frame, launcher.o, args.o, stream);
  if (status == 0) {
    status = fill_rest(launch, launcher.kernel, frame, launcher.lse, args.lse, stream);
  }
  if (status == 0) status = launcher.forward(launcher.kernel, &args, stream);
  PyEval_RestoreThread(thread);
  if (status != 0) {
    raise(launch, status);
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
  return as_asked(run(*launcher, arguments, arguments[3], with_lse != 0, arguments[5], nullptr),
                  with_lse != 0);
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
  PyObject *o = nullptr, *lse = nullptr, *otherwise = nullptr, *none = nullptr,
           *of_launch = nullptr;
  if (PyArg_ParseTuple(given, "KKKOOOOO", &function, &kernel, &address, &o, &lse, &otherwise, &none,
                       &of_launch) == 0) {
    return nullptr;
  }
  auto launcher = std::unique_ptr<Launcher>(new (std::nothrow) Launcher{});
  const auto* args = reinterpret_cast<const att_forward_args*>(address);
  if (launcher == nullptr || args->struct_size != sizeof(att_forward_args)) {
    return refuse("a launch of another version");
  }
  launcher->forward = reinterpret_cast<decltype(&att_forward)>(function);
  launcher->kernel = reinterpret_cast<const att_kernel*>(kernel);
  launcher->args = *args;
  launcher->otherwise = Ref::to(otherwise);
  launcher->none = Ref::to(none);
  if (!take(launcher->launch, of_launch, *args) || !take(launcher->o, launcher->launch, o) ||
      !take(launcher->lse, launcher->launch, lse)) {
    return nullptr;
  }
  const Ref capsule = capsule_of(std::move(launcher));
  if (!capsule) return nullptr;
  const Ref function_object(PyCFunction_NewEx(&launch_method, capsule.get(), nullptr));
  if (!function_object) return nullptr;
  return PyTuple_Pack(2, function_object.get(), capsule.get());
}
