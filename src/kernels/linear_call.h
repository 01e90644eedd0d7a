// One call of a matrix: its input, the product, and the epilogue.
#pragma once

#include <variant>

#include "base/try.h"
#include "kernels/ops.h"
#include "moracle/base.h"

namespace moracle {

/// y[r, n] = Σ_k x[row_index[r], k] · w[e(r), n, k] + bias[e(r), n], e(r) by expert_offsets.
/// Codes are multiplied as integers if the scheme quantizes activations, else as floats. Sums are
/// at least f32. docs/numerics.md says how scales apply. Rows past the last offset are not written.
/// In one kernel, the norm, the quantization and the routing have the bits of separate operations.
struct LinearCall {
  /// Activations of a linear layer as the caller has them. The kernel quantizes or converts them
  /// first. `scratch` holds max_num_tokens rows in the form of the plan.
  struct Raw {
    Matrix x;
    Rows scratch = {};
  };

  /// out = y, [num_rows, N].
  struct Store {};
  /// out = Ops::activate of y, [num_rows, I or more]; further columns become 0.
  struct Activate {
    ActivationSpec activation;
  };
  /// codes = Ops::quantize, by `key`, of the values that Activate stores; `out` is scratch.
  struct Quantize {
    ActivationSpec activation;
    QuantKey key;
    Rows codes;
  };
  /// out[t] = Σ weights · y over the rows of token t, in expert order.
  struct Combine {
    const int32_t* row_token = nullptr;  ///< [num_rows], device memory
    const int32_t* row_slot = nullptr;   ///< likewise: index into weights
    const float* weights = nullptr;      ///< [tokens * top_k]; null: each is 1
    bool add = false;                    ///< add to out; otherwise tokens without a row become 0
  };
  /// out = y, then Ops::route of out, which overwrites it.
  struct Route {
    Routing routing;
    const float* correction_bias = nullptr;
    int64_t top_k = 0;
    int32_t* topk_ids = nullptr;
    float* topk_weights = nullptr;
  };

  /// GroupedRows are in the form of the plan. A norm stands before the quantization, if any.
  std::variant<GroupedRows, Raw, NormedInput> input;
  Matrix out;  ///< of the activation dtype
  std::variant<Store, Activate, Quantize, Combine, Route> output = {};

  /// The input of this kind; null if it is another.
  template <class Input>
  const Input* from() const {
    return std::get_if<Input>(&input);
  }
  /// The output of this kind; null if it is another.
  template <class Output>
  const Output* to() const {
    return std::get_if<Output>(&output);
  }
  /// The activations before quantization; of a norm, its output.
  const Matrix& x() const {
    if (const auto* const normed = from<NormedInput>()) return normed->norm.out;
    const auto* const raw = from<Raw>();
    return raw != nullptr ? raw->x : std::get<GroupedRows>(input).x.values;
  }
};

/// Runs the norm, `multiply` and the routing of a linear layer's call one after another. Errors:
/// theirs; a norm with `sum`, which only kernels compute.
template <class Multiply>
Status run_separately(const LinearCall& call, Ops& ops, Stream stream, const Multiply& multiply) {
  if (const auto* const normed = call.from<NormedInput>()) {
    const AddRmsNorm& norm = normed->norm;
    if (normed->sum.data != nullptr)
      return Error{ErrorKind::kInvalidArgument, "", "linear layer",
                   "a kernel that starts with the norm", "no kernel serves this call"};
    MORACLE_CHECK(ops.add_rms_norm(norm.x, norm.y, norm.weight, norm.epsilon, norm.out, stream));
  }
  MORACLE_CHECK(multiply(call.x(), call.out));
  const auto* const route = call.to<LinearCall::Route>();
  if (route == nullptr) return {};
  return ops.route(call.out, route->routing, route->correction_bias, route->top_k, route->topk_ids,
                   route->topk_weights, stream);
}

}  // namespace moracle
