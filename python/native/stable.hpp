// What is used of CPython's stable interface, as its documentation has it: every CPython from 3.10
// on keeps it, whatever it was built for, so that no header of one of them is needed.
#pragma once

#include <cstddef>

extern "C" {
struct PyObject;
using Py_ssize_t = std::ptrdiff_t;

struct PyMethodDef {
  const char* name;
  PyObject* (*function)(PyObject* self, PyObject* const* arguments, Py_ssize_t count);
  int flags;
  const char* documentation;
};
constexpr int METH_FASTCALL = 0x80, METH_KEYWORDS = 0x2;
using vectorcallfunc = PyObject* (*)(PyObject* callable, PyObject* const* arguments,
                                     std::size_t flags, PyObject* names);
// In a vectorcall's flags, beside the number of arguments without a name.
constexpr std::size_t PY_VECTORCALL_OFFSET = std::size_t{1} << (8 * sizeof(std::size_t) - 1);

extern PyObject* PyExc_TypeError;
struct PyTypeObject;
extern PyTypeObject PyFloat_Type, PyLong_Type;

void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
int PyArg_ParseTuple(PyObject* arguments, const char* format, ...);
PyObject* PyCFunction_NewEx(PyMethodDef*, PyObject* self, PyObject* module);
PyObject* PyCapsule_New(void*, const char* name, void (*destroy)(PyObject*));
void* PyCapsule_GetPointer(PyObject*, const char* name);
PyObject* PyDict_GetItemWithError(PyObject*,
                                  PyObject* key);  // borrowed; null without an error, too
int PyDict_Next(PyObject*, Py_ssize_t* position, PyObject** key, PyObject** value);  // borrowed
void PyErr_Clear();
PyObject* PyErr_Occurred();
void PyErr_SetString(PyObject* type, const char* message);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
double PyFloat_AsDouble(PyObject*);
long PyLong_AsLong(PyObject*);
long long PyLong_AsLongLong(PyObject*);
unsigned long long PyLong_AsUnsignedLongLong(PyObject*);
PyObject* PyLong_FromLong(long);
PyObject* PyMapping_Values(PyObject*);                            // a list
PyObject* PyObject_CallFunctionObjArgs(PyObject* callable, ...);  // up to a null
PyObject* PyObject_CallMethodObjArgs(PyObject*, PyObject* name, ...);
PyObject* PyObject_CallObject(PyObject* callable, PyObject* arguments);
PyObject* PyObject_GetAttr(PyObject*, PyObject* name);
PyObject* PyObject_GetItem(PyObject*, PyObject* key);
int PyObject_IsInstance(PyObject*, PyObject* type);
int PyObject_IsTrue(PyObject*);
int PyObject_SetAttr(PyObject*, PyObject* name, PyObject* value);
PyObject* PySequence_GetItem(PyObject*, Py_ssize_t);
Py_ssize_t PySequence_Size(PyObject*);
PyObject* PySequence_Tuple(PyObject*);
PyObject* PyTuple_GetItem(PyObject*, Py_ssize_t);  // borrowed
PyObject* PyTuple_New(Py_ssize_t);
PyObject* PyTuple_Pack(Py_ssize_t, ...);
int PyTuple_SetItem(PyObject*, Py_ssize_t, PyObject* item);  // takes the item
Py_ssize_t PyTuple_Size(PyObject*);
PyObject* PyUnicode_InternFromString(const char*);

// Not of the stable interface: null where a Python has them not. Python 3.12 and newer have both.
[[gnu::weak]] PyObject* PyObject_Vectorcall(PyObject* callable, PyObject* const* arguments,
                                            std::size_t flags, PyObject* names);
[[gnu::weak]] void PyFunction_SetVectorcall(PyObject* function, vectorcallfunc);
}
