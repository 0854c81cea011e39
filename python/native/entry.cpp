// attune.attention and attune.torch.flex_attention where a call was made before: no frame, no
// mapping of arguments by name. All else goes to the functions' own bytecode.
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

// The parameters of attune.torch.flex_attention, in its order.
enum Parameter {
  kQuery,
  kKey,
  kValue,
  kScoreMod,
  kBlockMask,
  kScale,
  kEnableGqa,
  kReturnLse,
  kKernelOptions,
  kReturnAux,
  kMaskMod,
  kDropout,
  kSink,
  kPrecision,
  kStrict,
  kParameters
};
constexpr Py_ssize_t kPositional = kReturnAux;

/// Of attune.torch.flex_attention.
struct Flex {
  static constexpr char kName[] = "attune.flex_attention";

  Ref function;  // its bytecode
  Watched watched;
  Ref parameters, defaults;  // by place
  Ref meet, again, is_grad_enabled;
  Ref seq_lengths{PyUnicode_InternFromString("seq_lengths")};
  Ref block_size{PyUnicode_InternFromString("BLOCK_SIZE")};
  Ref bound{PyUnicode_InternFromString("bound")}, says{PyUnicode_InternFromString("says")};
  Ref go{PyUnicode_InternFromString("go")}, kept{PyUnicode_InternFromString("kept")};
};

/// Whether the arguments are such as the function takes. Sets no error.
bool place(const Flex& entry, const Given& given, PyObject** placed) {
  const Py_ssize_t positional = given.positional(), named = given.named();
  if (positional > kPositional) return false;
  for (Py_ssize_t i = 0; i < kParameters; ++i) {
    placed[i] = i < positional ? given.arguments[i] : nullptr;
  }
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* const name = PyTuple_GetItem(given.names, i);
    Py_ssize_t at = 0;
    while (at < kParameters && PyTuple_GetItem(entry.parameters.get(), at) != name) ++at;
    if (at == kParameters || placed[at] != nullptr) return false;
    placed[at] = given.arguments[positional + i];
  }
  for (Py_ssize_t i = 0; i < kParameters; ++i) {
    if (placed[i] != nullptr) continue;
    if (i <= kValue) return false;
    placed[i] = PyTuple_GetItem(entry.defaults.get(), i);
  }
  return true;
}

/// What the call says beside tensors and functions, as _bind has it.
Ref said(const Flex& entry, PyObject* const* placed) {
  const Ref grad(PyObject_CallFunctionObjArgs(entry.is_grad_enabled.get(), nullptr));
  Ref blocks = Ref::to(entry.watched.none.get());
  if (PyObject* const mask = placed[kBlockMask]; mask != blocks.get()) {
    const Ref lengths(PyObject_GetAttr(mask, entry.seq_lengths.get()));
    const Ref size(PyObject_GetAttr(mask, entry.block_size.get()));
    if (!lengths || !size) return {};
    blocks = Ref(PyTuple_Pack(2, lengths.get(), size.get()));
  }
  if (!grad || !blocks) return {};
  return Ref(PyTuple_Pack(6, placed[kScale], placed[kEnableGqa], placed[kDropout],
                          placed[kPrecision], grad.get(), blocks.get()));
}

/// As `met` of attention.
PyObject* met(const Flex& entry, const Given& given) {
  PyObject* placed[kParameters];
  PyObject* const none = entry.watched.none.get();
  if (!place(entry, given, placed) || placed[kReturnAux] != none || placed[kSink] != none ||
      entry.watched.is_watching()) {
    return nullptr;
  }
  const Ref seen(PyObject_CallFunctionObjArgs(entry.meet.get(), placed[kScoreMod],
                                              placed[kBlockMask], placed[kMaskMod], nullptr));
  if (!seen || seen.get() == none) return nullptr;
  const Ref bound(PyObject_GetAttr(seen.get(), entry.bound.get()));
  const Ref says = said(entry, placed);
  const Py_ssize_t known = bound && says ? PyTuple_Size(bound.get()) : 0;
  for (Py_ssize_t i = 0; i < known; ++i) {
    PyObject* const each = PyTuple_GetItem(bound.get(), i);
    const Ref of_each(PyObject_GetAttr(each, entry.says.get()));
    const int is_same = of_each ? PyObject_RichCompareBool(of_each.get(), says.get(), kPyEq) : -1;
    if (is_same < 0) break;
    if (is_same == 0) continue;
    const Ref go(PyObject_GetAttr(each, entry.go.get()));
    const Ref kept(PyObject_GetAttr(each, entry.kept.get()));
    if (!go || !kept) break;
    PyObject *const *const operands = placed + kQuery, *const lse = placed[kReturnLse];
    Ref found(go.get() == none
                  ? PyObject_CallFunctionObjArgs(entry.again.get(), each, operands[0], operands[1],
                                                 operands[2], lse, nullptr)
                  : PyObject_CallFunctionObjArgs(go.get(), operands[0], operands[1], operands[2],
                                                 kept.get(), lse, nullptr));
    if (!found || found.get() != none) return found.release();
  }
  PyErr_Clear();
  return nullptr;
}

/// Of a kind the one that stands before its function. It outlives Python's objects of it.
template <class Entry>
const Entry* standing = nullptr;

template <class Entry>
PyObject* call(PyObject*, PyObject* const* arguments, std::size_t flags, PyObject* names) {
  const Entry& entry = *standing<Entry>;
  const Given given{arguments, flags, names};
  PyObject* const found = met(entry, given);
  if (found == nullptr && PyErr_Occurred() != nullptr) return nullptr;
  if (found != nullptr && found != entry.watched.none.get()) return found;
  Py_DecRef(found);
  return given.of(entry.function);
}

/// The call as `call` finds it, by itself: None where it has to be worked out.
template <class Entry>
PyObject* meet(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  const auto* entry = owned_by<Entry>(self);
  if (entry == nullptr) return nullptr;
  PyObject* const found = met(*entry, {arguments, static_cast<std::size_t>(count), names});
  if (found != nullptr || PyErr_Occurred() != nullptr) return found;
  return Ref::to(entry->watched.none.get()).release();
}

template <class Entry>
PyMethodDef meet_method{
    "met",
    reinterpret_cast<decltype(PyMethodDef::function)>(reinterpret_cast<void (*)()>(meet<Entry>)),
    METH_FASTCALL | METH_KEYWORDS, "what the call gives, or None"};

/// `meet` of the entry, and whether it now stands before the function.
template <class Entry>
PyObject* put(std::unique_ptr<Entry> entry, PyObject* function) {
  const Entry* const mine = entry.get();
  const Ref self = capsule_of(std::move(entry));
  const Ref found(self ? PyCFunction_NewEx(&meet_method<Entry>, self.get(), nullptr) : nullptr);
  if (!found) return nullptr;
  if (!can_enter()) return PyTuple_Pack(2, found.get(), Ref(PyLong_FromLong(0)).get());
  static_cast<void>(Ref::to(self.get()).release());
  standing<Entry> = mine;
  PyFunction_SetVectorcall(function, call<Entry>);
  return PyTuple_Pack(2, found.get(), Ref(PyLong_FromLong(1)).get());
}

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
  return put(std::move(entry), part[0]);
}

/// Of (attune.torch.flex_attention, its bytecode, what is watched as above, parameters, defaults,
/// _meet, _again, torch.is_grad_enabled): likewise.
extern "C" ATT_API PyObject* attune_calls_enter_flex(PyObject* given) {
  using namespace attune::calls;
  PyObject* part[7];
  PyObject* watched[4];
  if (PyArg_ParseTuple(given, "OO(OOOO)OOOOO", &part[0], &part[1], &watched[0], &watched[1],
                       &watched[2], &watched[3], &part[2], &part[3], &part[4], &part[5],
                       &part[6]) == 0) {
    return nullptr;
  }
  if (PyTuple_Size(part[2]) != kParameters || PyTuple_Size(part[3]) != kParameters) {
    return refuse("flex_attention has other parameters");
  }
  auto entry = std::unique_ptr<Flex>(new (std::nothrow) Flex);
  if (entry == nullptr) return refuse("no memory");
  entry->function = Ref::to(part[1]);
  watch(entry->watched, watched);
  entry->parameters = Ref::to(part[2]);
  entry->defaults = Ref::to(part[3]);
  entry->meet = Ref::to(part[4]);
  entry->again = Ref::to(part[5]);
  entry->is_grad_enabled = Ref::to(part[6]);
  return put(std::move(entry), part[0]);
}
