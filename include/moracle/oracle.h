// The oracle selects a backend for a layer and explains why it rejects the others. The selection is
// a pure function of the layer, the machine and one table.
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moracle/base.h"
#include "moracle/layer.h"

namespace moracle MORACLE_API {

/// A kind of device that has its own kernels.
enum class Platform : uint8_t { kCpu, kCuda, kOpenCl };
std::string_view name(Platform platform);

/// CPU instruction sets that select kernels. Each bit is one CPU feature that this process can use.
enum class Isa : uint32_t {
  kNone = 0,
  kAvx2 = 1 << 0,  ///< with FMA and F16C, which every CPU with AVX2 has
  kAvxVnni = 1 << 1,
  kAvx512 = 1 << 2,  ///< F, BW, VL, DQ
  kAvx512Vnni = 1 << 3,
  kAvx512Bf16 = 1 << 4,
  kAvx512Fp16 = 1 << 5,
  kAmxInt8 = 1 << 6,
  kAmxBf16 = 1 << 7,
};

/// Capabilities of an OpenCL device. Kernels depend on these bits, never on the vendor.
enum class GpuFeature : uint32_t {
  kNone = 0,
  kSubgroups = 1 << 0,
  kMatrix = 1 << 1,          ///< subgroup matrix products (Intel's DPAS)
  kSharedPointers = 1 << 2,  ///< shared virtual memory: host and kernels use the same pointers
  kAtomics64 = 1 << 3,       ///< atomic minimum of 64-bit numbers
  kCpuCores = 1 << 4,        ///< the device is the host's CPU
};

/// Vendor libraries that kernels call. They are found at run time, not linked.
enum class Library : uint32_t {
  kNone = 0,
  kCublasLt = 1 << 0,
};

template <class Set>
inline constexpr bool kIsFlagSet =
    std::same_as<Set, Isa> || std::same_as<Set, GpuFeature> || std::same_as<Set, Library>;
template <class Set>
concept FlagSet = kIsFlagSet<Set>;
template <FlagSet Set>
constexpr Set operator|(Set a, Set b) {
  return static_cast<Set>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
template <FlagSet Set>
constexpr Set operator&(Set a, Set b) {
  return static_cast<Set>(static_cast<uint32_t>(a) & static_cast<uint32_t>(b));
}
/// The bits of `wanted` that are not in `there`.
template <FlagSet Set>
constexpr Set missing(Set wanted, Set there) {
  return static_cast<Set>(static_cast<uint32_t>(wanted) & ~static_cast<uint32_t>(there));
}
/// "avx2 avx512_vnni"; "subgroups matrix". "none" for an empty set.
std::string names(Isa set);
std::string names(GpuFeature set);
std::string names(Library set);

/// The measured rate of a multiply instruction on one thread. A product and its addition count as
/// two operations.
struct InstructionRate {
  std::string_view name;  ///< "bf16 avx512_bf16", as in the limits that `bench` measures
  double ops_per_second = 0;
};

struct CpuInfo {
  std::string model;
  Isa isa = Isa::kNone;
  /// CPU threads that this process may use, limited by CPU affinity and cgroup quota.
  int threads = 1;
  int64_t memory_bytes = 0;  ///< installed memory, or the cgroup's limit
  /// Plans choose between instructions by these rates. Machine::here() measures them once per
  /// process, in about a millisecond. Empty: unknown, and features alone decide.
  std::vector<InstructionRate> rates = {};
};

struct GpuInfo {
  Platform platform = Platform::kCuda;
  int index = 0;
  std::string model;
  /// CUDA compute capability x 10: 90 means 9.0. 0 on other platforms.
  int capability = 0;
  int64_t memory_bytes = 0;
  int64_t shared_memory_bytes = 0;  ///< available to one block (work-group)
  GpuFeature features = GpuFeature::kNone;
  int64_t max_allocation_bytes = 0;  ///< largest single allocation; 0: all of the memory
};

/// The median time of one backend for one layer at `num_tokens` tokens, in microseconds.
struct TunedTime {
  std::string backend;
  int64_t num_tokens = 0;
  double us = 0;
};
/// Measured backends for a layer (see `moracle tune`).
struct TunedLayer {
  /// describe(LayerSpec) plus the request's other properties that change the times. Layers with
  /// equal text share the times.
  std::string layer;
  std::vector<TunedTime> times;
};

/// A machine as a value: its hardware, the platforms of the build, and measured times.
struct Machine {
  std::string name;  ///< "here", or the name of the profile
  CpuInfo cpu;
  std::vector<GpuInfo> gpus;
  std::vector<TunedLayer> tuned;  ///< empty: the table's order decides
  /// True: assume a build with the kernels of every platform. False: use this build's kernels.
  bool every_platform = false;
  Library libraries = Library::kNone;  ///< found on this machine
  /// Why the driver for NVIDIA GPUs gives none, such as its age; empty if it gives some, or without
  /// a driver.
  std::string cuda_fault = {};

  /// The hardware that this process can use, detected at run time.
  static Machine here();
  /// Known machines by name, for plans without the hardware. They assume builds for every platform.
  static std::span<const Machine> known();
  /// "here" or one of known(). Errors: an unknown name, with the list of known ones.
  static Result<Machine> find(std::string_view name);
};

/// The memory format of the activations that enter the experts.
enum class ActivationFormat : uint8_t {
  kStandard,  ///< [num_tokens, H] with expert ids and weights per token
  kBatched,   ///< [E, max_tokens, H] with a token count per expert
};

/// Distribution of a layer's experts over several ranks.
enum class Placement : uint8_t {
  kLinear,      ///< each rank holds consecutive experts
  kRoundRobin,  ///< expert e on rank e mod ep_size
};
std::string_view name(Placement placement);
/// Parses "linear" or "round-robin". Errors: any other text.
Result<Placement> parse_placement(std::string_view text);

/// Maps a layer's experts to local indices on this rank.
class ExpertMap {
 public:
  /// All experts, each under its own index. `num_experts`: 0 to kMaxLayerSize.
  static ExpertMap all(int64_t num_experts);
  /// The experts of rank `ep_rank`. If `ep_size` does not divide `num_experts`, the first ranks
  /// hold one more. Errors: experts outside [1, kMaxLayerSize]; no rank; a rank outside [0,
  /// ep_size).
  static Result<ExpertMap> place(int64_t num_experts, int64_t ep_size, int64_t ep_rank,
                                 Placement placement = Placement::kLinear);
  /// A custom map: `local[e]` is the local index of expert e, or -1 if another rank holds it.
  /// Errors: a local index that is missing or occurs twice.
  static Result<ExpertMap> from(std::vector<int32_t> local);

  int64_t num_experts() const { return static_cast<int64_t>(local_.size()); }
  int64_t num_local() const { return static_cast<int64_t>(global_.size()); }
  /// True if this rank holds every expert under its own index.
  bool is_identity() const;
  const std::vector<int32_t>& local() const { return local_; }    ///< [num_experts]
  const std::vector<int32_t>& global() const { return global_; }  ///< [num_local]
  bool operator==(const ExpertMap&) const = default;

 private:
  std::vector<int32_t> local_, global_;
};
/// Checks that the maps of all ranks together hold each expert, and where `one_each` exactly once.
/// Errors: the first missing or duplicate expert, with the ranks that hold it.
Status check_cover(std::span<const ExpertMap> ranks, bool one_each = true);

/// Expert parallelism: how one layer is distributed over processes.
struct Parallelism {
  int64_t ep_size = 1;  ///< ranks that share the experts
  int64_t ep_rank = 0;
  Placement placement = Placement::kLinear;
  std::optional<ExpertMap> expert_map;  ///< this rank's map; replaces `placement`
  ActivationFormat format = ActivationFormat::kStandard;

  /// This rank's map for a layer with `num_experts` experts. Errors: as ExpertMap::place; a map for
  /// another number of experts.
  Result<ExpertMap> map(int64_t num_experts) const;
};

/// The layer to serve and the user's options.
struct Request {
  LayerSpec layer;
  Parallelism parallel;
  /// Maximum tokens in one apply; with the batched format, maximum tokens per expert. Workspace
  /// sizes depend on it.
  int64_t max_num_tokens = 512;
  int64_t lora_rank = 0;       ///< largest rank of any adapter; 0: none
  int64_t max_adapters = 1;    ///< maximum number of adapters at once; used if lora_rank > 0
  bool deterministic = false;  ///< the bits of a token's result depend only on that token
  /// Kernels may round float activations to bf16 before the product, or to int16 with a scale for
  /// each group of columns. This makes some kernels twice as fast (see MatrixPlan::product_bits).
  bool bf16_activations = false;
  std::string backend = "auto";      ///< or a backend's name; see BackendMap for several layers
  std::optional<Platform> platform;  ///< use only backends for this platform
  std::optional<int> device_index;   ///< use only the GPU with this index
};

/// Names that a BackendMap pattern can match: one linear layer, or several layers that are
/// multiplied together.
struct ModuleNames {
  std::string name;  ///< "lm_head", "model.layers.0.mlp.experts"
  /// "….experts.3.up_proj". Empty: `name` is the only name.
  std::vector<std::string> members;
};

/// Backends by module, in command-line syntax: "auto", a backend's name, or
/// "pattern=name,pattern=name". Patterns work as in QuantizationMap: the first pattern that matches
/// the module's full name ("model.layers.0.self_attn.q_proj") decides. `*` matches any text. A
/// module without a match gets "auto".
class BackendMap {
 public:
  BackendMap() = default;
  /// Errors: an unknown backend, with the list of known ones; an empty pattern.
  static Result<BackendMap> parse(std::string_view text);
  /// "auto" or a backend's name, for the module `name`.
  std::string_view for_name(std::string_view name) const;
  /// The backend for modules that are multiplied together. A pattern that matches the common name
  /// applies to each member. Errors: the members would get different backends; the error names
  /// these modules.
  Result<std::string> for_module(const ModuleNames& module) const;
  /// Error: the first pattern that matches none of `modules`; it is most likely misspelt.
  Status check_used(std::span<const ModuleNames> modules) const;
  /// The map in the syntax of parse().
  std::string text() const;

 private:
  struct Entry {
    std::string pattern;
    std::string backend;
  };
  std::string_view for_member(std::string_view whole, std::string_view member) const;
  std::vector<Entry> entries_;
};

/// The numbers of tokens and rows for which a kernel may run. Both ends are inclusive.
struct KernelRange {
  int64_t from_tokens = 1;  ///< minimum num_tokens of the apply
  int64_t to_tokens = 0;    ///< maximum num_tokens; 0: no limit
  int64_t from_rows = 1;    ///< minimum rows of one expert in one apply
  int64_t to_rows = 0;      ///< maximum rows; 0: no limit

  /// True if the kernel may run in an apply of `num_tokens` tokens.
  bool may_run(int64_t num_tokens) const {
    return num_tokens >= from_tokens && (to_tokens == 0 || num_tokens <= to_tokens);
  }
  /// The same for an expert with `rows` rows.
  bool may_run(int64_t num_tokens, int64_t rows) const {
    return may_run(num_tokens) && rows >= from_rows && (to_rows == 0 || rows <= to_rows);
  }
};

/// One kernel that may run for a matrix.
struct KernelUse {
  std::string name;
  KernelRange range;
};
/// A description: "i4 codes, f32 products and sums, avx2; experts with up to 4 rows".
std::string describe(const KernelUse& use);

/// A row of the backend table, in src/oracle/backend.h.
struct Backend;
/// The name that `--backend` takes.
std::string_view name(const Backend& backend);
Platform platform(const Backend& backend);
std::string_view summary(const Backend& backend);
/// True if this build contains the kernels.
bool is_built(const Backend& backend);

/// An exception to the table's order, in src/oracle/preferences.h.
struct Preference;

/// Why a backend cannot serve a request: the rule, its requirement, and the actual value.
struct Reason {
  std::string_view rule;
  std::string need;
  std::string have;
};

struct Verdict {
  const Backend* backend = nullptr;
  std::vector<Reason> reasons;             ///< all objections of the rules; empty: accepted
  const Preference* moved_back = nullptr;  ///< what moved this row behind others; null: nothing
  std::vector<TunedTime> tuned;            ///< times measured on this machine, for an accepted row
  bool fastest = false;                    ///< its times move it before the other accepted rows
  bool accepted() const { return reasons.empty(); }
};

struct KernelPlan;

struct MatrixPlan {
  MatrixShape shape;
  int64_t weight_bytes = 0;         ///< packed weights of all local experts
  DType input_dtype = DType::kF32;  ///< dtype of the activations that the kernels read
  std::vector<KernelUse> kernels;   ///< every kernel that may run; no other kernel runs
  /// Significant bits of float activations in products, or of weights, if these have fewer.
  int product_bits = 24;
  /// Why the plan multiplies in this type, if the CPU's measured rates or a permission to round
  /// decided. Empty: they did not.
  std::string reason;
  std::shared_ptr<const KernelPlan> kernel;  ///< for the library, in src/oracle/kernel_plan.h
};

/// All decisions that are made before a weight is read.
struct Plan {
  const Backend* backend = nullptr;
  LayerSpec layer;          ///< with the scheme that is executed
  std::string_view layout;  ///< name of the packed weight layout
  ExpertMap experts;        ///< the layer's experts on this rank
  ActivationFormat format = ActivationFormat::kStandard;
  int64_t max_num_tokens = 0;
  int64_t lora_rank = 0;                 ///< maximum rank; 0: no adapters
  int64_t max_adapters = 0;              ///< maximum number of adapters at once
  DType activation_dtype = DType::kF32;  ///< dtype of activations between stages
  std::vector<MatrixPlan> matrices;      ///< w13 and w2, or only w13 for a linear layer
  int64_t weight_bytes = 0;              ///< packed weights of all local experts and all matrices
  int64_t adapter_bytes = 0;             ///< all adapters
  /// Workspace of one apply. Layers that run one after another share it.
  int64_t workspace_bytes = 0;
  /// Kernel scratch, shared like the workspace.
  int64_t scratch_bytes = 0;
  /// Number of rows that pass through both matrices before the next rows start, at most all rows. A
  /// token has one row per selected expert. This keeps the intermediate activations in the cache.
  int64_t chunk_rows = 0;

  /// max_slots(): maximum activation rows in one apply. top_k(): experts per row.
  int64_t max_slots() const;
  int64_t top_k() const { return format == ActivationFormat::kBatched ? 1 : layer.top_k; }
  /// Bytes of the largest single allocation. All local experts of a matrix are one.
  int64_t largest_allocation() const;
};

struct Selection {
  Request request;
  std::vector<Verdict> considered;  ///< every row, in order of evaluation
  std::optional<Plan> plan;         ///< nullopt if no row serves the request

  /// The plan, or an error with all reasons. Never falls back from a backend that the user named. A
  /// layer that makes no sense gives the error of check(layer).
  Result<Plan> chosen() const;
};

/// Checks every row of the backend table against every rule and chooses the first row without
/// objections. If machine.tuned has times for the accepted rows, the fastest of these comes first.
Selection select(const Request& request, const Machine& machine);

/// The choice, then each row with its reasons; or with the first, other devices in one line.
std::string explain(const Selection& selection, bool all_reasons = true);
/// The selection as one JSON object with every reason: {"layer", "scheme", "chosen",
/// "weight_bytes", "considered", "plan"}, with the values of `moracle explain --json`.
std::string explain_json(const Selection& selection);
/// The reasons of the matrices, each text once.
std::vector<std::string> reasons(std::span<const MatrixPlan> matrices);
/// The plan as text for users: layout, sizes, and the kernels of each matrix.
std::string describe(const Plan& plan);

}  // namespace MORACLE_API
