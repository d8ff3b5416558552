// What `bound.cpp` knows of a native function: what a call has to be, what the function is handed, how results are made; and the call.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <array>
#include <vector>

namespace {

constexpr size_t MOST = 32;  // arguments of an op, and what is handed over

enum class Takes { tensor, nothing, number, fixed };
enum class From { output, argument, constant };

struct Argument {
  Takes takes;
  PyObject* value;  // of a fixed one
};

// An output that is made as an argument is: contiguous, of its shape and dtype.
struct Like {
  size_t place;
  PyObject* dtype;
};

struct Item {
  From from;
  size_t place;        // of an output or argument
  TVMFFIAny constant;  // a number, or nothing
};

struct Plan {
  std::vector<Argument> arguments;
  std::vector<Item> items;
  std::vector<Like> likes;  // one for each output; empty: `empty` makes them all
  size_t outputs;
  void* function;
  bool answers;  // the function returns whether it did the work
  const DLPackExchangeAPI* torch;
  PyObject *owner, *capsule, *empty, *strided, *modes, *tensor_class, *parameter_class, *call, *into;

  ~Plan() {
    for (PyObject* one : {owner, capsule, empty, strided, modes, tensor_class, parameter_class, call, into}) Py_XDECREF(one);
    for (const Argument& one : arguments) Py_XDECREF(one.value);
    for (const Like& one : likes) Py_XDECREF(one.dtype);
  }

  bool plain(PyObject* value) const {
    return Py_TYPE(value) == reinterpret_cast<PyTypeObject*>(tensor_class) || Py_TYPE(value) == reinterpret_cast<PyTypeObject*>(parameter_class);
  }
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

// A contiguous tensor of the shape of this one; a new reference, or null with Python's error set.
PyObject* made(const Plan& plan, const DLTensor& like, PyObject* dtype) {
  PyObject *shape = PyTuple_New(like.ndim), *strides = PyTuple_New(like.ndim), *result = nullptr;
  if (shape != nullptr && strides != nullptr) {
    int64_t stride = 1;
    for (int32_t i = like.ndim; i-- > 0; stride *= like.shape[i] > 1 ? like.shape[i] : 1) {
      PyTuple_SET_ITEM(shape, i, PyLong_FromLongLong(like.shape[i]));
      PyTuple_SET_ITEM(strides, i, PyLong_FromLongLong(stride));
    }
    PyObject* given[] = {shape, strides, dtype};
    result = PyObject_Vectorcall(plan.strided, given, 3, nullptr);
  }
  Py_XDECREF(shape);
  Py_XDECREF(strides);
  return result;
}

// Whether torch's allocations are to be seen by something, which goes around `strided`.
bool watched(const Plan& plan) {
  PyObject* count = PyObject_CallNoArgs(plan.modes);
  const bool none = count != nullptr && PyLong_AsLong(count) == 0;
  Py_XDECREF(count);
  PyErr_Clear();
  return !none;
}

// New tensors for the results, as the op's contract has them; a new reference each. False with Python's error set.
bool allocated(const Plan& plan, PyObject* const* args, const DLTensor* tensors, PyObject** outputs) {
  if (plan.likes.empty() || watched(plan)) {
    PyObject* made = PyObject_Vectorcall(plan.empty, args, plan.arguments.size(), nullptr);
    if (made == nullptr) return false;
    for (size_t i = 0; i < plan.outputs; ++i) outputs[i] = Py_NewRef(PyTuple_GET_ITEM(made, i));
    Py_DECREF(made);
    return true;
  }
  for (size_t i = 0; i < plan.outputs; ++i) {
    outputs[i] = made(plan, tensors[plan.likes[i].place], plan.likes[i].dtype);
    if (outputs[i] == nullptr) {
      while (i-- > 0) Py_DECREF(outputs[i]);
      return false;
    }
  }
  return true;
}

// Reads the results; false where one is no plain tensor.
bool results(const Plan& plan, PyObject* const* outputs, DLTensor* tensors) {
  for (size_t i = 0; i < plan.outputs; ++i) {
    if (!plan.plain(outputs[i])) return false;
    if (plan.torch->dltensor_from_py_object_no_sync(outputs[i], &tensors[i]) != 0) return PyErr_Clear(), false;
  }
  return true;
}

// Calls the function on torch's current stream; `tensors` are the results and behind them the arguments. False where it did not do the
// work; another way must be taken, which tells why.
bool called(const Plan& plan, DLTensor* tensors, const double* numbers) {
  std::array<TVMFFIAny, MOST> values;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const Item& item = plan.items[i];
    values[i] = item.constant;
    if (item.from == From::output) {
      values[i].v_ptr = &tensors[item.place];
    } else if (item.from == From::argument && plan.arguments[item.place].takes == Takes::tensor) {
      values[i].v_ptr = &tensors[plan.outputs + item.place];
    } else if (item.from == From::argument) {
      values[i].v_float64 = numbers[item.place];
    }
  }
  const DLDevice device = tensors[0].device;
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

}  // namespace
