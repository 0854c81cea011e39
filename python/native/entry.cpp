// attune.attention where a call was made before: no frame, no mapping of arguments by name. All
// else goes to the function's own bytecode.
#include "entry.hpp"

#include <new>

#include "attune/attune.h"
#include "finder.hpp"

namespace attune::calls {

namespace {

/// Of attune.attention, as attune._met has it.
struct Attention {
  static constexpr char kName[] = "attune.attention";

  Ref function;  // its bytecode
  Watched watched;
  Ref namespace_of_met, names, find{PyUnicode_InternFromString("find")};
  Ref kinds{PyUnicode_InternFromString("kinds")}, no_names;
  Finder finder;
};

/// What the call gave before; null without an error, or None: it has to be worked out.
PyObject* met(const Attention& entry, const Given& given) {
  const Py_ssize_t named = given.named();
  if (given.positional() != 3 || named > kMaxNames || entry.watched.is_watching()) return nullptr;
  PyObject* const find = PyDict_GetItemWithError(entry.namespace_of_met.get(), entry.find.get());
  PyObject* const said = given.names == nullptr ? entry.no_names.get() : given.names;
  PyObject* const known = PyDict_GetItemWithError(entry.names.get(), said);
  PyObject* const none = entry.watched.none.get();
  if (find == nullptr || find == none || known == nullptr || known == none) {
    PyErr_Clear();
    return nullptr;
  }
  const Ref kinds(PyObject_GetAttr(known, entry.kinds.get()));
  if (!kinds || kinds.get() == none) {
    PyErr_Clear();
    return nullptr;
  }
  return find_call(entry.finder, given.arguments, given.arguments + 3, named, kinds.get());
}

/// What stands before the function. It outlives Python's object of it.
const Attention* standing = nullptr;

PyObject* call(PyObject*, PyObject* const* arguments, std::size_t flags, PyObject* names) {
  const Given given{arguments, flags, names};
  PyObject* const found = met(*standing, given);
  if (found == nullptr && PyErr_Occurred() != nullptr) return nullptr;
  if (found != nullptr && found != standing->watched.none.get()) return found;
  Py_DecRef(found);
  return given.of(standing->function);
}

/// The call as `call` finds it, by itself: None where it has to be worked out.
PyObject* meet(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  const auto* entry = owned_by<Attention>(self);
  if (entry == nullptr) return nullptr;
  PyObject* const found = met(*entry, {arguments, static_cast<std::size_t>(count), names});
  if (found != nullptr || PyErr_Occurred() != nullptr) return found;
  return Ref::to(entry->watched.none.get()).release();
}

PyMethodDef meet_method{
    "met", reinterpret_cast<decltype(PyMethodDef::function)>(reinterpret_cast<void (*)()>(meet)),
    METH_FASTCALL | METH_KEYWORDS, "what the call gives, or None"};

}  // namespace

}  // namespace attune::calls

/// Of (attune.attention, its bytecode, (forward_ad, Dynamo's callback, None, False), vars(_met),
/// _met._names, what a finder is made of): what finds its calls, and whether that now stands before
/// the function, as it can where the Python is one of 3.12 or newer.
extern "C" ATT_API PyObject* attune_calls_enter_attention(PyObject* given) {
  using namespace attune::calls;
  PyObject* part[6];
  PyObject* watched[4];
  PyObject* of_finder[5];
  if (PyArg_ParseTuple(given, "OO(OOOO)OO(OOOOO)", &part[0], &part[1], &watched[0], &watched[1],
                       &watched[2], &watched[3], &part[2], &part[3], &of_finder[0], &of_finder[1],
                       &of_finder[2], &of_finder[3], &of_finder[4]) == 0) {
    return nullptr;
  }
  auto entry = std::unique_ptr<Attention>(new (std::nothrow) Attention);
  if (entry == nullptr) return refuse("no memory");
  entry->function = Ref::to(part[1]);
  watch(entry->watched, watched);
  entry->namespace_of_met = Ref::to(part[2]);
  entry->names = Ref::to(part[3]);
  entry->no_names = Ref(PyTuple_New(0));
  if (!take(entry->finder, of_finder)) return nullptr;
  const Attention* const mine = entry.get();
  const Ref self = capsule_of(std::move(entry));
  const Ref found(self ? PyCFunction_NewEx(&meet_method, self.get(), nullptr) : nullptr);
  const Ref stands(PyLong_FromLong(can_enter()));
  if (!found || !stands) return nullptr;
  if (can_enter()) {
    static_cast<void>(Ref::to(self.get()).release());
    standing = mine;
    PyFunction_SetVectorcall(part[0], call);
  }
  return PyTuple_Pack(2, found.get(), stands.get());
}
