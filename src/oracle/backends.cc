// The rows of backends.inc as values. CONTRIBUTING.md explains how to add one.
#include "layout/layout.h"
#include "oracle/backend.h"
#include "oracle/made.h"

namespace moracle {

namespace {

constexpr DType kAllWeights[] = {DType::kBF16, DType::kF16,    DType::kF32,   DType::kI8,
                                 DType::kI4,   DType::kF8E4M3, DType::kF4E2M1};
constexpr DType kBf16Only[] = {DType::kBF16};
constexpr DType kF32Only[] = {DType::kF32};
constexpr DType kBf16Exact[] = {DType::kBF16, DType::kI8, DType::kI4, DType::kF8E4M3,
                                DType::kF4E2M1};
constexpr DType kTensorCoreWeights[] = {DType::kBF16, DType::kF16,    DType::kI8,
                                        DType::kI4,   DType::kF8E4M3, DType::kF4E2M1};
constexpr DType kFourBits[] = {DType::kI4, DType::kF4E2M1};
constexpr DType kWide[] = {DType::kBF16, DType::kF16, DType::kI8, DType::kF8E4M3};
constexpr DType kAllActivations[] = {DType::kI8, DType::kF8E4M3};
// Features that stages around a plain grouped GEMM provide, independent of the GEMM.
constexpr Feature kStages = Feature::kExpertParallel | Feature::kBatched | Feature::kLora;
// Code pairs with a native multiply instruction: {activations, weights}.
constexpr Product kLikeProducts[] = {{DType::kI8, DType::kI8},
                                     {DType::kI8, DType::kI4},
                                     {DType::kI8, DType::kF4E2M1},
                                     {DType::kF8E4M3, DType::kI4, 32},
                                     {DType::kF8E4M3, DType::kF8E4M3, 32},
                                     {DType::kF8E4M3, DType::kF4E2M1, 32}};
// All pairs of codes. Kernels that scale the sum of 32 columns at once need whole blocks of them.
constexpr Product kBlockProducts[] = {{DType::kI8, DType::kI8},
                                      {DType::kI8, DType::kI4},
                                      {DType::kI8, DType::kF8E4M3},
                                      {DType::kI8, DType::kF4E2M1},
                                      {DType::kF8E4M3, DType::kI8, 32},
                                      {DType::kF8E4M3, DType::kI4, 32},
                                      {DType::kF8E4M3, DType::kF8E4M3, 32},
                                      {DType::kF8E4M3, DType::kF4E2M1, 32}};
// What the device and all its operations use.
constexpr GpuFeature kEveryOpenCl = GpuFeature::kSharedPointers | GpuFeature::kAtomics64;

Backend made(Backend row, const Kernels& kernels) {
  row.kernels = &kernels;
  return row;
}

}  // namespace

std::string_view name(const Backend& backend) {
  return backend.name;
}
Platform platform(const Backend& backend) {
  return backend.platform;
}
std::string_view summary(const Backend& backend) {
  return backend.summary;
}
bool is_built(const Backend& backend) {
  return backend.built();
}

std::span<const Backend> backends() {
#define MADE(kernel_set, ...) made({__VA_ARGS__}, kernel_set),
#define MADE_FOR_CUDA(kernel_set, ...) made({__VA_ARGS__}, kernel_set),
#define MADE_FOR_OPENCL(kernel_set, ...) made({__VA_ARGS__}, kernel_set),
  static const Backend kBackends[] = {
#include "oracle/backends.inc"
  };
#undef MADE
#undef MADE_FOR_CUDA
#undef MADE_FOR_OPENCL
  return kBackends;
}

}  // namespace moracle
