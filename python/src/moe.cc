#include <algorithm>

#include "arrays.h"
#include "frameworks.h"
#include "packed_layers.h"

namespace moracle::python {
namespace {

using Moe = Owned<FusedMoe>;

// Keeps the device, to check the arrays of a call against it.
struct PyMoe {
  std::shared_ptr<Device> device;
  Moe layer;
};

// Arrays of a call, checked against the layer.
struct Arguments {
  Array hidden, ids, weights;
  Matrix x;
};

// Throws for arrays that do not fit. `named`: the parameters' names.
Arguments arguments_of(const PyMoe& self, nb::handle hidden, Array ids, Array weights,
                       const char* named) {
  const Device& device = *self.device;
  Arguments arguments{array_of(hidden, named), std::move(ids), std::move(weights), {}};
  arguments.x = matrix_of(arguments.hidden, named, device);
  const std::vector<int64_t> shape = {arguments.x.rows, self.layer->plan().layer.top_k};
  data_of(arguments.ids, "topk_ids", DType::kI32, shape, device);
  data_of(arguments.weights, "topk_weights", DType::kF32, shape, device);
  return arguments;
}

nb::object run(const PyMoe& self, const Arguments& arguments, nb::handle hidden, nb::object output,
               nb::handle stream) {
  FusedMoe& moe = *self.layer;
  const Device& device = *self.device;
  if (output.is_none())
    output = empty_like(hidden, arguments.x.rows, moe.plan().layer.hidden_size,
                        arguments.x.cols == moe.plan().layer.hidden_size);
  const Array out = array_of(output, "output", Use::kWrite);
  const Matrix y = matrix_of(out, "output", device);
  const Stream on = stream_of(stream, hidden, device);
  const auto* ids = static_cast<const int32_t*>(arguments.ids.data);
  const auto* weights = static_cast<const float*>(arguments.weights.data);
  {
    const nb::gil_scoped_release released;
    value_of(moe.apply(arguments.x, {ids}, {weights}, y, on));
  }
  return output;
}

nb::object apply(PyMoe& self, nb::object hidden, nb::object topk_ids, nb::object topk_weights,
                 nb::object output, nb::object stream) {
  refuse_gradient(hidden, "hidden");
  refuse_gradient(topk_weights, "topk_weights");
  const Arguments arguments = arguments_of(self, hidden, array_of(topk_ids, "topk_ids"),
                                           array_of(topk_weights, "topk_weights"), "hidden");
  return run(self, arguments, hidden, std::move(output), stream);
}

// As apply, with vLLM's argument order: converts ids and weights of any type, and splits more
// tokens than planned into several calls.
nb::object apply_any(PyMoe& self, nb::object hidden, nb::object topk_weights, nb::object topk_ids,
                     nb::object output) {
  refuse_gradient(hidden, "hidden_states");
  refuse_gradient(topk_weights, "topk_weights");
  Array ids = array_of_type(topk_ids, "topk_ids", DType::kI32);
  Array weights = array_of_type(topk_weights, "topk_weights", DType::kF32);
  const Arguments arguments =
      arguments_of(self, hidden, std::move(ids), std::move(weights), "hidden_states");
  const int64_t rows = arguments.x.rows, most = self.layer->plan().max_num_tokens;
  if (rows <= most) return run(self, arguments, hidden, std::move(output), nb::none());
  if (output.is_none())
    output = empty_like(hidden, rows, self.layer->plan().layer.hidden_size, false);
  for (int64_t first = 0; first < rows; first += most) {
    const nb::slice part(first, std::min(first + most, rows));
    apply_any(self, hidden[part], topk_weights[part], topk_ids[part], output[part]);
  }
  return output;
}

}  // namespace

void bind_moe(nb::module_& m) {
  static const std::string moe_sig =
      std::string(
          "def __init__(self, weights: DescribedWeights, selection: Selection | None = None, "
          "device: Device | str = 'cpu', *, ") +
      kProgressSig;
  nb::class_<PyMoe> moe(m, "FusedMoe",
                        "The experts of one layer, packed for the selected backend.");
  moe.def(
         "__init__",
         [](PyMoe* self, Consumable<DescribedWeights>& weights, nb::object selection,
            nb::object device, nb::object progress) {
           std::shared_ptr<Device> on = device_of(device);
           const Selection chosen = selection_of(selection, weights.get().spec, *on);
           FusedMoe layer = made(
               weights, std::move(progress), [&](DescribedWeights taken, const Progress& go_on) {
                 return FusedMoe::make(std::move(taken), chosen, workspace_of(on), go_on);
               });
           new (self) PyMoe{std::move(on), Moe(std::move(layer))};
         },
         nb::arg("weights"), nb::arg("selection") = nb::none(), nb::arg("device") = "cpu",
         nb::kw_only(), nb::arg("progress") = nb::none(), nb::sig(moe_sig.c_str()),
         "Reads and packs the weights, one expert at a time, and consumes them. Without a "
         "selection the oracle chooses for this machine. Errors: no backend serves the layer; a "
         "weight that is not finite; memory.")
      .def("apply", &apply, nb::arg("hidden").none(), nb::arg("topk_ids").none(),
           nb::arg("topk_weights").none(), nb::arg("output") = nb::none(), nb::kw_only(),
           nb::arg("stream") = nb::none(),
           nb::sig("def apply(self, hidden: typing.Any, topk_ids: typing.Any, topk_weights: "
                   "typing.Any, output: typing.Any = "
                   "None, *, stream: int | None = None) -> typing.Any"),
           "output[t] = sum over j of topk_weights[t, j] * expert(topk_ids[t, j])(hidden[t]). "
           "hidden and output: f32, bf16 or f16 [num_tokens, hidden_size]; topk_ids: i32 "
           "[num_tokens, top_k]; topk_weights: f32 [num_tokens, top_k]. Arrays are used in place, "
           "on the layer's device. Without `output` a new array like `hidden` is returned. An id "
           "of -1 adds zero. On a GPU the work runs on `stream`, an integer handle, or on the "
           "current "
           "stream of torch or cupy, and the call does not wait. Device.synchronize reports ids "
           "that "
           "no expert has.");
  moe.def("apply_any", &apply_any, nb::arg("hidden_states").none(), nb::arg("topk_weights").none(),
          nb::arg("topk_ids").none(), nb::arg("output") = nb::none(),
          nb::sig("def apply_any(self, hidden_states: typing.Any, topk_weights: typing.Any, "
                  "topk_ids: typing.Any, output: typing.Any = None) -> typing.Any"),
          "As apply, in the order of vLLM's functions: topk_weights of any float and topk_ids of "
          "any integer type are converted, and more tokens than max_num_tokens run as several "
          "calls.");
  bind_plan<PyMoe>(moe, "FusedMoe");
}

}  // namespace moracle::python
