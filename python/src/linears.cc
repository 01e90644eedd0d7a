// Linear: one dense linear layer.
#include <algorithm>

#include "arrays.h"
#include "base/try.h"
#include "frameworks.h"
#include "kernels/kernel_device.h"
#include "kernels/ops.h"
#include "packed_layers.h"

namespace moracle::python {
namespace {

// Keeps the device, to check the arrays of a call against it.
struct PyLinear {
  std::shared_ptr<Device> device;
  Owned<Linear> layer;
};

nb::object apply_linear(PyLinear& self, nb::object x, nb::object output, nb::object stream) {
  Linear& linear = *self.layer;
  refuse_gradient(x, "x");
  const Array in = array_of(x, "x");
  const Matrix input = matrix_of(in, "x", *self.device);
  if (output.is_none())
    output = empty_like(x, input.rows, linear.plan().layer.intermediate_size, false);
  const Array out = array_of(output, "output", Use::kWrite);
  const Matrix y = matrix_of(out, "output", *self.device);
  const Stream on = stream_of(stream, x, *self.device);
  {
    const nb::gil_scoped_release released;
    value_of(linear.apply(input, y, on));
  }
  return output;
}

// The rows of `like` in f32, in memory of the calling thread.
Matrix f32_rows(std::vector<float>& memory, const Matrix& like) {
  memory.resize(std::max(memory.size(), static_cast<size_t>(like.rows * like.cols)));
  return {memory.data(), DType::kF32, like.rows, like.cols, like.cols};
}

// On a CPU layers take f32: converts other floats with the device's threads. All tokens in one
// call.
Status apply_converted(PyLinear& self, const Matrix& x, const Matrix& y, Stream stream) {
  Device& device = *self.device;
  Linear& linear = *self.layer;
  if (device.platform() != Platform::kCpu || (x.dtype == DType::kF32 && y.dtype == DType::kF32) ||
      x.rows > linear.plan().max_num_tokens)
    return linear.apply(x, y, stream);
  static thread_local std::vector<float> input, output;
  const DeviceLock lock = device.lock();
  Ops& ops = kernel_device(device).ops();
  Matrix from = x, to = y;
  if (x.dtype != DType::kF32) {
    from = f32_rows(input, x);
    MORACLE_CHECK(ops.convert(x, from, stream));
  }
  if (y.dtype != DType::kF32) to = f32_rows(output, y);
  MORACLE_CHECK(linear.apply(from, to, stream));
  return y.dtype == DType::kF32 ? Status() : ops.convert(to, y, stream);
}

nb::object apply_linear_any(PyLinear& self, nb::object x, nb::object output) {
  refuse_gradient(x, "x");
  const Array in = array_of(x, "x");
  const Matrix input = matrix_of(in, "x", *self.device);
  const Plan& plan = self.layer->plan();
  if (output.is_none()) output = empty_like(x, input.rows, plan.layer.intermediate_size, false);
  const Array out = array_of(output, "output", Use::kWrite);
  const Matrix y = matrix_of(out, "output", *self.device);
  if (input.rows <= plan.max_num_tokens || y.rows != input.rows) {
    const Stream on = stream_of(nb::none(), x, *self.device);
    const nb::gil_scoped_release released;
    value_of(apply_converted(self, input, y, on));
    return output;
  }
  for (int64_t first = 0; first < input.rows; first += plan.max_num_tokens) {
    const nb::slice part(first, std::min(first + plan.max_num_tokens, input.rows));
    apply_linear_any(self, x[part], output[part]);
  }
  return output;
}

}  // namespace

void bind_linear(nb::module_& m) {
  static const std::string linear_sig =
      std::string(
          "def __init__(self, weights: DescribedMatrix, selection: Selection | None = None, "
          "device: Device | str = 'cpu', *, ") +
      kProgressSig;
  nb::class_<PyLinear> linear(m, "Linear", "A dense linear layer on the same kernels.");
  linear
      .def(
          "__init__",
          [](PyLinear* self, Consumable<DescribedMatrix>& weights, nb::object selection,
             nb::object device, nb::object progress) {
            std::shared_ptr<Device> on = device_of(device);
            const Selection chosen =
                selection_of(selection, linear_spec("linear", weights.get()), *on);
            Linear layer = made(
                weights, std::move(progress), [&](DescribedMatrix taken, const Progress& go_on) {
                  return Linear::make(std::move(taken), chosen, workspace_of(on), go_on);
                });
            new (self) PyLinear{std::move(on), Owned<Linear>(std::move(layer))};
          },
          nb::arg("weights"), nb::arg("selection") = nb::none(), nb::arg("device") = "cpu",
          nb::kw_only(), nb::arg("progress") = nb::none(), nb::sig(linear_sig.c_str()),
          "Reads and packs the weights, and consumes them.")
      .def(
          "apply", &apply_linear, nb::arg("x").none(), nb::arg("output") = nb::none(),
          nb::kw_only(), nb::arg("stream") = nb::none(),
          nb::sig("def apply(self, x: typing.Any, output: typing.Any = None, *, stream: int | None "
                  "= None) -> typing.Any"),
          "output [num_tokens, N] = x [num_tokens, K] times the transposed weights, plus the bias. "
          "x and output have the device's activation dtype; output may be f32 on any device.")
      .def("apply_any", &apply_linear_any, nb::arg("x").none(), nb::arg("output") = nb::none(),
           nb::sig("def apply_any(self, x: typing.Any, output: typing.Any = None) -> typing.Any"),
           "As apply, with f32, bf16 or f16 on a CPU, and more tokens than max_num_tokens as "
           "several calls.");
  bind_plan<PyLinear>(linear, "Linear");
}

}  // namespace moracle::python
