// A launch of a ForwardPlan, from tensors of Python to att_forward.
#pragma once

#include "objects.hpp"

namespace attune::calls {

struct Drawn;
/// Thread-safe.
struct Launcher;

/// O and LSE, or none of them and an error.
struct Outputs {
  Ref o, lse;
};

/// Null and an error where the capsule owns none.
Launcher* launcher_of(PyObject* capsule);

/// Of q, k and v, a sequence of tensors, a tuple of scalars, and what was drawn, of launches that
/// have dropout, else null. Whatever is not as usual goes the way of Python, which says what is
/// wrong.
Outputs run(Launcher& launcher, PyObject* const* operands, PyObject* tensors, bool with_lse,
            PyObject* scalars, const Drawn* drawn);

/// O, or O and LSE, or null and an error.
inline PyObject* as_asked(Outputs made, bool with_lse) {
  if (!made.o || !with_lse) return made.o.release();
  return PyTuple_Pack(2, made.o.get(), made.lse.get());
}

}  // namespace attune::calls
