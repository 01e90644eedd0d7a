// The backend table.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "moracle/oracle.h"
#include "oracle/kernel_plan.h"

namespace moracle {

struct Layout;

/// Backend features that a request may need beyond plain matrices.
enum class Feature : uint32_t {
  kNone = 0,
  kZeroPoints = 1 << 0,
  kActOrder = 1 << 1,  ///< act-order: columns belong to groups in another order than left to right
  kBias = 1 << 2,
  kDeterministic = 1 << 3,   ///< the bits of a token's result depend only on that token
  kExpertParallel = 1 << 4,  ///< this process holds only some of the layer's experts
  kBatched = 1 << 5,         ///< activations are [E, max_tokens, H] with a token count per expert
  kLora = 1 << 6,
  kStoredInt8 = 1 << 7,  ///< int8 activations with a stored scale, whose codes reach -128
};

template <>
inline constexpr bool kIsFlagSet<Feature> = true;
/// "zero points, biases".
std::string names(Feature set);

/// A dtype pair of one product: activation codes times weight codes.
struct Product {
  DType activation, weight;
  /// The activation group size along K must be a multiple of this.
  int group_multiple = 1;
};

/// One row of the backend table. Rows are in order of preference. The last row is the reference and
/// serves every request.
struct Backend {
  std::string_view name;
  Platform platform = Platform::kCpu;
  std::string_view summary;

  // Requirements on the machine.
  Isa isa = Isa::kNone;    ///< required CPU features
  int min_capability = 0;  ///< minimum CUDA compute capability x 10
  int max_capability = 0;  ///< maximum compute capability x 10; 0: no limit
  int64_t shared_memory_bytes = 0;
  GpuFeature gpu_features = GpuFeature::kNone;
  Library libraries = Library::kNone;

  // Supported layers.
  bool linear_only = false;            ///< serves one dense matrix, not the experts of a layer
  std::span<const DType> weights;      ///< supported weight dtypes
  std::span<const DType> activations;  ///< supported activation dtypes in addition to floats
  std::span<const Product> products;   ///< supported dtype pairs of codes; empty: all pairs
  Feature features = Feature::kNone;
  /// The group size along K must be a multiple of this.
  int group_multiple = 1;
  /// Hidden and intermediate sizes must be multiples of this.
  int size_multiple = 1;
  int64_t max_integer_k = 0;  ///< largest K with an exact integer sum; 0: no limit

  const Layout* layout = nullptr;
  const Kernels* kernels = nullptr;

  /// True if this build contains the kernels.
  bool built() const { return kernels != nullptr && kernels->make != nullptr; }
};

std::span<const Backend> backends();

/// Selects from another table, as select(request, machine) does from backends().
Selection select(const Request& request, const Machine& machine, std::span<const Backend> table);

}  // namespace moracle
