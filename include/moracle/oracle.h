// Who serves a layer, and why nobody else: a pure function of the layer, the machine and one table.
#pragma once

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
constexpr Isa operator|(Isa a, Isa b) {
  return static_cast<Isa>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
constexpr Isa operator&(Isa a, Isa b) {
  return static_cast<Isa>(static_cast<uint32_t>(a) & static_cast<uint32_t>(b));
}
/// The bits of `wanted` that `there` lacks.
constexpr Isa missing(Isa wanted, Isa there) {
  return static_cast<Isa>(static_cast<uint32_t>(wanted) & ~static_cast<uint32_t>(there));
}
/// "avx2 avx512_vnni"; "none".
std::string names(Isa set);

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
};

/// A machine as a value: what is there and what this build brought along.
struct Machine {
  std::string name;  ///< "here", or the profile's
  CpuInfo cpu;
  std::vector<GpuInfo> gpus;

  /// What this process can use, detected.
  static Machine here();
  /// Known machines, by name, for `explain --machine`.
  static std::span<const Machine> known();
  /// "here" or one of known(). Errors: names them.
  static Result<Machine> find(std::string_view name);
};

/// What has to be served, and what the user asked for.
struct Request {
  LayerSpec layer;
  int64_t max_num_tokens = 512;      ///< most tokens in one apply: workspaces are sized by it
  std::string backend = "auto";      ///< or a row's name
  std::optional<Platform> platform;  ///< only backends for this kind of device
};

using Maker = Result<std::unique_ptr<GroupedLinear>> (*)(KernelWeights&&, Device&);

/// One row of the table. Order is preference; the reference is last and serves everything.
struct Backend {
  std::string_view name;
  Platform platform = Platform::kCpu;
  std::string_view summary;
  Isa isa = Isa::kNone;                ///< CPU features that it cannot do without
  std::span<const DType> weights;      ///< weight formats that it reads
  std::span<const DType> activations;  ///< activation formats that it computes in, beside float
  bool zero_points = false;
  bool group_index = false;  ///< act-order
  bool bias = false;
  int group_multiple = 1;     ///< groups along K must divide by this
  int64_t max_integer_k = 0;  ///< longest exact integer sum; 0: any
  const Layout* layout = nullptr;
  Maker make = nullptr;  ///< nothing where this build does not have it
};

/// THE table.
std::span<const Backend> backends();

/// Why a backend cannot serve: which rule, what it needs, what is there.
struct Reason {
  std::string_view rule;
  std::string need;
  std::string have;
};

struct Verdict {
  const Backend* backend = nullptr;
  std::vector<Reason> reasons;  ///< every rule that objects; none: accepted
  bool accepted() const { return reasons.empty(); }
};

/// Everything decided before a weight is read.
struct Plan {
  const Backend* backend = nullptr;
  LayerSpec layer;  ///< with the scheme as it will be executed
  int64_t max_num_tokens = 0;
  int64_t weight_bytes = 0;  ///< packed, all experts
};

struct Selection {
  Request request;
  std::vector<Verdict> considered;  ///< every row, in order of preference
  std::optional<Plan> plan;         ///< nothing where no row serves

  /// The plan, or an error that carries the whole trail. Never another backend than asked for.
  Result<Plan> chosen() const;
};

Selection select(const Request& request, const Machine& machine,
                 std::span<const Backend> table = backends());

/// The selection for a person: one line per row with its first reason, or all of them.
std::string explain(const Selection& selection, bool all_reasons = true);

}  // namespace moracle
