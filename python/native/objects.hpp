// Python's objects as C++ has them.
#pragma once

#include <memory>
#include <utility>

#include "stable.hpp"

namespace attune::calls {

/// Owns one reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_DecRef(object_); }  // of null, too

  static Ref to(PyObject* borrowed) {
    Py_IncRef(borrowed);
    return Ref(borrowed);
  }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

/// Null, with the error that is set, or a TypeError.
inline PyObject* refuse(const char* what) {
  if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_TypeError, what);
  return nullptr;
}

/// What a capsule called T::kName owns; null and an error where it is another one.
template <class T>
T* owned_by(PyObject* capsule) {
  return static_cast<T*>(PyCapsule_GetPointer(capsule, T::kName));
}

template <class T>
Ref capsule_of(std::unique_ptr<T> owned) {
  Ref capsule(PyCapsule_New(owned.get(), T::kName, [](PyObject* it) { delete owned_by<T>(it); }));
  if (capsule) static_cast<void>(owned.release());
  return capsule;
}

/// The method of what it then owns; null and an error where there is no memory.
template <class T>
PyObject* function_of(PyMethodDef& method, std::unique_ptr<T> owned) {
  const Ref capsule = capsule_of(std::move(owned));
  return capsule ? PyCFunction_NewEx(&method, capsule.get(), nullptr) : nullptr;
}

}  // namespace attune::calls
