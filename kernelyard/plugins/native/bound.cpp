// A call of a native function with nothing of Python between: tensors are read, results allocated and the function called from here.
//
// `bind` makes two callables of one plan: `call(*args)` returns new tensors, `into(outputs, *args)` writes to given ones. What the plan does
// not know (a tensor of another class, a keyword, a result that the function refused) goes to the slow callable of the same meaning.
// torch hands over its tensors and its stream by DLPack's C exchange API, and allocates by its own Python function: nothing here is
// compiled against torch.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlpack/dlpack.h>
#include <structmember.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <array>
#include <memory>
#include <vector>

namespace {

constexpr size_t MOST = 32;  // arguments of an op, and what is handed over

enum class Takes { tensor, nothing, number, fixed };
enum class From { output, argument, constant };

struct Argument {
  Takes takes;
  PyObject* value;  // of a fixed one
};

struct Item {
  From from;
  size_t place;        // of an output or argument
  TVMFFIAny constant;  // a number, or nothing
};

struct Plan {
  std::vector<Argument> arguments;
  std::vector<Item> items;
  std::vector<size_t> likes;  // for each output the argument whose like it is; empty: `empty` makes them all
  size_t outputs;
  void* function;
  bool answers;  // the function returns whether it did the work
  const DLPackExchangeAPI* torch;
  PyObject *owner, *capsule, *empty, *empty_like, *contiguous, *memory_format, *tensor_class, *parameter_class, *call, *into;

  ~Plan() {
    for (PyObject* one : {owner, capsule, empty, empty_like, contiguous, memory_format, tensor_class, parameter_class, call, into}) Py_XDECREF(one);
    for (const Argument& one : arguments) Py_XDECREF(one.value);
  }

  bool plain(PyObject* value) const {
    return Py_TYPE(value) == reinterpret_cast<PyTypeObject*>(tensor_class) || Py_TYPE(value) == reinterpret_cast<PyTypeObject*>(parameter_class);
  }
};

struct Bound {
  PyObject_HEAD
  vectorcallfunc run;
  std::shared_ptr<Plan> plan;
};

// Whether the arguments are what the plan knows; tensors are read into `tensors`, numbers into `numbers`.
bool known(const Plan& plan, PyObject* const* args, DLTensor* tensors, double* numbers) {
  for (size_t i = 0; i < plan.arguments.size(); ++i) {
    PyObject* value = args[i];
    switch (plan.arguments[i].takes) {
      case Takes::tensor:
        if (!plan.plain(value)) return false;
        if (plan.torch->dltensor_from_py_object_no_sync(value, &tensors[i]) != 0) return PyErr_Clear(), false;
        break;
      case Takes::nothing:
        if (value != Py_None) return false;
        break;
      case Takes::number:
        if (PyFloat_CheckExact(value)) {
          numbers[i] = PyFloat_AS_DOUBLE(value);
        } else {
          if (!PyLong_CheckExact(value)) return false;
          numbers[i] = PyLong_AsDouble(value);
          if (numbers[i] == -1.0 && PyErr_Occurred()) return PyErr_Clear(), false;
        }
        break;
      case Takes::fixed:
        if (value == plan.arguments[i].value) break;
        if (Py_TYPE(value) != Py_TYPE(plan.arguments[i].value)) return false;
        if (const int same = PyObject_RichCompareBool(value, plan.arguments[i].value, Py_EQ); same != 1) return PyErr_Clear(), false;
        break;
    }
  }
  return true;
}

// New tensors for the results, as the op's contract has them; a new reference each. False with Python's error set.
bool allocated(const Plan& plan, PyObject* const* args, PyObject** outputs) {
  if (plan.likes.empty()) {
    PyObject* made = PyObject_Vectorcall(plan.empty, args, plan.arguments.size(), nullptr);
    if (made == nullptr) return false;
    for (size_t i = 0; i < plan.outputs; ++i) outputs[i] = Py_NewRef(PyTuple_GET_ITEM(made, i));
    Py_DECREF(made);
    return true;
  }
  for (size_t i = 0; i < plan.outputs; ++i) {
    PyObject* given[] = {args[plan.likes[i]], plan.contiguous};
    outputs[i] = PyObject_Vectorcall(plan.empty_like, given, 1, plan.memory_format);
    if (outputs[i] == nullptr) {
      while (i-- > 0) Py_DECREF(outputs[i]);
      return false;
    }
  }
  return true;
}

// Calls the function on torch's current stream. False where it did not do the work; another way must be taken, which tells why.
bool called(const Plan& plan, PyObject* const* outputs, DLTensor* tensors, const double* numbers) {
  std::array<DLTensor, MOST> results;
  std::array<TVMFFIAny, MOST> values;
  for (size_t i = 0; i < plan.outputs; ++i) {
    if (plan.torch->dltensor_from_py_object_no_sync(outputs[i], &results[i]) != 0) return PyErr_Clear(), false;
  }
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const Item& item = plan.items[i];
    values[i] = item.constant;
    if (item.from == From::output) {
      values[i].v_ptr = &results[item.place];
    } else if (item.from == From::argument && plan.arguments[item.place].takes == Takes::tensor) {
      values[i].v_ptr = &tensors[item.place];
    } else if (item.from == From::argument) {
      values[i].v_float64 = numbers[item.place];
    }
  }
  const DLDevice device = results[0].device;
  void *stream = nullptr, *before = nullptr;
  const bool streams = device.device_type != kDLCPU && plan.torch->current_work_stream != nullptr;
  if (streams) {
    if (plan.torch->current_work_stream(device.device_type, device.device_id, &stream) != 0) return PyErr_Clear(), false;
    if (TVMFFIEnvSetStream(device.device_type, device.device_id, stream, &before) != 0) return false;
  }
  TVMFFIAny answer{};
  int failed;
  Py_BEGIN_ALLOW_THREADS
  failed = TVMFFIFunctionCall(plan.function, values.data(), static_cast<int32_t>(plan.items.size()), &answer);
  Py_END_ALLOW_THREADS
  if (streams && before != stream) TVMFFIEnvSetStream(device.device_type, device.device_id, before, nullptr);
  if (failed != 0) {
    void* error = nullptr;
    TVMFFIErrorMoveFromRaised(&error);
    if (error != nullptr) TVMFFIObjectDecRef(error);
    return false;
  }
  return !plan.answers || answer.v_int64 != 0;
}

bool takes(const Plan& plan, size_t count, PyObject* names, size_t wanted) {
  return count == wanted && (names == nullptr || PyTuple_GET_SIZE(names) == 0);
}

PyObject* run_call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  const Plan& plan = *reinterpret_cast<Bound*>(self)->plan;
  std::array<DLTensor, MOST> tensors;
  std::array<double, MOST> numbers;
  std::array<PyObject*, MOST> outputs;
  if (!takes(plan, PyVectorcall_NARGS(flags), names, plan.arguments.size()) || !known(plan, args, tensors.data(), numbers.data())) {
    return PyObject_Vectorcall(plan.call, args, flags, names);
  }
  if (!allocated(plan, args, outputs.data())) return nullptr;
  const bool done = called(plan, outputs.data(), tensors.data(), numbers.data());
  PyObject* result = nullptr;
  if (done && plan.outputs == 1) return outputs[0];
  if (done) result = PyTuple_New(plan.outputs);
  for (size_t i = 0; i < plan.outputs; ++i) {
    if (result != nullptr) {
      PyTuple_SET_ITEM(result, i, outputs[i]);
    } else {
      Py_DECREF(outputs[i]);
    }
  }
  return done ? result : PyObject_Vectorcall(plan.call, args, flags, names);
}

PyObject* run_into(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  const Plan& plan = *reinterpret_cast<Bound*>(self)->plan;
  std::array<DLTensor, MOST> tensors;
  std::array<double, MOST> numbers;
  if (takes(plan, PyVectorcall_NARGS(flags), names, plan.arguments.size() + 1) && PyTuple_CheckExact(args[0]) &&
      static_cast<size_t>(PyTuple_GET_SIZE(args[0])) == plan.outputs && known(plan, args + 1, tensors.data(), numbers.data())) {
    PyObject** outputs = &PyTuple_GET_ITEM(args[0], 0);
    bool plain = true;
    for (size_t i = 0; i < plan.outputs; ++i) plain = plain && plan.plain(outputs[i]);
    if (plain && called(plan, outputs, tensors.data(), numbers.data())) Py_RETURN_NONE;
  }
  return PyObject_Vectorcall(plan.into, args, flags, names);
}

void release(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<Bound*>(self)->plan.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Bound, run), READONLY, nullptr}, {nullptr}};
PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(release)},
                       {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                       {Py_tp_members, members},
                       {0, nullptr}};
PyType_Spec spec = {"kernelyard.Bound", sizeof(Bound), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
PyTypeObject* type = nullptr;

PyObject* made(const std::shared_ptr<Plan>& plan, vectorcallfunc run) {
  Bound* one = reinterpret_cast<Bound*>(type->tp_alloc(type, 0));
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
  PyObject** places[] = {&plan->owner, &plan->capsule, &plan->empty, &plan->empty_like, &plan->contiguous, &plan->memory_format,
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
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(likes); ++i) plan->likes.push_back(PyLong_AsSize_t(PyTuple_GET_ITEM(likes, i)));
  if (PyErr_Occurred()) return nullptr;
  PyObject *call = made(plan, run_call), *into = made(plan, run_into);
  return call && into ? Py_BuildValue("NN", call, into) : nullptr;
}

PyMethodDef methods[] = {{"bind", bind, METH_VARARGS, "Two callables of one plan."}, {nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "bound", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_bound() {
  type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return type ? PyModule_Create(&module) : nullptr;
}
