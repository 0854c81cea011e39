// What stands before a function of Python and is called in its place.
#pragma once

#include "objects.hpp"

namespace attune::calls {

/// What torch and Python may have in mind that no call here takes heed of: then the function's own
/// bytecode runs, which does.
struct Watched {
  Ref forward_mode, level{PyUnicode_InternFromString("_current_level")};
  Ref callback;  // Dynamo's, of frames that it would compile
  Ref none, of_false;

  bool is_watching() const {
    const Ref found(PyObject_GetAttr(forward_mode.get(), level.get()));
    const Ref frames(PyObject_CallFunctionObjArgs(callback.get(), nullptr));
    if (found && frames && PyLong_AsLong(found.get()) < 0 && PyErr_Occurred() == nullptr) {
      return frames.get() != none.get() && frames.get() != of_false.get();
    }
    PyErr_Clear();
    return true;
  }
};

/// Of (forward_ad, Dynamo's get_eval_frame_callback, None, False).
inline void watch(Watched& watched, PyObject* const* part) {
  watched.forward_mode = Ref::to(part[0]);
  watched.callback = Ref::to(part[1]);
  watched.none = Ref::to(part[2]);
  watched.of_false = Ref::to(part[3]);
}

/// A call as CPython's vectorcall has it.
struct Given {
  PyObject* const* arguments;
  std::size_t flags;
  PyObject* names;  // of the last arguments; null: of none

  Py_ssize_t positional() const { return static_cast<Py_ssize_t>(flags & ~PY_VECTORCALL_OFFSET); }
  Py_ssize_t named() const { return names == nullptr ? 0 : PyTuple_Size(names); }
  PyObject* of(const Ref& function) const {
    return PyObject_Vectorcall(function.get(), arguments, flags, names);
  }
};

/// Whether this Python lets a function be called otherwise.
inline bool can_enter() {
  return &PyFunction_SetVectorcall != nullptr && &PyObject_Vectorcall != nullptr;
}

}  // namespace attune::calls
