// FusedMoe: prepare (dispatch, quantize) → experts (GEMM 1, activation, GEMM 2) → finalize (weigh,
// sum).
#pragma once

#include <memory>

#include "moracle/base.h"
#include "moracle/checkpoint.h"
#include "moracle/device.h"
#include "moracle/oracle.h"

namespace moracle {

/// Which experts each token goes to: i32 [num_tokens, top_k] in device memory. An id of -1 (or any
/// outside [0, num_experts)) contributes exactly zero. A type of its own, so that ids and weights
/// cannot be swapped.
struct TopkIds {
  const int32_t* data = nullptr;
};

/// How much each counts: f32 [num_tokens, top_k] in device memory.
struct TopkWeights {
  const float* data = nullptr;
};

/// Scratch memory of a device that layers share: they run one after another on one stream. Grows
/// only while layers are made, never in apply.
class Workspace {
 public:
  explicit Workspace(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  /// Makes sure of `bytes`. Errors: kOutOfMemory.
  Status reserve(size_t bytes);
  std::byte* data() const { return buffer_.as<std::byte>(); }
  size_t bytes() const { return buffer_.bytes(); }
  Device& device() const { return *device_; }

 private:
  std::shared_ptr<Device> device_;
  Buffer buffer_;
};

/// One layer's experts, converted for the backend that the oracle chose.
class FusedMoe {
 public:
  /// Reads and packs the weights, expert by expert; `weights` is consumed. Errors: the selection
  /// chose nothing (with its trail), reading, memory, kCancelled.
  static Result<FusedMoe> make(DescribedWeights&& weights, const Selection& selection,
                               std::shared_ptr<Device> device, const Progress& progress = {});
  /// The same with scratch memory shared between layers.
  static Result<FusedMoe> make(DescribedWeights&& weights, const Selection& selection,
                               std::shared_ptr<Workspace> workspace, const Progress& progress = {});
  FusedMoe(FusedMoe&&) noexcept;
  FusedMoe& operator=(FusedMoe&&) noexcept;
  ~FusedMoe();

  /// output[t] = Σ_j topk_weights[t, j] · expert(topk_ids[t, j])(hidden[t]).
  /// hidden and output are [num_tokens, hidden_size] in f32, bf16 or f16, and may not overlap.
  /// Enqueues and returns; allocates nothing; decides nothing from device data. Errors: shapes,
  /// more tokens than planned.
  Status apply(const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
               const Matrix& output, Stream stream = {});

  const Plan& plan() const;
  int64_t weight_bytes() const;

 private:
  struct State;
  explicit FusedMoe(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// A dense linear layer through the same kernels: a grouped linear with one expert.
class Linear {
 public:
  static Result<Linear> make(DescribedMatrix&& weights, const Selection& selection,
                             std::shared_ptr<Workspace> workspace, const Progress& progress = {});
  Linear(Linear&&) noexcept;
  Linear& operator=(Linear&&) noexcept;
  ~Linear();

  /// y [num_tokens, N] = x [num_tokens, K] · wᵀ + bias, both of the device's activation dtype.
  Status apply(const Matrix& x, const Matrix& y, Stream stream = {});

  const Plan& plan() const;
  int64_t weight_bytes() const;

 private:
  struct State;
  explicit Linear(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The spec of a dense linear layer, for select().
LayerSpec linear_spec(std::string name, const DescribedMatrix& weights);

}  // namespace moracle
