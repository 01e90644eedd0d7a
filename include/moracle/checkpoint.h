// What a checkpoint folder holds: its config, its producer, and its weights described, not yet
// read.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moracle/base.h"
#include "moracle/quant.h"

namespace moracle {

class ThreadPool;  // internal

/// The nonlinearity between the two GEMMs of an expert, of the gate's output g and the up
/// projection's u. The last four have no gate: w13 has I rows, and the result is a function of u.
enum class Activation : uint8_t {
  kSilu,        ///< g·σ(g)·u; with a limit L > 0: g ← min(g, L), u ← clamp(u, ±L) first
  kGelu,        ///< g·Φ(g)·u
  kGeluTanh,    ///< the same with Φ(g) ≈ (1 + tanh(√(2/π)·(g + 0.044715 g³))) / 2
  kRelu2,       ///< max(g, 0)²·u
  kSwigluOai,   ///< g ← min(g, L), u ← clamp(u, ±L); g·σ(α g)·(u + β)
  kSwigluStep,  ///< min(g·σ(g), L)·clamp(u, ±L)
  kSiluNoMul,
  kGeluNoMul,
  kGeluTanhNoMul,
  kRelu2NoMul,
};
/// "silu", "gelu", "gelu_tanh", "relu2", "swigluoai", "swiglustep", "silu_no_mul", …
std::string_view name(Activation activation);
/// The inverse; "swish", "gelu_new" and "gelu_pytorch_tanh" of config files are understood too.
/// Errors list the names.
Result<Activation> parse_activation(std::string_view text);
constexpr bool is_gated(Activation activation) {
  return activation < Activation::kSiluNoMul;
}

/// An activation with its numbers.
struct ActivationSpec {
  Activation function = Activation::kSilu;
  float alpha = 1.702f;  ///< swigluoai
  float beta = 1;        ///< swigluoai
  float limit = 0;       ///< silu: 0 for none; swigluoai and swiglustep need one
  bool operator==(const ActivationSpec&) const = default;
};

/// From router logits to weights: which scores, which experts, which normalisation.
enum class Score : uint8_t {
  kSoftmax,          ///< over all experts, then top_k
  kSigmoid,          ///< of each expert
  kTopkThenSoftmax,  ///< top_k of the logits, then softmax over those
};
std::string_view name(Score score);
struct Routing {
  Score score = Score::kSoftmax;
  bool renormalize = false;      ///< divide the top_k weights by their sum
  int64_t num_groups = 1;        ///< experts in groups of equal size,
  int64_t top_groups = 1;        ///< of which only the best may be chosen from
  float scaling_factor = 1;      ///< multiplies the weights, after renormalisation
  bool correction_bias = false;  ///< a bias per expert for choosing, not for weighing
  bool weight_on_input = false;  ///< a weight multiplies its expert's input, not the output
  bool operator==(const Routing&) const = default;
};
std::string name(const Routing& routing);

/// Size and meaning of one matrix, known before it is read.
struct MatrixShape {
  int64_t n = 0;
  int64_t k = 0;
  QuantKey key;
  bool group_index = false;  ///< columns belong to groups in another order than left to right
  bool bias = false;
  bool operator==(const MatrixShape&) const = default;
};

/// Everything about a layer that matters for choosing and running its kernels.
struct LayerSpec {
  std::string name;  ///< "model.layers.0.mlp.experts"
  /// A dense linear layer is a grouped linear with one expert: then `hidden_size` is its input,
  /// `intermediate_size` its output, and only w13 exists.
  bool linear = false;
  int64_t num_experts = 1;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t top_k = 1;
  ActivationSpec activation;
  Routing routing;
  Scheme scheme;
  bool group_index = false;
  bool bias = false;
  std::vector<MatrixShape> stored;  ///< see set_matrices

  /// Rows of w13 for one expert: gate and up, or up alone.
  int64_t w13_rows() const {
    return is_gated(activation.function) ? 2 * intermediate_size : intermediate_size;
  }
  /// The matrices of one expert: w13 [2I, H] ([I, H] without a gate) and w2 [H, I], or a linear
  /// layer's only one.
  std::vector<MatrixShape> matrices() const;
  /// The matrices as a file stores them. Kept only where they differ from what the fields above
  /// say: a bias in one alone, blocks of scales that end inside a stack.
  void set_matrices(std::vector<MatrixShape> shapes);
  /// True where two layers differ in nothing but their names.
  bool same_but_name(const LayerSpec& other) const;
};
/// "int4-w4a16-g128 · 128 experts, top-8, 2048 → 768", and what else is special about the layer.
std::string describe(const LayerSpec& layer);

/// Experts x [n, k], described: every tensor is known to exist with the right shape and type.
/// Reading happens expert by expert. Move-only: conversion consumes it.
class DescribedMatrix {
 public:
  /// One expert's piece of rows, from one or more tensors (gate, or up; q, or k, or v).
  struct Part {
    int64_t n = 0;
    std::string file;                  ///< of the first tensor, for messages
    std::string module;                ///< "model.layers.0.self_attn.q_proj"
    std::vector<std::string> tensors;  ///< the names that it claims
    int64_t source_bytes = 0;          ///< that it takes in the file(s)
    /// May be called from several threads at once. Of long work the threads of the pool may each do
    /// a share; what is read does not depend on how many there are.
    std::function<Result<CanonicalMatrix>(ThreadPool& pool)> read;
    /// The same for rows [first, first + count) alone. Empty: the part is read whole.
    std::function<Result<CanonicalMatrix>(ThreadPool& pool, int64_t first, int64_t count)>
        read_rows;
  };
  /// `parts[e]` are stacked row-wise into expert e's matrix. `owner` keeps the parts' memory alive.
  DescribedMatrix(MatrixShape shape, Scheme scheme, std::vector<std::vector<Part>> parts,
                  std::shared_ptr<const void> owner);
  /// From matrices in memory, one per expert, all of one shape: tests and benchmarks.
  static DescribedMatrix from(Scheme scheme, std::vector<CanonicalMatrix> experts);

  DescribedMatrix(DescribedMatrix&&) noexcept = default;
  DescribedMatrix& operator=(DescribedMatrix&&) noexcept = default;

  const MatrixShape& shape() const { return shape_; }
  const Scheme& scheme() const { return scheme_; }
  /// Stored activation scales of a static scheme, one per expert; empty otherwise. Where the
  /// matrices stacked into one expert's (gate and up, or q, k and v) carry different ones, the
  /// largest: their common input is quantized once, and must not saturate.
  const std::vector<float>& input_scales() const { return input_scales_; }
  void set_input_scales(std::vector<float> scales) { input_scales_ = std::move(scales); }
  int64_t num_experts() const { return static_cast<int64_t>(parts_.size()); }
  std::vector<std::string> tensors() const;
  /// The linear layers that it is made of, each once, in order; none of matrices in memory.
  std::vector<std::string> modules() const;
  /// Rows of each part that is stacked into one expert's matrix.
  std::vector<int64_t> part_rows() const;
  /// Bytes in the file(s).
  int64_t source_bytes() const;

  /// Expert e in canonical form. Errors: a weight, scale or bias that is NaN or infinite, with
  /// tensor and element; a file that was cut short after it was opened; the system's.
  Result<CanonicalMatrix> expert(int64_t e) const;
  Result<CanonicalMatrix> expert(int64_t e, ThreadPool& pool) const;
  /// The same in pieces, in order, of which memory holds one at a time: the parts in which it is
  /// stored, large ones in pieces of kPieceRows rows or a multiple of that.
  static constexpr int64_t kPieceRows = 256;
  using UsePiece = std::function<void(const CanonicalMatrix& piece, int64_t first_row)>;
  Status read_pieces(int64_t e, ThreadPool& pool, const UsePiece& use) const;
  /// Changes the scheme: activations of this key, computed at run time, or floats. Stored
  /// activation scales are dropped.
  void set_activation(const std::optional<QuantKey>& key) {
    scheme_.activation = key;
    input_scales_.clear();
  }
  /// Only these experts, in this order. `experts` are numbers below num_experts().
  void keep(std::span<const int32_t> experts);

 private:
  friend class OnlineQuantizer;  // internal
  Result<CanonicalMatrix> read(const Part& part, ThreadPool& pool) const;

  MatrixShape shape_;
  Scheme scheme_;
  std::vector<std::vector<Part>> parts_;
  std::vector<float> input_scales_;
  std::shared_ptr<const void> owner_;
};

/// One layer's experts: w13 = gate rows, then up rows; w2 = down.
struct DescribedWeights {
  LayerSpec spec;
  DescribedMatrix w13;
  DescribedMatrix w2;
};

/// A low-rank change to one matrix: Δ = scale · B A, added to what the matrix gives for the
/// unquantized input (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021).
struct LoraPair {
  int64_t rank = 0;      ///< 0: the matrix is left alone
  float scale = 1;       ///< alpha / rank, or what the adapter's config says
  std::vector<float> a;  ///< [rank, K]
  std::vector<float> b;  ///< [N, rank]
};
/// An adapter for one layer's experts: an entry for every expert of the layer, or none at all.
struct LoraWeights {
  std::vector<LoraPair> gate, up, down;
};

/// The same matrix in one of online_schemes(): each part is quantized by itself when conversion
/// reads it, so memory never holds a second model. Gate and up, or q, k and v, get scales of their
/// own, of the tensor or of blocks, as in files, also where gate and up lie in one tensor. Errors
/// (kUnsupported): weights that are quantized already, or another scheme. Reading then fails for
/// weights that are NaN or infinite, with tensor and element.
Result<DescribedMatrix> quantize(DescribedMatrix&& floats, const Scheme& scheme);
Result<DescribedWeights> quantize(DescribedWeights&& floats, const Scheme& scheme);

/// In which form activations enter a layer's products, where that is not left to the checkpoint.
enum class ActivationPrecision : uint8_t {
  kStored,  ///< as the checkpoint's scheme says
  kBf16,    ///< kernels may round activations that are floats to bf16: Request::bf16_activations
  kInt8,    ///< int8 per token, where weights are integers or fp4 and activations would be floats
  k16Bit,   ///< floats of the device, where the scheme would quantize them: weight-only (W8A16)
};
/// What `--activations` may say: "bf16", "int8" or "16bit", or "" for kStored. Errors: another
/// word.
Result<ActivationPrecision> parse_activations(std::string_view text);
/// Turns the scheme into the one that kInt8 or k16Bit asks for; weights keep their numbers. Changes
/// nothing for the other two, or where the scheme is none of those named there. With k16Bit the
/// activation scales that a file stores are not used.
void set_activations(DescribedMatrix& weights, ActivationPrecision precision);
void set_activations(DescribedWeights& weights, ActivationPrecision precision);

/// Online schemes by module, as a user types them: "scheme", or "pattern=scheme,pattern=none". The
/// first pattern that matches a module's name (as in the file:
/// "model.layers.0.mlp.experts.3.up_proj") decides; an entry without pattern is for the rest, and
/// where there is none the rest is left as it is. In a pattern `*` stands for any text.
class QuantizationMap {
 public:
  /// Errors: a name that no online scheme has, listing them; an empty pattern; two defaults.
  static Result<QuantizationMap> parse(std::string_view text);
  /// Of a module's entry, its scheme; nothing: left as it is.
  std::optional<Scheme> for_module(std::string_view module) const;
  /// Nothing of a map that asks for nothing.
  bool empty() const { return entries_.empty(); }

  struct Entry {
    std::string pattern;  ///< empty: the default, which comes last
    std::optional<Scheme> scheme;
  };
  const std::vector<Entry>& entries() const { return entries_; }
  /// The pattern that decides about a module; nothing where it is none.
  const Entry* entry_for(std::string_view module) const;

 private:
  std::vector<Entry> entries_;
};

/// A folder with config.json and safetensors, opened and checked; no weight is read yet. Its files
/// stay open, one descriptor each, and are read, never mapped: one that is cut short meanwhile is
/// an error of the call that reads it. Bytes that are changed in place are not noticed: replace a
/// checkpoint by renaming. Several threads may call const methods of one Checkpoint at once.
class Checkpoint {
 public:
  /// Errors: no such folder, no or broken config.json, a missing or broken shard, a quant_method
  /// that no reader claims (naming those that are known).
  static Result<Checkpoint> open(const std::string& folder);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::string& folder() const;
  /// "Qwen3MoeForCausalLM"
  const std::string& architecture() const;
  /// The tool that wrote the quantized tensors: "gptq", "compressed-tensors", "plain".
  std::string_view producer() const;
  int64_t num_layers() const;
  /// Layers that hold experts, in order.
  std::vector<int64_t> moe_layers() const;

  /// The experts of one layer. Errors: not a layer with experts; a missing, extra or wrongly typed
  /// tensor, by name; experts that differ in scheme.
  Result<DescribedWeights> moe_layer(int64_t layer) const;
  /// The same, quantized while it is read as `map` says; an empty map leaves it as it is. Errors
  /// beside those: a file that is quantized already, a map that does not fit it.
  Result<DescribedWeights> moe_layer(int64_t layer, const QuantizationMap& map) const;
  /// The linear layers named by `modules`, stacked row-wise into one, which all read one input.
  Result<DescribedMatrix> linear(const std::vector<std::string>& modules) const;
  /// A router: never quantized unless the config lists it and the file stores it so.
  Result<DescribedMatrix> router(const std::string& module) const;
  /// A vector of `size` floats (a norm's weights), widened to f32. Errors: shape, NaN, infinity.
  Result<std::vector<float>> vector(const std::string& name, int64_t size) const;
  /// A tensor's dtype and shape; its `data` is null.
  Result<TensorView> tensor(const std::string& name) const;
  /// A tensor's bytes as the file has them. Errors: missing; a number that is NaN or infinite;
  /// those of reading.
  Result<std::vector<std::byte>> read(const std::string& name) const;
  bool has_tensor(const std::string& name) const;
  /// Tensors of the files that no call of this object has asked for yet, buffers that no model
  /// reads left out. plan(), outline() and Model::load() keep an account of their own.
  std::vector<std::string> unclaimed() const;
  /// The same open files with nothing asked for.
  Checkpoint unclaimed_copy() const;

  /// Bytes of all tensors.
  int64_t total_bytes() const;

  /// For the library's own rooms: the parsed config and the tensors.
  struct State;
  const State& state() const { return *state_; }

 private:
  struct Claims;
  explicit Checkpoint(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
  std::unique_ptr<Claims> claims_;  // grow as modules are described
};

/// A LoRA adapter for a checkpoint's experts.
struct LoraAdapter {
  int64_t rank = 0;                       ///< the largest of any matrix
  std::map<int64_t, LoraWeights> layers;  ///< by layer; those that it leaves alone are not there

  /// Reads `folder` as PEFT writes it: adapter_config.json, and adapter_model.safetensors with
  /// base_model.model.<module>.lora_A.weight [rank, K] and .lora_B.weight [N, rank] for modules of
  /// single experts (….experts.3.gate_proj). The scale is lora_alpha / rank, with use_rslora
  /// lora_alpha / √rank; alpha_pattern changes alpha by module. Errors: another kind of adapter, or
  /// one made for a changed base (PiSSA), by the key that says so; an A without B; shapes that the
  /// layer's matrices do not have; tensors for anything but experts.
  static Result<LoraAdapter> open(const std::string& folder, const Checkpoint& checkpoint);
};

/// Writing a quantized checkpoint: the same numbers as quantizing while loading, kept in a folder.
struct QuantizeOptions {
  /// "compressed-tensors"; "fp8": blocks of e4m3 as DeepSeek and Qwen store them; "modelopt": mxfp8
  /// as NVIDIA's tool stores it.
  std::string format = "compressed-tensors";
  int64_t max_shard_bytes = 5'000'000'000;  ///< of tensors in one file; a module is never split
  Progress progress;                        ///< in bytes of the tensors read
};

struct QuantizeReport {
  std::vector<Scheme> schemes;  ///< each once
  int64_t num_quantized = 0;    ///< tensors of the source that were quantized
  int64_t num_left = 0;         ///< and that were copied bit for bit
  int64_t bytes_before = 0;     ///< of all tensors
  int64_t bytes_after = 0;
  std::vector<std::string> files;  ///< that hold them
};

/// Writes `from` to the new folder `folder` with modules quantized as `map` says; config.json says
/// so too, and everything else of the folder but other forms of the weights, its README and hidden
/// files is copied. Memory holds one module at a time. The folder appears when it is whole: work
/// that fails or is stopped leaves nothing behind, and what a killed process left beside it, in
/// hidden folders .NAME.partial-…, goes with the next call for the same folder.
/// Errors: `folder` is not empty, or lies in the source; a source that is quantized already; a map
/// that does not fit it or quantizes nothing; a scheme that the format cannot store, and experts
/// that lie in one tensor, which no reader would find quantized (kUnsupported); weights that are
/// NaN or infinite; kIo with the file that the system refused; kCancelled.
Result<QuantizeReport> quantize(const Checkpoint& from, const QuantizationMap& map,
                                const std::string& folder, const QuantizeOptions& options = {});

}  // namespace moracle
