// What attune._met does to find a call that was made before, without running bytecode.
#include "finder.hpp"

#include <algorithm>
#include <cstddef>
#include <new>

#include "attune/attune.h"

namespace attune::calls {

namespace {

/// What an argument is to `find`; attune._met has the same numbers.
enum Argument : long { kByValue, kOfLaunch, kLse, kTensors, kScalars, kArrays };  // and behind them
constexpr long kArrayCount = 7;

/// What a call says beside q, k and v.
struct Said {
  Ref key, tensors;
  PyObject *with_lse, *scalars;        // borrowed
  PyObject* arrays[kArrayCount] = {};  // borrowed, too; null: there are none
  bool has_arrays = false;
};

/// False where there is an error.
bool read(const Finder& finder, PyObject* v, PyObject* const* values, Py_ssize_t count,
          PyObject* kinds, Said& said) {
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
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const value = values[i];
    const long kind = PyLong_AsLong(PyTuple_GetItem(kinds, 1 + i));
    Ref part = Ref::to(kind == kByValue ? value : finder.none.get());
    if (kind == kLse) said.with_lse = value;
    const bool is_array = kind >= kArrays && kind < kArrays + kArrayCount;
    if (is_array || kind == kOfLaunch) {
      const bool is_none = value == finder.none.get();
      part = Ref::to((is_none ? finder.of_true : finder.of_false).get());
    }
    if (is_array) {
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

/// The key of calls that are told apart by their sizes, too, as attune._met.sizes_of has them;
/// empty and an error where something has none.
Ref key_with_sizes(const Finder& finder, PyObject* const* operands, const Said& said) {
  const auto is_there = [&](PyObject* array) {
    return array != nullptr && array != finder.none.get();
  };
  Py_ssize_t count = PySequence_Size(said.tensors.get());
  if (count < 0) return {};
  count += std::count_if(operands, operands + 3, is_there);
  count += std::count_if(said.arrays, said.arrays + kArrayCount, is_there);
  Ref sizes(PyTuple_New(count));
  Py_ssize_t filled = 0;
  const auto add = [&](PyObject* array) {
    if (!is_there(array)) return true;
    Ref shape(PyObject_GetAttr(array, finder.shape.get()));
    return shape && PyTuple_SetItem(sizes.get(), filled++, shape.release()) == 0;
  };
  bool has_all = static_cast<bool>(sizes);
  for (int i = 0; i < 3; ++i) has_all = has_all && add(operands[i]);
  for (PyObject* const array : said.arrays) has_all = has_all && add(array);
  for (Py_ssize_t i = 0; has_all && filled < count; ++i) {
    const Ref tensor(PySequence_GetItem(said.tensors.get(), i));
    has_all = is_there(tensor.get()) && add(tensor.get());
  }
  return has_all ? Ref(PyTuple_Pack(2, said.key.get(), sizes.get())) : Ref();
}

/// A tuple of them; empty, perhaps with an error, where there is none.
Ref calls_of(const Finder& finder, PyObject* const* operands, const Said& said) {
  Ref found = Ref::to(PyDict_GetItemWithError(finder.calls.get(), said.key.get()));
  if (!found || PyTuple_Size(found.get()) != 0) return found;
  const Ref key = key_with_sizes(finder, operands, said);
  return key ? Ref::to(PyDict_GetItemWithError(finder.calls.get(), key.get())) : Ref();
}

}  // namespace

bool take(Finder& finder, PyObject* const* part) {
  finder.calls = Ref::to(part[0]);
  finder.is_grad_enabled = Ref::to(part[1]);
  finder.none = Ref::to(part[2]);
  finder.of_false = Ref::to(part[3]);
  finder.of_true = Ref::to(part[4]);
  finder.empty = Ref(PyTuple_New(0));
  finder.go = Ref(PyUnicode_InternFromString("go"));
  finder.shape = Ref(PyUnicode_InternFromString("shape"));
  return finder.empty && finder.go && finder.shape;
}

PyObject* find_call(const Finder& finder, PyObject* const* operands, PyObject* const* values,
                    Py_ssize_t count, PyObject* kinds) {
  if (PyTuple_Size(kinds) != 1 + count) return Ref::to(finder.none.get()).release();
  Said said{};
  Ref bound, arrays;
  if (read(finder, operands[2], values, count, kinds, said)) {
    bound = calls_of(finder, operands, said);
    if (bound && said.has_arrays) arrays = arrays_of(finder, operands, said);
  }
  const Py_ssize_t known = bound ? PyTuple_Size(bound.get()) : 0;
  for (Py_ssize_t i = 0; i < known; ++i) {
    const Ref go(PyObject_GetAttr(PyTuple_GetItem(bound.get(), i), finder.go.get()));
    if (!go || go.get() == finder.none.get()) break;
    Ref found(PyObject_CallFunctionObjArgs(go.get(), operands[0], operands[1], operands[2],
                                           said.tensors.get(), said.with_lse, said.scalars,
                                           arrays.get(), nullptr));
    if (!found || found.get() != finder.none.get()) return found.release();
  }
  PyErr_Clear();
  return Ref::to(finder.none.get()).release();
}

namespace {

/// find(q, k, v, arguments by name, their kinds): what the call gives; None where it is not among
/// those that were made before. Of errors nothing is said: the call is worked out, and says them.
PyObject* find(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const auto* finder = owned_by<Finder>(self);
  if (finder == nullptr || count != 5) return refuse("find takes five arguments");
  PyObject* values[kMaxNames];
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t position = 0, given = 0;
  while (given < kMaxNames && PyDict_Next(arguments[3], &position, &name, &value) != 0) {
    values[given++] = value;
  }
  return find_call(*finder, arguments, values, given, arguments[4]);
}

PyMethodDef find_method{"find", find, METH_FASTCALL,
                        "find(q, k, v, given, kinds): what the call gives, or None"};

}  // namespace

}  // namespace attune::calls

/// `find`, of (calls, torch.is_grad_enabled, None, False, True).
extern "C" ATT_API PyObject* attune_calls_finder(PyObject* given) {
  using namespace attune::calls;
  PyObject* part[5];
  if (PyArg_ParseTuple(given, "OOOOO", &part[0], &part[1], &part[2], &part[3], &part[4]) == 0) {
    return nullptr;
  }
  auto finder = std::unique_ptr<Finder>(new (std::nothrow) Finder{});
  if (finder == nullptr) return refuse("no memory");
  if (!take(*finder, part)) return nullptr;
  return function_of(find_method, std::move(finder));
}
