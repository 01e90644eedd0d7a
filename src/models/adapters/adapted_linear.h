// A linear layer of a model, with the adapters of the modules that are stacked into it.
#pragma once

#include <span>
#include <vector>

#include "kernels/linear_call.h"
#include "models/adapters/adapted_rows.h"
#include "moracle/moe.h"

namespace moracle {

class AdaptedLinear {
 public:
  explicit AdaptedLinear(Linear&& linear) : linear_(std::move(linear)) {}

  /// Uploads the adapters of `rows`. `lora_ids`, in device memory, gives the adapter of each token
  /// of a step. Errors: of the device.
  Status set_adapters(std::span<const AdaptedRows> rows, AdapterSpan adapters,
                      const int32_t* lora_ids, Device& device);

  /// As Linear::apply. Row 0 of x belongs to token `first_token` of the step.
  Status apply(const Matrix& x, const Matrix& y, Stream stream = {}, int64_t first_token = 0);

  /// As Linear::apply, with adapters.
  Status apply(const LinearCall& call, Stream stream);
  /// As Linear::serves. Adapters need the input and the sums, so no kernel serves them.
  bool serves(const LinearCall& call) const;

  Result<PackedWeights> pack(DescribedMatrix&& weights, const Progress& progress) const {
    return linear_.pack(std::move(weights), progress);
  }
  Status swap(PackedWeights&& weights) { return linear_.swap(std::move(weights)); }
  int64_t weight_bytes() const;

 private:
  struct Table {
    int64_t first = 0;
    LoraTable lora;
    Buffer memory;
  };
  Linear linear_;
  std::vector<Table> tables_;
  int64_t num_adapters_ = 0;
  const int32_t* lora_ids_ = nullptr;
  Ops* ops_ = nullptr;  // set where there are tables
};

}  // namespace moracle
