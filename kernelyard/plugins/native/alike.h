// Whether a call is like the one that a kernel was chosen for: all that the choice may depend on is as it was.
#pragma once

#include "plan.h"

#include <utility>

namespace {

// Of a call: its tensors, results first, and the numbers among its arguments.
struct Read {
  std::array<DLTensor, 2 * MOST> tensors;
  std::array<double, MOST> numbers;
};

// How two tensors lie: at the same address, or clear of each other; bytes from each one's first element to its last one's end.
struct Relation {
  size_t one, other;
  bool same;
  uintptr_t extent, extent_other;
};

// What makes a call like another one. Tensors are counted with the results first.
struct Test {
  PyObject *anyhow, *check;             // the same test in Python, for calls with keywords; torch's guard of the tensors
  std::vector<size_t> guarded;          // what the guard is handed
  std::vector<std::array<size_t, 2>> identical;
  std::vector<std::pair<size_t, bool>> aligned;  // to 16 bytes or not
  std::vector<PyObject*> values, defaults;       // for each argument; of a tensor's value nothing is compared
  size_t positional;
  std::vector<Relation> relations;

  ~Test() {
    Py_XDECREF(anyhow);
    Py_XDECREF(check);
    for (PyObject* one : values) Py_DECREF(one);
    for (PyObject* one : defaults) Py_DECREF(one);
  }
};

bool equal(PyObject* value, PyObject* wanted) {
  if (value == wanted) return true;
  if (Py_TYPE(value) != Py_TYPE(wanted)) return false;
  const int same = PyObject_RichCompareBool(value, wanted, Py_EQ);
  if (same < 0) PyErr_Clear();
  return same == 1;
}

uintptr_t address(const DLTensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset; }

// Whether the call is like the one known. `all` has `outs` results and all the arguments; their tensors are read.
bool alike(const Plan& plan, const Test& test, size_t outs, PyObject* const* all, Read* read) {
  for (size_t i = 0; i < plan.arguments.size(); ++i) {
    const Takes takes = plan.arguments[i].takes;
    if (takes != Takes::tensor && takes != Takes::nothing && !equal(all[outs + i], test.values[i])) return false;
  }
  for (const auto& [one, other] : test.identical) {
    if (all[one] != all[other]) return false;
  }
  std::array<PyObject*, 2 * MOST> guarded;
  for (size_t i = 0; i < test.guarded.size(); ++i) guarded[i] = all[test.guarded[i]];
  PyObject* same = PyObject_Vectorcall(test.check, guarded.data(), test.guarded.size(), nullptr);
  Py_XDECREF(same);
  if (same != Py_True) return PyErr_Clear(), false;
  DLTensor* tensors = read->tensors.data() + (plan.outputs - outs);
  if (!known(plan, all + outs, tensors + outs, read->numbers.data()) || (outs && !results(plan, all, tensors))) return false;
  for (const auto& [one, aligned] : test.aligned) {
    if ((address(tensors[one]) % 16 == 0) != aligned) return false;
  }
  for (const Relation& is : test.relations) {
    const uintptr_t here = address(tensors[is.one]), there = address(tensors[is.other]);
    if (is.same ? here != there : here < there + is.extent_other && there < here + is.extent) return false;
  }
  return true;
}

// The arguments behind `outs` results, those not given by their defaults. False where that takes Python.
bool filled(const Test& test, PyObject* const* given, size_t count, PyObject* names, PyObject** args) {
  if ((names != nullptr && PyTuple_GET_SIZE(names) != 0) || count > test.positional) return false;
  for (size_t i = 0; i < test.defaults.size(); ++i) {
    args[i] = i < count ? given[i] : test.defaults[i];
    if (args[i] == Py_Ellipsis) return false;
  }
  return true;
}

}  // namespace
