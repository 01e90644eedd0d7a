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

/// How many tokens each expert that is here has: i32 [num_local] in device memory.
struct ExpertNumTokens {
  const int32_t* data = nullptr;
};

/// Which adapter each token uses: i32 [num_tokens] in device memory, -1 for none. Nothing: no token
/// uses one.
struct LoraIds {
  const int32_t* data = nullptr;
};

/// New weights of a layer, packed in the device's memory and not yet in use. A swap uses them up.
class PackedWeights {
 public:
  PackedWeights(PackedWeights&&) noexcept;
  PackedWeights& operator=(PackedWeights&&) noexcept;
  ~PackedWeights();
  struct State;  ///< internal

 private:
  friend class FusedMoe;
  friend class Linear;
  explicit PackedWeights(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Scratch memory of a device that layers share: their work runs one after another. On a GPU a call
/// on another stream than the last call's waits there, on the device, for the last call's work. A
/// stream that the caller captures is the exception: replays of the caller's own graph must not run
/// beside other calls with this workspace. Graphs of Device::record are ordered as calls are.
/// Grows only while layers are made, never in apply; graphs from before then have to be recorded
/// again.
class Workspace {
 public:
  explicit Workspace(std::shared_ptr<Device> device);
  /// Makes sure of `bytes`. Errors: kOutOfMemory; the bytes are then as many as before, or none
  /// where the device refuses those, too.
  Status reserve(size_t bytes);
  std::byte* data() const { return buffer_.as<std::byte>(); }
  size_t bytes() const { return buffer_.bytes(); }
  Device& device() const { return *device_; }

 private:
  friend class LayerTurn;
  std::shared_ptr<Device> device_;
  std::shared_ptr<StreamOrder> order_;  // of the device's streams; null where it needs none
  Buffer buffer_;
};

/// One layer's experts, converted for the backend that the oracle chose.
class FusedMoe {
 public:
  /// Reads and packs the weights of the experts that are here, one by one; `weights` holds all of
  /// the layer's and is consumed. Errors: the selection chose nothing (with its trail), reading,
  /// memory, kCancelled.
  static Result<FusedMoe> make(DescribedWeights&& weights, const Selection& selection,
                               std::shared_ptr<Device> device, const Progress& progress = {});
  /// The same with scratch memory shared between layers.
  static Result<FusedMoe> make(DescribedWeights&& weights, const Selection& selection,
                               std::shared_ptr<Workspace> workspace, const Progress& progress = {});
  FusedMoe(FusedMoe&&) noexcept;
  FusedMoe& operator=(FusedMoe&&) noexcept;
  ~FusedMoe();

  /// output[t] = Σ_j topk_weights[t, j] · expert(topk_ids[t, j])(hidden[t]), over the experts that
  /// are here: with experts on several ranks, the ranks' outputs add up to the layer's.
  /// hidden and output are [num_tokens, hidden_size] in f32, bf16 or f16, and may not overlap. Each
  /// pointer is a multiple of the size of what it points to: 4 bytes for f32, ids and weights, 2
  /// for bf16 and f16; kernels do without more, and are fastest with 16 where rows are, too.
  /// Enqueues and returns; allocates nothing; decides nothing from device data: ids that no expert
  /// has contribute zero, and the device's synchronize() says so. Errors: shapes, more tokens than
  /// planned, adapters where none were planned, a plan for batched activations, a null pointer or
  /// one that is not aligned.
  Status apply(const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
               const Matrix& output, Stream stream = {}, LoraIds lora_ids = {});

  /// The batched format: hidden and output are [num_local, max_tokens, hidden_size] as matrices of
  /// num_local · max_tokens rows, max_tokens being what was planned; the first num_tokens[e] rows
  /// of local expert e are its tokens, and become its outputs, not weighed. Other rows are not read
  /// into any result and become 0. `lora_ids` has one entry per row. Otherwise as apply.
  Status apply_batched(const Matrix& hidden, ExpertNumTokens num_tokens, const Matrix& output,
                       Stream stream = {}, LoraIds lora_ids = {});

  /// Reads and packs new weights for this layer into memory of their own; what serves is not
  /// touched. Errors: another layer than the one that was loaded (sizes, scheme, biases), reading,
  /// memory, kCancelled.
  Result<PackedWeights> pack(DescribedWeights&& weights, const Progress& progress = {}) const;
  /// The packed weights take the place of the old ones, at the same addresses, and are used up; it
  /// waits for that. Errors: weights that were packed for another layer, for other experts, for
  /// another backend or on another device; weights that are used up; the device's. `weights` can
  /// then be swapped in elsewhere, or again.
  Status swap(PackedWeights&& weights, Stream stream = {});

  /// Adapter `id` of this layer, below the planned max_adapters; replaces what was there. Experts
  /// that are elsewhere are left out. Errors, before anything is changed: an id, a rank or a shape
  /// that does not fit.
  Status set_adapter(int32_t id, const LoraWeights& adapter);
  /// Adapter `id` adds nothing from now on.
  Status clear_adapter(int32_t id);

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

  /// y [num_tokens, N] = x [num_tokens, K] · wᵀ + bias, both of the device's activation dtype; y
  /// may be f32 on any device. Pointers as of FusedMoe::apply. Errors: shapes, types, more tokens
  /// than planned, a null pointer or one that is not aligned.
  Status apply(const Matrix& x, const Matrix& y, Stream stream = {});

  /// As FusedMoe's.
  Result<PackedWeights> pack(DescribedMatrix&& weights, const Progress& progress = {}) const;
  Status swap(PackedWeights&& weights, Stream stream = {});

  const Plan& plan() const;
  int64_t weight_bytes() const;

 private:
  struct State;
  explicit Linear(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The spec of a dense linear layer, for select().
LayerSpec linear_spec(std::string name, const DescribedMatrix& weights);

/// How rows are timed.
struct TuneOptions {
  std::vector<int64_t> tokens = {1, 16, 256};
  double seconds = 20;            ///< for the layer, making weights included
  int64_t most_bytes = 0;         ///< of memory for a row's weights
  DeviceName device;              ///< whose rows are timed
  bool bf16_activations = false;  ///< see Request
};

/// Times every row that serves the layer on `device`, which options.device names, in the table's
/// order, at each number of tokens. A row that takes over eight times as long as the best at one of
/// them is not asked for the rest, and rows for which no time is left are not asked at all, but the
/// first always is: the oracle compares only what was measured throughout. Errors: nothing serves
/// the layer; memory; kCancelled.
Result<TunedLayer> tune(const LayerSpec& layer, const Machine& machine,
                        const std::shared_ptr<Device>& device, const TuneOptions& options,
                        const Progress& progress = {});

}  // namespace moracle
