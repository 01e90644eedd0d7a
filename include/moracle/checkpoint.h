// A checkpoint: its config, its producer, and descriptions of weights that are not yet read.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moracle/base.h"
#include "moracle/layer.h"
#include "moracle/quant.h"

namespace moracle MORACLE_API {

class ThreadPool;  // internal

/// Experts x [n, k], described but not read: every tensor exists and has the right shape and dtype.
/// Weights are read one expert at a time. Move-only: conversion consumes the object.
class DescribedMatrix {
 public:
  /// A block of rows of one expert, from one or more tensors (gate or up; q, k or v).
  struct Source {
    int64_t n = 0;
    /// The file of the first tensor, for messages.
    std::string file;
    std::string module;  ///< "model.layers.0.self_attn.q_proj"
    /// Names of the tensors that this source claims.
    std::vector<std::string> tensors;
    /// Size of the source in the file(s), in bytes.
    int64_t source_bytes = 0;
    /// Reads the source. Several threads may call it at once. The threads of the pool may share
    /// long work. The result does not depend on the number of threads.
    std::function<Result<CanonicalMatrix>(ThreadPool& pool)> read;
    /// Reads only rows [first, first + count). Empty: the source can only be read whole.
    std::function<Result<CanonicalMatrix>(ThreadPool& pool, int64_t first, int64_t count)>
        read_rows;
  };
  /// `sources[e]` are stacked row-wise into the matrix of expert e. `owner` keeps the memory of the
  /// sources alive.
  DescribedMatrix(MatrixShape shape, Scheme scheme, std::vector<std::vector<Source>> sources,
                  std::shared_ptr<const void> owner);
  /// From matrices in memory, one per expert, all of the same shape. Tests and benchmarks use it.
  static DescribedMatrix from(Scheme scheme, std::vector<CanonicalMatrix> experts);

  DescribedMatrix(DescribedMatrix&&) noexcept = default;
  DescribedMatrix& operator=(DescribedMatrix&&) noexcept = default;

  const MatrixShape& shape() const { return shape_; }
  const Scheme& scheme() const { return scheme_; }
  /// Stored activation scales of a static scheme, one per expert; empty for other schemes. If
  /// stacked matrices (gate and up, or q, k and v) have different scales, this is the largest.
  /// Their common input is quantized once and must not saturate.
  const std::vector<float>& input_scales() const { return input_scales_; }
  void set_input_scales(std::vector<float> scales) { input_scales_ = std::move(scales); }
  int64_t num_experts() const { return static_cast<int64_t>(sources_.size()); }
  std::vector<std::string> tensors() const;
  /// Names of the linear layers of this matrix, each once, in order. Empty for matrices in memory.
  std::vector<std::string> modules() const;
  /// Rows of each source that is stacked into the matrix of one expert.
  std::vector<int64_t> source_rows() const;
  /// Size in the file(s), in bytes.
  int64_t source_bytes() const;

  /// Expert e in canonical form. Errors: a weight, scale or bias that is NaN or infinite, with
  /// tensor and element; a file that was cut short after it was opened; system errors.
  Result<CanonicalMatrix> expert(int64_t e) const;
  Result<CanonicalMatrix> expert(int64_t e, ThreadPool& pool) const;
  /// Reads expert e in slices, in order; memory holds one slice at a time. A slice is one stored
  /// source. Large sources are split into slices of kSliceRows rows or a multiple of kSliceRows.
  static constexpr int64_t kSliceRows = 256;
  using UseSlice = std::function<void(const CanonicalMatrix& slice, int64_t first_row)>;
  Status read_slices(int64_t e, ThreadPool& pool, const UseSlice& use) const;
  /// Changes the activation key: activations quantized with `key` at run time, or float
  /// activations. Drops stored activation scales.
  void set_activation(const std::optional<QuantKey>& key) {
    scheme_.activation = key;
    input_scales_.clear();
  }
  /// Changes the scheme to one that holds the same integer weights exactly, in wider codes or
  /// smaller groups: that of another matrix, so that one kernel serves both.
  void widen(const Scheme& scheme);
  /// Changes 4-bit weights beside fp8 activations to e4m3 codes of the same values
  /// (WeightResidency::kFolded). Errors (kUnsupported), with the module: e4m3 does not hold the
  /// weights, or fp8 kernels do not multiply them. Reading then fails for a row of MXFP4 whose
  /// exponents are more than 14 apart.
  Status fold();
  /// Keeps only these experts, in this order. `experts` are indices below num_experts().
  void keep(std::span<const int32_t> experts);

 private:
  friend class OnlineQuantizer;  // internal
  friend struct MatrixShare;     // internal
  Result<CanonicalMatrix> read(const Source& source, ThreadPool& pool) const;

  MatrixShape shape_;
  Scheme scheme_;
  std::vector<std::vector<Source>> sources_;
  std::vector<float> input_scales_;
  std::shared_ptr<const void> owner_;
};

/// The experts of one layer: w13 = gate rows, then up rows; w2 = down.
struct DescribedWeights {
  LayerSpec spec;
  DescribedMatrix w13;
  DescribedMatrix w2;
};

/// How tensors in memory hold integer codes. E experts, N rows, K columns, G groups along K, codes
/// of b bits. Packed codes and zero points are unsigned: the canonical value plus 2^(b-1).
enum class Packing : uint8_t {
  /// Codes u8 [E, N, K·b/8] or i32 [E, N, ceil(K·b/32)], low bits first; scales [E, N, G]; zero
  /// points u8 [E, N·b/8, G] or i32 [E, ceil(N·b/32), G]. Codes i8 [E, N, K] are two's complement.
  kRows,
  kGptq,  ///< codes i32 [E, K·b/32, N]; scales [E, G, N]; zero points minus 1, i32 [E, G, N·b/32]
  kGptqV2,  ///< as kGptq; zero points as they are
  kAwq,     ///< codes i32 [E, K, N/8]; scales [E, G, N]; zero points i32 [E, G, N/8]
};
/// Parses "rows", "gptq", "gptq_v2" or "awq". Errors: any other text.
Result<Packing> parse_packing(std::string_view text);

/// One matrix of every expert, as tensors in memory. A view without data is absent.
struct StoredMatrix {
  /// Names in messages: "w1" names w1, w1_scale, w1_zp, w1_g_idx and w1_bias.
  std::string name;
  /// The name of the activation scales: "a1_scale".
  std::string input_name;
  /// Floats, f8_e4m3 (or its bytes as u8) [E, N, K]; fp4 codes u8 [E, N, K/2], low nibble first;
  /// integers as Packing says.
  TensorView weight;
  /// Floats; u8 exponents for power-of-two scales. One per tensor: [E]. Per channel: [E, N]. In
  /// groups: [E, N, G]. In blocks: [E, ceil(N/rows), ceil(K/cols)]. Sizes of 1 may be left out.
  TensorView scales;
  TensorView zero_points;   ///< see Packing
  TensorView group_index;   ///< i32 [E, K]: the group of each column (act-order)
  TensorView bias;          ///< floats [E, N]
  TensorView input_scales;  ///< floats [E] or [1]: stored activation scales of a static scheme
};

/// The experts of one layer, as tensors in memory.
struct StoredExperts {
  StoredMatrix w13, w2;
  Packing packing = Packing::kRows;
  bool interleaved = false;  ///< rows of gate and up alternate in w13, as in GPT-OSS
  /// expert_map[e]: the index in the tensors of expert e, or -1 if another rank holds it. Empty:
  /// the tensors hold all experts.
  std::vector<int32_t> expert_map;
  /// Keeps the tensors' memory alive until the weights are read.
  std::shared_ptr<const void> owner;
  /// For tensors outside host memory, such as on a GPU: reads a range of them, for example with
  /// Device::read. Null: host memory, used in place. Conversion reads one expert
  /// at a time (small experts several at once, together at most 64 MiB) and frees the host's copy
  /// before it reads the next one, so no second copy of the layer exists. describe() itself reads
  /// only group indices and activation scales.
  ReadMemory read;
};

/// Describes experts in memory. `spec` gives name, top_k, activation, routing and scheme; the
/// tensors give the sizes. Codes that are canonical and in host memory are used in place. Errors: a
/// tensor that is missing, or has another dtype or shape than the scheme and the packing need, by
/// name; those of `stored.read`. Reading fails for NaN or infinite numbers, with tensor and
/// element.
Result<DescribedWeights> describe(StoredExperts stored, LayerSpec spec);

/// A low-rank change of one matrix: Δ = scale · B A. Its product with the unquantized input is
/// added to the matrix's output (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models",
/// 2021).
struct LoraPair {
  int64_t rank = 0;      ///< 0: no adapter for this matrix
  float scale = 1;       ///< alpha / rank, or the value from the adapter's config
  std::vector<float> a;  ///< [rank, K]
  std::vector<float> b;  ///< [N, rank]
};
/// An adapter for the experts of one layer: one entry per expert, or no entries.
struct LoraWeights {
  std::vector<LoraPair> gate, up, down;
};

/// Quantizes the matrix to one of online_schemes(). Each source is quantized separately when
/// conversion reads it, so memory never holds a second model. Gate and up, or q, k and v, get
/// separate scales per tensor or per block, as in quantized files. This also holds if one tensor
/// stores gate and up. Errors (kUnsupported): weights that are already quantized; a scheme that is
/// not in online_schemes(). Reading then fails for NaN or infinite weights, with tensor and
/// element.
Result<DescribedMatrix> quantize(DescribedMatrix&& floats, const Scheme& scheme);
Result<DescribedWeights> quantize(DescribedWeights&& floats, const Scheme& scheme);

/// Overrides the format of the activations that enter a layer's GEMMs.
enum class ActivationPrecision : uint8_t {
  kStored,  ///< as in the checkpoint's scheme
  /// Kernels may round float activations to bf16: see Request::bf16_activations.
  kBf16,
  /// int8 per token, for integer or fp4 weights with float activations.
  kInt8,
  /// Weight-only (W8A16): floats of the device instead of quantized activations.
  k16Bit,
  /// e4m3 per token, for integer or fp4 weights with float activations.
  kFp8,
};
/// Parses `activations`: "bf16", "int8", "16bit" or "fp8", or "" for kStored. Errors: any other
/// word.
Result<ActivationPrecision> parse_activations(std::string_view text);
/// The word that parse_activations reads.
std::string_view name(ActivationPrecision precision);
/// Applies kInt8, kFp8 or k16Bit to the scheme; the weights do not change. Has no effect for
/// kStored and kBf16, and for schemes to which the precision does not apply. k16Bit ignores stored
/// activation scales.
void set_activations(DescribedMatrix& weights, ActivationPrecision precision);
void set_activations(DescribedWeights& weights, ActivationPrecision precision);

/// How 4-bit weights beside fp8 activations lie in memory.
enum class WeightResidency : uint8_t {
  kPacked,  ///< 4-bit codes, which kernels unpack
  kFolded,  ///< e4m3 codes of the same values: twice the bytes, fp8 products without unpacking
  kAuto,    ///< kFolded where it is faster and all of the model fits the free memory, else kPacked
};
/// Parses "packed", "folded" or "auto". Errors: any other word.
Result<WeightResidency> parse_weights(std::string_view text);
/// The word that parse_weights reads.
std::string_view name(WeightResidency residency);
/// DescribedMatrix::fold for both matrices of a layer. After an error, neither has changed.
Status fold(DescribedWeights& weights);

/// Online schemes by module, in command-line syntax: "scheme", or "pattern=scheme,pattern=none".
/// The first pattern that matches the module's name decides. The name is as in the file:
/// "model.layers.0.mlp.experts.3.up_proj". An entry without a pattern is the default. Without a
/// default, modules that match no pattern are not quantized. In a pattern `*` matches any text.
class QuantizationMap {
 public:
  /// Errors: an unknown online scheme, with the list of known ones; an empty pattern; two defaults.
  static Result<QuantizationMap> parse(std::string_view text);
  /// The scheme of the module's entry; nullopt: the module is not quantized.
  std::optional<Scheme> for_module(std::string_view module) const;
  /// True if the map has no entries.
  bool empty() const { return entries_.empty(); }

  struct Entry {
    std::string pattern;  ///< empty: the default, which is the last entry
    std::optional<Scheme> scheme;
  };
  const std::vector<Entry>& entries() const { return entries_; }
  /// The entry that decides for the module; nullptr if no entry matches.
  const Entry* entry_for(std::string_view module) const;
  /// Returns the scheme of the pattern "lm_head" and makes it none. Only this pattern quantizes the
  /// output layer, tied or not; files with a quantized one would have no reader.
  std::optional<Scheme> take_output();
  /// True if a module gets a scheme.
  bool has_schemes() const;

 private:
  std::vector<Entry> entries_;
};

/// An opened and checked folder with config.json and safetensors files, or a model in GGUF; no
/// weight is read yet. Each file stays open with one descriptor and is read, never memory-mapped.
/// If a file is cut short later, the call that reads it returns an error. Bytes changed in place
/// are not detected: replace a checkpoint by renaming. Several threads may call const methods of
/// one Checkpoint at once.
class Checkpoint {
 public:
  /// Opens a folder, a GGUF file, any file of a split GGUF model, or a folder with one model in
  /// GGUF and no config.json. Errors: nothing there; a missing or broken config.json; a missing or
  /// broken shard; a quant_method without a reader, or a GGUF architecture without a family, with
  /// the list of known ones; several models in GGUF, with their names.
  static Result<Checkpoint> open(const std::string& path);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  /// The path that was opened.
  const std::string& folder() const;
  /// The model class from config.json: "Qwen3MoeForCausalLM". For GGUF, that of the same model.
  const std::string& architecture() const;
  /// The tool that wrote the quantized tensors: "gptq", "compressed-tensors"; "gguf" for
  /// GGUF, "plain" if none.
  std::string_view producer() const;
  int64_t num_layers() const;
  /// Indices of the layers that hold experts, in order.
  std::vector<int64_t> moe_layers() const;

  /// The experts of one layer. Errors: a layer without experts; a missing, extra or wrongly typed
  /// tensor, by name; experts without a common scheme.
  Result<DescribedWeights> moe_layer(int64_t layer) const;
  /// The experts of one layer, quantized by `map` while they are read. An empty map quantizes
  /// nothing. Additional errors: a file that is already quantized; a map that does not fit the
  /// file.
  Result<DescribedWeights> moe_layer(int64_t layer, const QuantizationMap& map) const;
  /// The linear layers `modules`, stacked row-wise into one matrix. All of them read the same
  /// input.
  Result<DescribedMatrix> linear(const std::vector<std::string>& modules) const;
  /// A table whose rows are looked up, such as an embedding: floats, or blocks of GGUF as stored.
  Result<DescribedMatrix> table(const std::string& module) const;
  /// A router. It is quantized only if the file stores it quantized.
  Result<DescribedMatrix> router(const std::string& module) const;
  /// A vector of `size` floats (the weights of a norm), widened to f32; blocks of GGUF are
  /// dequantized. Errors: wrong shape, NaN, infinity.
  Result<std::vector<float>> vector(const std::string& name, int64_t size) const;
  /// Same for floats of any shape.
  Result<std::vector<float>> floats(const std::string& name,
                                    const std::vector<int64_t>& shape) const;
  /// A tensor's dtype and shape; its `data` is null.
  Result<TensorView> tensor(const std::string& name) const;
  /// The raw bytes of a tensor. Errors: a missing tensor; a NaN or infinite number; read errors.
  Result<std::vector<std::byte>> read(const std::string& name) const;
  bool has_tensor(const std::string& name) const;
  /// Tensors that no call of this object has requested yet, except buffers that no model reads.
  /// plan(), outline() and Model::load() each keep a separate record.
  std::vector<std::string> unclaimed() const;
  /// A Checkpoint of the same open files, with no tensors claimed.
  Checkpoint unclaimed_copy() const;

  /// What the files state and a model does not use, each as a phrase with its key: 4-bit
  /// activations, which keep more bits; FP8 keys and values without kv_cache fp8. Empty: nothing.
  std::vector<std::string> not_used() const;

  /// Size of all tensors, in bytes.
  int64_t total_bytes() const;

  /// Internal to the library: the parsed config and the tensors.
  struct State;
  const State& state() const { return *state_; }
  /// Internal: an unclaimed copy that families describe as the layer for multi-token prediction.
  Checkpoint next_tokens_copy() const;
  bool describes_next_tokens() const;

 private:
  struct Claims;
  explicit Checkpoint(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
  std::unique_ptr<Claims> claims_;  // the set grows as modules are described
};

/// A LoRA adapter for the experts and linear layers of a checkpoint.
struct LoraAdapter {
  int64_t rank = 0;                       ///< the largest rank of any expert's matrix
  std::map<int64_t, LoraWeights> layers;  ///< by layer index; layers without an adapter are absent
  /// Of linear layers outside the experts, by the module's name in the checkpoint.
  std::map<std::string, LoraPair> modules;

  /// Reads a PEFT folder at `path`: adapter_config.json and adapter_model.safetensors. The tensors
  /// are base_model.model.<module>.lora_A.weight [rank, K] and .lora_B.weight [N, rank]. A module
  /// is a single expert's projection (….experts.3.gate_proj), all experts of a layer (….experts)
  /// with A [E * rank, K] and B [N, rank * E], as target_parameters makes them, or a linear layer
  /// (….self_attn.q_proj). The scale is lora_alpha / rank, or lora_alpha / √rank with use_rslora.
  /// alpha_pattern changes alpha per module. Errors: another kind of adapter, or an adapter for a
  /// changed base (PiSSA), with its config key; an A without a B; shapes that do not fit the
  /// matrices; tensors for other modules.
  /// For a checkpoint in GGUF, `path` may be a GGUF file as llama.cpp's converter writes it. The
  /// scale is adapter.lora.alpha / rank.
  /// `inside`: a folder that the files must not leave by links; a file outside is not opened. "":
  /// any place.
  static Result<LoraAdapter> open(const std::string& path, const Checkpoint& checkpoint,
                                  const std::string& inside = "");
};

/// Options to write a quantized checkpoint. The numbers equal those of quantization at load time.
struct QuantizeOptions {
  /// "compressed-tensors"; "fp8": e4m3 blocks as DeepSeek and Qwen store them; "modelopt": mxfp8 as
  /// NVIDIA ModelOpt stores it.
  std::string format = "compressed-tensors";
  /// Maximum size of the tensors in one file, in bytes. A module is never split.
  int64_t max_shard_bytes = 5'000'000'000;
  Progress progress;  ///< in bytes of the tensors read
};

struct QuantizeReport {
  std::vector<Scheme> schemes;  ///< each scheme once
  int64_t num_quantized = 0;    ///< source tensors that were quantized
  int64_t num_left = 0;         ///< source tensors that were copied bit for bit
  int64_t bytes_before = 0;     ///< size of all source tensors
  int64_t bytes_after = 0;
  /// The files that hold the tensors.
  std::vector<std::string> files;
};

/// Writes `from` to the new folder `folder`, with modules quantized as `map` says. config.json
/// describes the quantization. All other files are copied, except other forms of the weights, the
/// README and hidden files. Memory holds one module at a time. The folder appears only when it is
/// complete: failed or cancelled work leaves nothing behind. A killed process leaves hidden folders
/// .NAME.partial-… beside `folder`; the next call for the same folder removes them.
/// Errors: `folder` is not empty, or lies inside the source; a source that is already quantized; a
/// map that does not fit the source or quantizes nothing; a scheme that the format cannot store
/// (kUnsupported); experts stored in one tensor, because no reader supports them in quantized form
/// (kUnsupported); NaN or infinite weights; kIo with the file that the system refused; kCancelled.
Result<QuantizeReport> quantize(const Checkpoint& from, const QuantizationMap& map,
                                const std::string& folder, const QuantizeOptions& options = {});

}  // namespace MORACLE_API
