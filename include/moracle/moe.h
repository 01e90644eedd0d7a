// FusedMoe: prepare (dispatch, quantize) → experts (GEMM 1, activation, GEMM 2) → finalize
// (weighted sum).
#pragma once

#include <memory>
#include <vector>

#include "moracle/base.h"
#include "moracle/checkpoint.h"
#include "moracle/device.h"
#include "moracle/oracle.h"

namespace moracle MORACLE_API {

class StreamOrder;  // internal

/// Expert ids of each token: i32 [num_tokens, top_k] in device memory. An id of -1, or any id
/// outside [0, num_experts), contributes exactly zero. A separate type prevents swapping ids and
/// weights.
struct TopkIds {
  const int32_t* data = nullptr;
};

/// Weight of each selected expert: f32 [num_tokens, top_k] in device memory.
struct TopkWeights {
  const float* data = nullptr;
};

/// Number of tokens of each local expert: i32 [num_local] in device memory.
struct ExpertNumTokens {
  const int32_t* data = nullptr;
};

/// Adapter id of each token: i32 [num_tokens] in device memory, -1 for none. Null: no token uses an
/// adapter.
struct LoraIds {
  const int32_t* data = nullptr;
};

/// New weights of a layer, packed in device memory but not yet in use. A swap consumes them.
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

/// Scratch memory of a device, shared by layers that run one after another. On a GPU, a call on
/// another stream waits on the device for the work of the previous call. Streams that the caller
/// captures are an exception: replays of the caller's own graph must not overlap with other calls
/// on this workspace. Graphs of Device::record are ordered like calls. The workspace grows only
/// while layers are made, never in apply. If it grows after a graph has captured a call, it keeps
/// the memory that the graph uses until its end.
class Workspace {
 public:
  explicit Workspace(std::shared_ptr<Device> device);
  /// Grows the workspace to at least `bytes`. Errors: kOutOfMemory. The workspace then has its
  /// previous size, or no memory if the device refuses the previous size too.
  Status reserve(size_t bytes);
  std::byte* data() const { return buffer_.as<std::byte>(); }
  size_t bytes() const { return buffer_.bytes(); }
  Device& device() const { return *device_; }
  const std::shared_ptr<Device>& shared_device() const { return device_; }

 private:
  friend class LayerLock;
  std::shared_ptr<Device> device_;
  std::shared_ptr<StreamOrder> order_;  // orders the device's streams; null if not needed
  Buffer buffer_;
  std::vector<Buffer> of_graphs_;  // previous memory, which captured calls use
};

/// The experts of one layer, converted for the selected backend.
class FusedMoe {
 public:
  /// Reads and packs the weights of the local experts, one expert at a time. `weights` holds all
  /// experts of the layer and is consumed. Errors: the selection has no plan (with all reasons); a
  /// routing that is unknown (Score::kUnknown): set weights.spec.routing before select; read
  /// errors; memory; kCancelled.
  static Result<FusedMoe> make(DescribedWeights&& weights, const Selection& selection,
                               std::shared_ptr<Device> device, const Progress& progress = {});
  /// Makes the layer with scratch memory that other layers share.
  static Result<FusedMoe> make(DescribedWeights&& weights, const Selection& selection,
                               std::shared_ptr<Workspace> workspace, const Progress& progress = {});
  FusedMoe(FusedMoe&&) noexcept;
  FusedMoe& operator=(FusedMoe&&) noexcept;
  ~FusedMoe();

  /// output[t] = Σ_j topk_weights[t, j] · expert(topk_ids[t, j])(hidden[t]), over the local
  /// experts. With expert parallelism, the sum of all ranks' outputs is the layer's output.
  /// hidden and output are [num_tokens, hidden_size] in f32, bf16 or f16, and must not overlap.
  /// Each pointer must be aligned to its element size: 4 bytes for f32, ids and weights; 2 bytes
  /// for bf16 and f16. Kernels are fastest if pointers and rows are aligned to 16 bytes.
  /// The call enqueues work and returns. It allocates nothing and makes no decision from device
  /// data. Ids without an expert contribute zero, and the device's synchronize() reports them.
  /// Errors: wrong shapes; more tokens than planned; adapters that were not planned; a plan for
  /// batched activations; a null or unaligned pointer.
  Status apply(const ConstMatrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
               const Matrix& output, Stream stream = {}, LoraIds lora_ids = {});

  /// As apply for any number of tokens: runs plan().max_num_tokens of them at a time, in order, on
  /// one stream. A token's result has the bits of an apply with the tokens of its chunk.
  Status apply_chunked(const ConstMatrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                       const Matrix& output, Stream stream = {}, LoraIds lora_ids = {});

  /// The experts' results before they are weighted and summed. Row t · top_k + j of `rows`
  /// [num_tokens · top_k, hidden_size] becomes expert(topk_ids[t, j])(hidden[t]), or 0 if the
  /// expert is not local. `rows` has the plan's activation dtype and no gaps. `topk_weights` are
  /// read only if the routing weights the input. No fused kernel runs. All other rules of apply
  /// hold.
  Status apply_rows(const ConstMatrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                    const Matrix& rows, Stream stream = {}, LoraIds lora_ids = {});

  /// Applies the layer to batched activations. hidden and output are [num_local, max_tokens,
  /// hidden_size], as matrices of num_local · max_tokens rows. max_tokens is the planned maximum.
  /// The first num_tokens[e] rows of local expert e are its tokens; their outputs are not weighted.
  /// Other input rows do not affect any result, and other output rows become 0. `lora_ids` has one
  /// entry per row. All other rules of apply hold.
  Status apply_batched(const ConstMatrix& hidden, ExpertNumTokens num_tokens, const Matrix& output,
                       Stream stream = {}, LoraIds lora_ids = {});

  /// Reads and packs new weights for this layer into separate memory. The weights in use do not
  /// change. Errors: weights of a different layer (sizes, scheme, biases); read errors; memory;
  /// kCancelled.
  Result<PackedWeights> pack(DescribedWeights&& weights, const Progress& progress = {}) const;
  /// Replaces the weights with the packed weights, at the same addresses, and waits until this is
  /// done. The packed weights are consumed. Errors: weights packed for another layer, other
  /// experts, another backend or another device; weights that were already consumed; device errors.
  /// After an error `weights` is not consumed and can be swapped elsewhere or again.
  Status swap(PackedWeights&& weights, Stream stream = {});

  /// Sets adapter `id` of this layer and replaces the previous one. `id` must be below the planned
  /// max_adapters. Experts of other ranks are skipped. Errors, before any change: an id, rank or
  /// shape that does not fit.
  Status set_adapter(int32_t id, const LoraWeights& adapter);
  /// Clears adapter `id`: from now on it adds nothing.
  Status clear_adapter(int32_t id);

  const Plan& plan() const;
  int64_t weight_bytes() const;

 private:
  friend struct MoeAccess;  // internal
  struct State;
  explicit FusedMoe(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct LinearCall;

/// A dense linear layer on the same kernels: a grouped linear with one expert.
class Linear {
 public:
  static Result<Linear> make(DescribedMatrix&& weights, const Selection& selection,
                             std::shared_ptr<Workspace> workspace, const Progress& progress = {});
  Linear(Linear&&) noexcept;
  Linear& operator=(Linear&&) noexcept;
  ~Linear();

  /// y [num_tokens, N] = x [num_tokens, K] · wᵀ + bias. x and y have the device's activation dtype;
  /// y may also be f32 on any device. Pointer alignment as in FusedMoe::apply. Errors: wrong shapes
  /// or types; more tokens than planned; a null or unaligned pointer.
  Status apply(const ConstMatrix& x, const Matrix& y, Stream stream = {});

  /// Internal: the product together with the operations around it. Without a kernel that serves the
  /// whole call, they run one after another, with the same bits. Errors: as apply, and of the
  /// operations; a norm with `sum` that no kernel serves.
  Status apply(const LinearCall& call, Stream stream);
  /// Internal: true if one kernel computes the call.
  bool serves(const LinearCall& call) const;

  /// pack and swap work as in FusedMoe.
  Result<PackedWeights> pack(DescribedMatrix&& weights, const Progress& progress = {}) const;
  Status swap(PackedWeights&& weights, Stream stream = {});

  const Plan& plan() const;
  int64_t weight_bytes() const;

 private:
  struct State;
  explicit Linear(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The LayerSpec of a dense linear layer, for select().
LayerSpec linear_spec(std::string name, const DescribedMatrix& weights);

/// Numbers of a router's experts: f32 [num_experts] in device memory. Null where the routing has
/// none.
struct RouterVectors {
  const float* correction_bias = nullptr;  ///< see Routing::correction_bias
  const float* expert_scales = nullptr;    ///< see Routing::expert_scales
};

/// Chooses top_k experts for each token and computes their weights, as `routing` says: score
/// functions, groups, correction bias, renormalization, scaling factor. Experts come in the order
/// of their scores, the largest first; of equal scores the lower id comes first. logits:
/// [num_tokens, num_experts] in the device's activation dtype (f32 on a CPU); the call overwrites
/// them. topk_ids: i32 [num_tokens, top_k]. topk_weights: f32 [num_tokens, top_k]. All pointers are
/// device memory, aligned to their element size. The call enqueues work on `stream` and returns; it
/// allocates nothing. FusedMoe::apply on the same stream takes the results. Errors: an unknown
/// score function; groups that do not divide the experts; a top_k outside [1, experts of the best
/// groups]; a vector that the routing needs and `vectors` lacks, or one that it does not use;
/// another dtype; a null or unaligned pointer.
Status route(Device& device, const Matrix& logits, const Routing& routing, int64_t top_k,
             const RouterVectors& vectors, int32_t* topk_ids, float* topk_weights,
             Stream stream = {});

/// Options for timing backends.
struct TuneOptions {
  std::vector<int64_t> tokens = {1, 16, 256};
  double seconds = 20;  ///< time limit for the layer in seconds, including packing weights
  /// Memory limit for the weights of one backend, in bytes. 0: half of the device's memory.
  int64_t most_bytes = 0;
  DeviceName device;              ///< the device whose backends are timed
  bool bf16_activations = false;  ///< see Request
};

/// Times every backend that serves the layer on `device`, in the table's order, at each number of
/// tokens. options.device must name `device`. If a backend takes more than eight times as long as
/// the best one at some number of tokens, the remaining numbers are skipped for it. Backends are
/// skipped when the time limit is reached, except the first one. The oracle compares only backends
/// that were measured at all numbers. Errors: no backend serves the layer; memory; kCancelled.
Result<TunedLayer> tune(const LayerSpec& layer, const Machine& machine,
                        const std::shared_ptr<Device>& device, const TuneOptions& options,
                        const Progress& progress = {});

}  // namespace MORACLE_API
