// Calls that were made before, by what their callers said.
#pragma once

#include "objects.hpp"

namespace attune::calls {

constexpr Py_ssize_t kMaxNames = 64;  // of a call's arguments

/// Finds calls that were made before, as attune._met does.
struct Finder {
  static constexpr char kName[] = "attune.finder";

  Ref calls;  // by key
  Ref is_grad_enabled, none, of_false, of_true, empty, go, shape;
};

/// Of (calls, torch.is_grad_enabled, None, False, True). False and an error: there is no memory.
bool take(Finder& finder, PyObject* const* part);

/// What the call of q, k, v and arguments of these kinds gives; None where it is not among those
/// that were made before. Of errors in finding it nothing is said: the call is worked out, and says
/// them.
PyObject* find_call(const Finder& finder, PyObject* const* operands, PyObject* const* values,
                    Py_ssize_t count, PyObject* kinds);

}  // namespace attune::calls
