// Backend "cuda-sm80": grouped GEMM on tensor cores (mma.sync), for every GPU from compute
// capability 8.0 on. Weights are in layout mma16. Outputs are sums over groups g of columns. s is
// the weight scale of a group and s_x its activation scale, where the scheme has them:
//
//   int8 activations            Σ_g s · Σ q_x · (q - z), the inner sum exact in i32; times s_x
//   fp8 activations             Σ_g s · s_x · Σ q_x · q, codes as f16
//   float activations (bf16)    Σ_g s · Σ x · (q - z), codes as bf16; f16 as the sum of two bf16
//
// Products are exact, float sums are f32. A tile is 64 or 128 outputs of one expert for 8 to 128 of
// its rows. With a fused activation, a tile holds gates beside the outputs that they multiply. CTAs
// are persistent. With few rows, reading the weights is the bottleneck. With many rows, the rate of
// mma.sync is, which on Hopper is some 60 % of wgmma's.
#include "base/text.h"
#include "kernels/check_ops.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_makers.h"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/gemm_sm80/mma_choice.h"
#include "kernels/cuda/operands/scaling_plan.h"
#include "kernels/cuda/tiles/arguments.h"
#include "kernels/kernel_watch.h"

namespace moracle {
namespace cuda {
namespace {

// How a kernel fits the GPU: stages of a CTA, and CTAs that the GPU runs at once.
struct MmaFit {
  int stages;
  int64_t resident;
};

class MmaLinear : public LinearKernel {
 public:
  MmaLinear(const KernelWeights& weights, MmaKernels kernels, std::vector<MmaFit> fits,
            const Queue& queue)
      : weights_(weights), kernels_(kernels), fits_(std::move(fits)), queue_(queue) {}

  bool serves(const LinearCall& call) const override {
    const auto* const activate = call.to<LinearCall::Activate>();
    return call.from<GroupedRows>() != nullptr && activate != nullptr
               ? mma_activates(weights_.shape, activate->activation) &&
                     call.out.cols == weights_.shape.n / 2
               : LinearKernel::serves(call);
  }
  Status run(const LinearCall& call, Stream stream) override {
    const GroupedRows& rows = *call.from<GroupedRows>();
    const auto* const activate = call.to<LinearCall::Activate>();
    if (activate != nullptr) MORACLE_CHECK(check_activation(activate->activation));
    MORACLE_CHECK(check_floats({&call.out}));
    const DType x = rows.x.values.dtype;
    const auto& key = weights_.scheme.activation;
    const DType wanted = key ? key->dtype : DType::kBF16;
    if (x != wanted) {
      return Error{ErrorKind::kInvalidArgument, "", "backend cuda-sm80",
                   str("activations in ", name(wanted), ", as planned"), str("they are ", name(x))};
    }
    if (rows.num_rows == 0) return {};
    const bool in_groups = scales_in_groups(weights_.shape, weights_.scheme);
    const int choice =
        mma_choice(in_groups ? kTilesInGroups : kTilesOfRows, rows.num_rows, weights_.num_experts);
    const MmaKernel& kernel = kernels_[choice];
    const MmaFit& fit = fits_[choice];
    if (kernels_are_watched())
      report({name(mma_form(weights_.shape, weights_.scheme, kernel.rows)), weights_.shape});
    const GemmArgs args =
        gemm_args(weights_, rows, call.out, activate != nullptr ? &activate->activation : nullptr);
    return launch_early(queue_, stream, "cuda_sm80", kernel.kernel,
                        std::min(most_tiles(args, kernel.rows, kernel.outputs), fit.resident),
                        kernel.threads, static_cast<size_t>(fit.stages * kernel.stage_bytes), args,
                        fit.stages);
  }

 private:
  const KernelWeights& weights_;
  MmaKernels kernels_;
  std::vector<MmaFit> fits_;  // for each kernel
  const Queue& queue_;        // owned by the device, which outlives its layers
};

// Loads the kernel and raises its shared memory limit, which graph capture could not do.
Result<MmaFit> prepare_kernel(const MmaKernel& kernel, int device) {
  const auto* const function = reinterpret_cast<const void*>(kernel.kernel);
  int sm_bytes = 0, reserved = 0, per_sm = 0, sms = 0;
  cudaFuncAttributes attributes{};
  MORACLE_CUDA(cudaFuncGetAttributes(&attributes, function));
  MORACLE_CUDA(
      cudaDeviceGetAttribute(&sm_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  MORACLE_CUDA(cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, device));
  const int stages =
      mma_stages(kernel, sm_bytes, reserved + static_cast<int>(attributes.sharedSizeBytes));
  const int bytes = stages * kernel.stage_bytes;
  MORACLE_CUDA(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  MORACLE_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, function, kernel.threads,
                                                             static_cast<size_t>(bytes)));
  MORACLE_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  return MmaFit{stages, int64_t{std::max(per_sm, 1)} * sms};
}

}  // namespace

Status add_mma(GroupedLinear& linear, CudaDevice& device) {
  const KernelWeights& weights = linear.weights();
  constexpr int64_t kMostColumns = int64_t{1} << 20;  // group_of counts half blocks in 16 bits
  if (weights.shape.k >= kMostColumns) {
    return Error{ErrorKind::kUnsupported, "", "backend cuda-sm80",
                 str("fewer than ", kMostColumns, " columns"),
                 str("the matrix has ", weights.shape.k)};
  }
  const MmaKernels kernels = mma_kernels_for(weights.shape, weights.scheme);
  const Queue& queue = device.queue();
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
  std::vector<MmaFit> fits;
  for (const MmaKernel& kernel : kernels) {
    MORACLE_TRY(const MmaFit fit, prepare_kernel(kernel, queue.index));
    fits.push_back(fit);
  }
  linear.add<MmaLinear>(kernels, std::move(fits), queue);
  return {};
}

Result<std::unique_ptr<GroupedLinear>> make_sm80(KernelWeights&& weights, const KernelPlan&,
                                                 Device& device) {
  auto* gpu = dynamic_cast<CudaDevice*>(&device);
  if (gpu == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "backend cuda-sm80", "a cuda device",
                 "it is " + device.name()};
  }
  auto linear = std::make_unique<GroupedLinear>(std::move(weights));
  MORACLE_CHECK(add_mma(*linear, *gpu));
  return Result<std::unique_ptr<GroupedLinear>>(std::move(linear));
}

}  // namespace cuda
}  // namespace moracle
