// A call of a native function with nothing of Python between: tensors are read, results allocated and the function called from here.
//
// `bind` makes two callables of one plan: `call(*args)` returns new tensors, `into(outputs, *args)` writes to given ones. What the plan does
// not know (a tensor of another class, a keyword, a result that the function refused) goes to the slow callable of the same meaning.
// torch hands over its tensors and its stream by DLPack's C exchange API, and allocates by its own Python function: nothing here is
// compiled against torch.
//
// Either callable's `behind` makes a third, for kernelyard's dispatch: it tests whether a call is like the one that a kernel was chosen for,
// and only then runs. In Python the test costs as much as a small kernel's whole launch.
#include "alike.h"

#include <structmember.h>

#include <memory>

namespace {

struct Bound {
  PyObject_HEAD
  vectorcallfunc run;
  std::shared_ptr<Plan> plan;
};

bool takes(size_t count, PyObject* names, size_t wanted) { return count == wanted && (names == nullptr || PyTuple_GET_SIZE(names) == 0); }

// Whether new results are on the device of what they are like: `strided` makes them on the current one.
bool together(const Plan& plan, const DLTensor* tensors) {
  for (size_t i = 0; i < plan.likes.size(); ++i) {
    if (tensors[i].device.device_id != tensors[plan.outputs + plan.likes[i].place].device.device_id) return false;
  }
  return true;
}

// The results in new tensors; null with Python's error set. The arguments are read already.
PyObject* run_new(const Plan& plan, PyObject* const* args, Read* read) {
  std::array<PyObject*, MOST> outputs;
  if (!allocated(plan, args, &read->tensors[plan.outputs], outputs.data())) return nullptr;
  const bool done = results(plan, outputs.data(), read->tensors.data()) && together(plan, read->tensors.data()) &&
                    called(plan, read->tensors.data(), read->numbers.data());
  if (done && plan.outputs == 1) return outputs[0];
  PyObject* result = done ? PyTuple_New(plan.outputs) : nullptr;
  for (size_t i = 0; i < plan.outputs; ++i) {
    if (result != nullptr) {
      PyTuple_SET_ITEM(result, i, outputs[i]);
    } else {
      Py_DECREF(outputs[i]);
    }
  }
  return done ? result : PyObject_Vectorcall(plan.call, args, plan.arguments.size(), nullptr);
}

PyObject* run_call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  const Plan& plan = *reinterpret_cast<Bound*>(self)->plan;
  Read read;
  if (!takes(PyVectorcall_NARGS(flags), names, plan.arguments.size()) || !known(plan, args, &read.tensors[plan.outputs], read.numbers.data())) {
    return PyObject_Vectorcall(plan.call, args, flags, names);
  }
  return run_new(plan, args, &read);
}

PyObject* run_into(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  const Plan& plan = *reinterpret_cast<Bound*>(self)->plan;
  Read read;
  if (takes(PyVectorcall_NARGS(flags), names, plan.arguments.size() + 1) && PyTuple_CheckExact(args[0]) &&
      static_cast<size_t>(PyTuple_GET_SIZE(args[0])) == plan.outputs && known(plan, args + 1, &read.tensors[plan.outputs], read.numbers.data()) &&
      results(plan, &PyTuple_GET_ITEM(args[0], 0), read.tensors.data()) && called(plan, read.tensors.data(), read.numbers.data())) {
    Py_RETURN_NONE;
  }
  return PyObject_Vectorcall(plan.into, args, flags, names);
}

struct Tested {
  PyObject_HEAD
  vectorcallfunc run;
  std::shared_ptr<Plan> plan;
  std::shared_ptr<Test> test;
};

PyObject* run_tested_call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  const Tested& it = *reinterpret_cast<Tested*>(self);
  std::array<PyObject*, MOST> all;
  Read read;
  if (!filled(*it.test, args, PyVectorcall_NARGS(flags), names, all.data())) return PyObject_Vectorcall(it.test->anyhow, args, flags, names);
  if (!alike(*it.plan, *it.test, 0, all.data(), &read)) Py_RETURN_NONE;
  return run_new(*it.plan, all.data(), &read);
}

PyObject* run_tested_into(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  const Tested& it = *reinterpret_cast<Tested*>(self);
  const size_t outs = it.plan->outputs, count = PyVectorcall_NARGS(flags);
  std::array<PyObject*, 2 * MOST> all;
  Read read;
  if (count == 0 || !filled(*it.test, args + 1, count - 1, names, &all[outs])) return PyObject_Vectorcall(it.test->anyhow, args, flags, names);
  if (outs == 1) {
    all[0] = args[0];
  } else {
    if (!PyTuple_CheckExact(args[0]) || static_cast<size_t>(PyTuple_GET_SIZE(args[0])) != outs) Py_RETURN_NONE;
    for (size_t i = 0; i < outs; ++i) all[i] = PyTuple_GET_ITEM(args[0], i);
  }
  if (!alike(*it.plan, *it.test, outs, all.data(), &read)) Py_RETURN_NONE;
  if (called(*it.plan, read.tensors.data(), read.numbers.data())) Py_RETURN_TRUE;
  return PyObject_Vectorcall(it.test->anyhow, args, flags, names);
}

PyTypeObject *bound_type = nullptr, *tested_type = nullptr;

// behind(anyhow, check, guarded, identical, aligned, values, defaults, positional, relations): see `recall.py`, the only caller.
PyObject* behind(PyObject* self, PyObject* args) {
  PyObject *anyhow, *check, *guarded, *identical, *aligned, *values, *defaults, *relations;
  Py_ssize_t positional;
  if (!PyArg_ParseTuple(args, "OOO!O!O!O!O!nO!", &anyhow, &check, &PyTuple_Type, &guarded, &PyTuple_Type, &identical, &PyTuple_Type, &aligned,
                        &PyTuple_Type, &values, &PyTuple_Type, &defaults, &positional, &PyTuple_Type, &relations)) {
    return nullptr;
  }
  const Bound& bound = *reinterpret_cast<Bound*>(self);
  const size_t count = bound.plan->arguments.size();
  if (size_t(PyTuple_GET_SIZE(values)) != count || size_t(PyTuple_GET_SIZE(defaults)) != count || size_t(positional) > count) {
    return PyErr_Format(PyExc_ValueError, "values and defaults are wanted for %zu arguments", count);
  }
  auto test = std::make_shared<Test>();
  test->anyhow = Py_NewRef(anyhow), test->check = Py_NewRef(check), test->positional = positional;
  for (size_t i = 0; i < count; ++i) {
    test->values.push_back(Py_NewRef(PyTuple_GET_ITEM(values, i)));
    test->defaults.push_back(Py_NewRef(PyTuple_GET_ITEM(defaults, i)));
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(guarded); ++i) test->guarded.push_back(PyLong_AsSize_t(PyTuple_GET_ITEM(guarded, i)));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(identical); ++i) {
    Py_ssize_t one, other;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(identical, i), "nn", &one, &other)) return nullptr;
    test->identical.push_back({size_t(one), size_t(other)});
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(aligned); ++i) {
    Py_ssize_t one;
    int is;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(aligned, i), "np", &one, &is)) return nullptr;
    test->aligned.emplace_back(one, is);
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(relations); ++i) {
    Py_ssize_t one, other, extent, extent_other;
    int same;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(relations, i), "nnpnn", &one, &other, &same, &extent, &extent_other)) return nullptr;
    test->relations.push_back({size_t(one), size_t(other), same != 0, uintptr_t(extent), uintptr_t(extent_other)});
  }
  if (PyErr_Occurred()) return nullptr;
  Tested* made = reinterpret_cast<Tested*>(tested_type->tp_alloc(tested_type, 0));
  if (made == nullptr) return nullptr;
  new (&made->plan) std::shared_ptr<Plan>(bound.plan);
  new (&made->test) std::shared_ptr<Test>(test);
  made->run = bound.run == run_call ? run_tested_call : run_tested_into;
  return reinterpret_cast<PyObject*>(made);
}

template <typename T>
void release(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<T*>(self)->~T();
  type->tp_free(self);
  Py_DECREF(type);
}

// A type of callables.
template <typename T>
PyTypeObject* callable(const char* name, PyMethodDef* methods) {
  static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(T, run), READONLY, nullptr}, {nullptr}};
  PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(release<T>)},
                         {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                         {Py_tp_members, members},
                         {Py_tp_methods, methods},
                         {0, nullptr}};
  PyType_Spec spec = {name, sizeof(T), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}

PyObject* made(const std::shared_ptr<Plan>& plan, vectorcallfunc run) {
  Bound* one = reinterpret_cast<Bound*>(bound_type->tp_alloc(bound_type, 0));
  if (one == nullptr) return nullptr;
  new (&one->plan) std::shared_ptr<Plan>(plan);
  one->run = run;
  return reinterpret_cast<PyObject*>(one);
}

// A constant that is handed over; tensors and an op's numbers take their types here, their values at each call.
bool constant(PyObject* value, TVMFFIAny* into) {
  *into = {};
  if (value == Py_None) {
    into->type_index = kTVMFFINone;
  } else if (PyBool_Check(value)) {
    into->type_index = kTVMFFIBool, into->v_int64 = value == Py_True;
  } else if (PyLong_CheckExact(value)) {
    into->type_index = kTVMFFIInt, into->v_int64 = PyLong_AsLongLong(value);
  } else if (PyFloat_CheckExact(value)) {
    into->type_index = kTVMFFIFloat, into->v_float64 = PyFloat_AS_DOUBLE(value);
  } else {
    PyErr_Format(PyExc_TypeError, "a constant of type %s can't be handed over", Py_TYPE(value)->tp_name);
  }
  return !PyErr_Occurred();
}

// bind(handle, answers, arguments, items, likes, outputs, objects): see `bound.py`, the only caller.
PyObject* bind(PyObject*, PyObject* args) {
  unsigned long long handle;
  int answers;
  PyObject *arguments, *items, *likes, *objects;
  Py_ssize_t outputs;
  if (!PyArg_ParseTuple(args, "KpO!O!O!nO!", &handle, &answers, &PyTuple_Type, &arguments, &PyTuple_Type, &items, &PyTuple_Type, &likes, &outputs,
                        &PyTuple_Type, &objects)) {
    return nullptr;
  }
  auto plan = std::make_shared<Plan>();
  PyObject** places[] = {&plan->owner, &plan->capsule, &plan->empty, &plan->strided, &plan->modes,
                         &plan->tensor_class, &plan->parameter_class, &plan->call, &plan->into};
  if (PyTuple_GET_SIZE(objects) != std::size(places) || PyTuple_GET_SIZE(arguments) >= Py_ssize_t(MOST) || PyTuple_GET_SIZE(items) > Py_ssize_t(MOST)) {
    return PyErr_Format(PyExc_ValueError, "at most %zu arguments are taken", MOST - 1);
  }
  for (size_t i = 0; i < std::size(places); ++i) *places[i] = Py_NewRef(PyTuple_GET_ITEM(objects, i));
  plan->function = reinterpret_cast<void*>(handle), plan->answers = answers, plan->outputs = outputs;
  plan->torch = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(plan->capsule, "dlpack_exchange_api"));
  if (plan->torch == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) {
    int kind;
    PyObject* value;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(arguments, i), "iO", &kind, &value)) return nullptr;
    plan->arguments.push_back({static_cast<Takes>(kind), Py_NewRef(value)});
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); ++i) {
    int kind;
    PyObject* value;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(items, i), "iO", &kind, &value)) return nullptr;
    Item item{static_cast<From>(kind), 0, {}};
    if (item.from == From::constant) {
      if (!constant(value, &item.constant)) return nullptr;
    } else {
      item.place = PyLong_AsSize_t(value);
      const bool number = item.from == From::argument && plan->arguments.at(item.place).takes == Takes::number;
      item.constant.type_index = number ? kTVMFFIFloat : kTVMFFIDLTensorPtr;
    }
    plan->items.push_back(item);
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(likes); ++i) {
    Py_ssize_t place;
    PyObject* dtype;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(likes, i), "nO", &place, &dtype)) return nullptr;
    plan->likes.push_back({size_t(place), Py_NewRef(dtype)});
  }
  if (PyErr_Occurred()) return nullptr;
  PyObject *call = made(plan, run_call), *into = made(plan, run_into);
  return call && into ? Py_BuildValue("NN", call, into) : nullptr;
}

PyMethodDef functions[] = {{"bind", bind, METH_VARARGS, "Two callables of one plan."}, {nullptr}};
PyMethodDef methods[] = {{"behind", behind, METH_VARARGS, "The same behind a test."}, {nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "bound", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit_bound() {
  bound_type = callable<Bound>("kernelyard.Bound", methods);
  tested_type = callable<Tested>("kernelyard.Tested", nullptr);
  return bound_type && tested_type ? PyModule_Create(&module) : nullptr;
}
