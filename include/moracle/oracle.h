// Who serves a layer, and why nobody else: a pure function of the layer, the machine and one table.
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moracle/base.h"
#include "moracle/checkpoint.h"

namespace moracle {

struct Layout;
struct KernelWeights;
class Device;
class GroupedLinear;

/// A kind of device that kernels are written for.
enum class Platform : uint8_t { kCpu, kCuda, kOpenCl };
std::string_view name(Platform platform);

/// Instruction sets that kernels choose by. Each bit is one CPU feature, usable by this process.
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

/// What an OpenCL device can do; a kernel asks for this, never for a vendor.
enum class GpuFeature : uint32_t {
  kNone = 0,
  kSubgroups = 1 << 0,
  kIntegerDot = 1 << 1,  ///< products of four int8 in one instruction
  kFp16 = 1 << 2,
  kMatrix = 1 << 3,  ///< subgroup matrix products (Intel's DPAS)
};

/// What a request may ask of a backend beyond plain matrices.
enum class Feature : uint32_t {
  kNone = 0,
  kZeroPoints = 1 << 0,
  kActOrder = 1 << 1,  ///< groups that follow another order than left to right
  kBias = 1 << 2,
  kDeterministic = 1 << 3,   ///< a token's bits depend on nothing but the token
  kExpertParallel = 1 << 4,  ///< only some of the layer's experts are here
  kBatched = 1 << 5,         ///< activations as [E, max_tokens, H] with counts
  kLora = 1 << 6,
};

template <class Set>
concept FlagSet =
    std::same_as<Set, Isa> || std::same_as<Set, GpuFeature> || std::same_as<Set, Feature>;
template <FlagSet Set>
constexpr Set operator|(Set a, Set b) {
  return static_cast<Set>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
template <FlagSet Set>
constexpr Set operator&(Set a, Set b) {
  return static_cast<Set>(static_cast<uint32_t>(a) & static_cast<uint32_t>(b));
}
/// The bits of `wanted` that `there` lacks.
template <FlagSet Set>
constexpr Set missing(Set wanted, Set there) {
  return static_cast<Set>(static_cast<uint32_t>(wanted) & ~static_cast<uint32_t>(there));
}
/// "avx2 avx512_vnni"; "subgroups fp16"; "zero points, biases". Nothing: "none".
std::string names(Isa set);
std::string names(GpuFeature set);
std::string names(Feature set);

struct CpuInfo {
  std::string model;
  Isa isa = Isa::kNone;
  int threads = 1;           ///< that this process may use: affinity and cgroup quota
  int64_t memory_bytes = 0;  ///< installed, or the cgroup's limit
};

struct GpuInfo {
  Platform platform = Platform::kCuda;
  int index = 0;
  std::string model;
  int capability = 0;  ///< CUDA compute capability x 10: 90 for 9.0; 0 elsewhere
  int64_t memory_bytes = 0;
  int64_t shared_memory_bytes = 0;  ///< that one block (work-group) may use
  GpuFeature features = GpuFeature::kNone;
  bool is_cpu = false;  ///< an OpenCL device that is the host's own cores
};

/// What a row took for one layer at so many tokens, in the median.
struct TunedTime {
  std::string backend;
  int64_t num_tokens = 0;
  double us = 0;
};
/// The rows that were measured for a layer (see `moracle tune`).
struct TunedLayer {
  std::string layer;  ///< describe(LayerSpec), and what else was asked for: equal ones share it
  std::vector<TunedTime> times;
};

/// A machine as a value: what is there, what this build brought along, and what was measured.
struct Machine {
  std::string name;  ///< "here", or the profile's
  CpuInfo cpu;
  std::vector<GpuInfo> gpus;
  std::vector<TunedLayer> tuned;  ///< empty: the table's order decides
  /// The build that is asked about has the kernels of every platform; false: it is this one.
  bool every_platform = false;

  /// What this process can use, detected.
  static Machine here();
  /// Known machines, by name, for `explain --machine`: with builds for every platform.
  static std::span<const Machine> known();
  /// "here" or one of known(). Errors: names them.
  static Result<Machine> find(std::string_view name);
};

/// How activations reach the experts.
enum class ActivationFormat : uint8_t {
  kStandard,  ///< [num_tokens, H] with ids and weights per token
  kBatched,   ///< [E, max_tokens, H] with a count per expert
};

/// Which rank holds which experts, where a layer is spread over several.
enum class Placement : uint8_t {
  kLinear,      ///< neighbours together
  kRoundRobin,  ///< expert e on rank e mod ep_size
};
std::string_view name(Placement placement);
/// "linear" or "round-robin". Errors: anything else.
Result<Placement> parse_placement(std::string_view text);

/// Which of a layer's experts are here, and under which local number.
class ExpertMap {
 public:
  /// All of them, under their own numbers.
  static ExpertMap all(int64_t num_experts);
  /// The experts of rank `ep_rank`; where `ep_size` does not divide, the first ranks hold one more.
  /// Errors: fewer than one expert or rank, a rank outside [0, ep_size).
  static Result<ExpertMap> place(int64_t num_experts, int64_t ep_size, int64_t ep_rank,
                                 Placement placement = Placement::kLinear);
  /// Any map: `local[e]` is expert e's local number, or -1 where it is elsewhere. Errors: local
  /// numbers that leave one out or come twice.
  static Result<ExpertMap> from(std::vector<int32_t> local);

  int64_t num_experts() const { return static_cast<int64_t>(local_.size()); }
  int64_t num_local() const { return static_cast<int64_t>(global_.size()); }
  /// True where every expert is here under its own number.
  bool is_identity() const;
  const std::vector<int32_t>& local() const { return local_; }    ///< [num_experts]
  const std::vector<int32_t>& global() const { return global_; }  ///< [num_local]
  bool operator==(const ExpertMap&) const = default;

 private:
  std::vector<int32_t> local_, global_;
};
/// That the maps of all ranks together hold each expert exactly once. Errors: the first that is
/// missing or held twice, and by whom.
Status check_cover(std::span<const ExpertMap> ranks);

/// How one layer is spread over processes.
struct Parallelism {
  int64_t ep_size = 1;  ///< ranks that share the experts
  int64_t ep_rank = 0;
  Placement placement = Placement::kLinear;
  std::optional<ExpertMap> expert_map;  ///< of this rank, instead of `placement`
  ActivationFormat format = ActivationFormat::kStandard;

  /// This rank's map for a layer of so many experts. Errors: as ExpertMap::place; a map of another
  /// number of experts.
  Result<ExpertMap> map(int64_t num_experts) const;
};

/// What has to be served, and what the user asked for.
struct Request {
  LayerSpec layer;
  Parallelism parallel;
  /// Most tokens in one apply (of one expert, where they come batched): workspaces are sized by it.
  int64_t max_num_tokens = 512;
  int64_t lora_rank = 0;       ///< largest rank of any adapter; 0: none
  int64_t max_adapters = 1;    ///< at once, where there are any
  bool deterministic = false;  ///< a token's bits depend on nothing but the token
  /// Kernels may round activations that stay floats to bf16 before they multiply: some are twice as
  /// fast then (KernelPlan::product_bits says which do).
  bool bf16_activations = false;
  std::string backend = "auto";      ///< or a row's name; see BackendMap for several layers
  std::optional<Platform> platform;  ///< only backends for this kind of device
  std::optional<int> device_index;   ///< only this one of several GPUs
};

/// What `--backend` patterns may name: one linear layer, or several that are multiplied together.
struct ModuleNames {
  std::string name;                  ///< "lm_head", "model.layers.0.mlp.experts"
  std::vector<std::string> members;  ///< "….experts.3.up_proj"; none: the name stands for all
};

/// Backends by module, as a user types them: "auto", a row's name, or "pattern=name,pattern=name".
/// Patterns are those of QuantizationMap: the first that matches a module's full name
/// ("model.layers.0.self_attn.q_proj") decides, none means auto, and `*` stands for any text.
class BackendMap {
 public:
  BackendMap() = default;
  /// Errors: a name that no row of the table has, listing those that exist; an empty pattern.
  static Result<BackendMap> parse(std::string_view text);
  /// "auto" or a row's name, of a module with this name.
  std::string_view for_name(std::string_view name) const;
  /// The same for modules that are multiplied together; the name of all stands for each of them.
  /// Errors: they would get different rows; names the modules that have to agree.
  Result<std::string> for_module(const ModuleNames& module) const;
  /// Error naming the first pattern that matches none of `modules`: it is most likely misspelt.
  Status check_used(std::span<const ModuleNames> modules) const;

 private:
  struct Entry {
    std::string pattern;
    std::string backend;
  };
  std::string_view for_member(std::string_view whole, std::string_view member) const;
  std::vector<Entry> entries_;
};

/// How one matrix of a layer is multiplied; part of the plan. Numbers are first and last ones.
struct KernelUse {
  int64_t from_tokens = 1;  ///< num_tokens of an apply in which it may run
  std::string name;
  int64_t to_tokens = 0;  ///< 0: any number
  int64_t from_rows = 1;  ///< of an expert that it multiplies, in one apply
  int64_t to_rows = 0;    ///< 0: any number

  /// Whether it may multiply an expert with so many rows in an apply of so many tokens.
  bool may_run(int64_t num_tokens, int64_t rows) const {
    return num_tokens >= from_tokens && (to_tokens == 0 || num_tokens <= to_tokens) &&
           rows >= from_rows && (to_rows == 0 || rows <= to_rows);
  }
};
/// "i4 codes, f32 products and sums, avx2; experts with up to 4 rows"
std::string describe(const KernelUse& use);

struct KernelPlan {
  DType input_dtype = DType::kF32;  ///< activations as the kernel reads them
  std::vector<KernelUse> kernels;   ///< every kernel that may run; no other will
  int64_t scratch_bytes = 0;        ///< of the device, shared by all kernels that run in turn
  bool deterministic = false;       ///< a row's bits do not depend on the rows beside it
  int product_bits = 24;            ///< significant bits that float activations keep in products
  bool activates = false;  ///< may apply the activation to what it computes, before storing it
  bool quantizes = false;  ///< may then quantize that, where the scheme does
  bool combines = false;   ///< may add its rows, weighed, to the tokens that they belong to
  bool in_parts = false;   ///< may take some of the rows at a time
};

/// What a kernel's plan follows from.
struct KernelRequest {
  const MatrixShape& shape;
  const Scheme& scheme;
  bool deterministic = false;
  bool bf16_activations = false;  ///< see Request
  int64_t max_rows = 0;           ///< of activations in one run
  /// What follows the matrix; null: nothing.
  const ActivationSpec* activation = nullptr;
  int64_t max_num_tokens = 1;  ///< in one apply
  int64_t min_num_tokens = 1;  ///< likewise; batched activations always come as many as planned
  int64_t rows_per_token = 1;  ///< of an apply, at most: top_k; batched, the experts that are here
  int64_t expert_rows = 1;     ///< of these, rows that one expert may get
  int64_t num_experts = 1;     ///< that are here
};

/// The code behind a row, which its kernel file defines.
struct Kernels {
  /// In every build; null only where another processor is compiled for.
  KernelPlan (*plan)(const KernelRequest& request, const Machine& machine);
  /// Makes what `plan` says, nothing else. Null: this build does not have it.
  Result<std::unique_ptr<GroupedLinear>> (*make)(KernelWeights&& weights, const KernelPlan& plan,
                                                 Device& device);
};

/// Codes of activations times codes of weights.
struct Product {
  DType activation, weight;
  int group_multiple = 1;  ///< groups of activations along K must divide by this
};

/// One row of the table. Order is preference; the reference is last and serves everything.
struct Backend {
  std::string_view name;
  Platform platform = Platform::kCpu;
  std::string_view summary;
  bool planned = false;  ///< listed, its kernel not yet written

  // What it needs of the machine.
  Isa isa = Isa::kNone;    ///< CPU features that it cannot do without
  int min_capability = 0;  ///< CUDA compute capability x 10, from ...
  int max_capability = 0;  ///< ... to, or 0: any later one
  int fp8_capability = 0;  ///< from which it multiplies fp8 activations
  int64_t shared_memory_bytes = 0;
  GpuFeature gpu_features = GpuFeature::kNone;

  // What it serves.
  std::span<const DType> weights;      ///< weight formats that it reads
  std::span<const DType> activations;  ///< activation formats that it computes in, beside float
  std::span<const Product> products;   ///< of codes that it multiplies; empty: all of these
  Feature features = Feature::kNone;
  std::span<const Activation> fused_activations;  ///< empty: a stage of its own, so any
  int group_multiple = 1;                         ///< groups along K must divide by this
  int size_multiple = 1;       ///< hidden and intermediate sizes must divide by this
  int64_t max_num_tokens = 0;  ///< 0: any
  int64_t max_integer_k = 0;   ///< longest exact integer sum; 0: any

  const Layout* layout = nullptr;
  const Kernels* kernels = nullptr;  ///< nothing where the row is planned

  /// Whether this build can make its kernels.
  bool built() const { return kernels != nullptr && kernels->make != nullptr; }
};

/// THE table.
std::span<const Backend> backends();

/// An exception to the table's order.
struct Preference {
  std::string_view name;
  std::string_view first;  ///< rows whose names begin so are asked before ...
  std::string_view over;   ///< ... rows whose names begin so
  bool (*when)(const Request& request, const Machine& machine);
  std::string_view reason;
};
std::span<const Preference> preferences();

/// Why a backend cannot serve: which rule, what it needs, what is there.
struct Reason {
  std::string_view rule;
  std::string need;
  std::string have;
};

struct Verdict {
  const Backend* backend = nullptr;
  std::vector<Reason> reasons;             ///< every rule that objects; none: accepted
  const Preference* moved_back = nullptr;  ///< the exception that put it behind others
  std::vector<TunedTime> tuned;            ///< what was measured here, of an accepted row
  bool fastest = false;                    ///< and by that it comes before the others
  bool accepted() const { return reasons.empty(); }
};

struct MatrixPlan {
  MatrixShape shape;
  int64_t weight_bytes = 0;  ///< packed, all experts that are here
  KernelPlan kernel;
};

/// Everything decided before a weight is read.
struct Plan {
  const Backend* backend = nullptr;
  LayerSpec layer;          ///< with the scheme as it will be executed
  std::string_view layout;  ///< how the weights are stored
  ExpertMap experts;        ///< which of the layer's are here
  ActivationFormat format = ActivationFormat::kStandard;
  int64_t max_num_tokens = 0;
  int64_t lora_rank = 0;                 ///< 0: no adapters
  int64_t max_adapters = 0;              ///< that fit at once
  DType activation_dtype = DType::kF32;  ///< between the stages
  std::vector<MatrixPlan> matrices;      ///< w13 and w2, or a linear layer's only one
  int64_t weight_bytes = 0;              ///< packed, all experts that are here, all matrices
  int64_t adapter_bytes = 0;             ///< of all adapters
  int64_t workspace_bytes = 0;           ///< of one apply; layers that run in turn share it
  int64_t scratch_bytes = 0;             ///< shared likewise
  /// Rows (a token's once for each of its experts) that go through both matrices before the next
  /// ones do, so that what is between stays in the caches; at most all of them.
  int64_t part_rows = 0;

  /// Rows of the activations in one apply at most, and how many experts each goes to.
  int64_t max_slots() const;
  int64_t top_k() const { return format == ActivationFormat::kBatched ? 1 : layer.top_k; }
};

struct Selection {
  Request request;
  std::vector<Verdict> considered;  ///< every row, in the order in which they were asked
  std::optional<Plan> plan;         ///< nothing where no row serves

  /// The plan, or an error that carries the whole trail. Never another backend than asked for.
  Result<Plan> chosen() const;
};

/// Asks every rule about every row and chooses the first row without objection, or of those that
/// machine.tuned has times for, the fastest.
Selection select(const Request& request, const Machine& machine,
                 std::span<const Backend> table = backends());

/// The selection for a person: one line per row with its first reason, or all of them.
std::string explain(const Selection& selection, bool all_reasons = true);
/// The plan for a person: layout, sizes, and the kernels of each matrix.
std::string describe(const Plan& plan);

}  // namespace moracle
