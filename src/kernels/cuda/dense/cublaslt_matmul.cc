#include "kernels/cuda/dense/cublaslt_matmul.h"

#if defined(MORACLE_WITH_CUBLASLT)
#include "base/text.h"
#include "kernels/cuda/cuda_cublaslt_plan.h"
#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/kernel_device.h"

namespace moracle::cuda {
namespace {

// Prompts have any length. This limits the memory of cached kernel choices, about 300 bytes each.
constexpr size_t kMostChoices = 4096;

Status checked(const cublaslt::Api& api, cublasStatus_t code, const char* call) {
  if (code == CUBLAS_STATUS_SUCCESS) return {};
  const ErrorKind kind =
      code == CUBLAS_STATUS_ALLOC_FAILED ? ErrorKind::kOutOfMemory : ErrorKind::kIo;
  return Error{kind, "", call, "to succeed", api.cublasLtGetStatusString(code)};
}
#define MORACLE_CUBLASLT(function, ...) \
  MORACLE_CHECK(checked(api_, api_.function(__VA_ARGS__), #function))

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
}

// The largest power of two up to 16 that divides the address.
int alignment(const void* data) {
  const auto at = reinterpret_cast<uintptr_t>(data) | 16;
  return static_cast<int>(at & (~at + 1));
}

}  // namespace

// A kernel of the library for one shape and number of rows. cuBLASLt's matrices are column-major:
// y is [n, rows] there, and the weights are a transposed [k, n].
struct CublasLt::Choice {
  explicit Choice(const cublaslt::Api& of) : api(of) {}
  Choice(const Choice&) = delete;
  Choice& operator=(const Choice&) = delete;
  ~Choice() {
    if (product != nullptr) static_cast<void>(api.cublasLtMatmulDescDestroy(product));
    for (cublasLtMatrixLayout_t one : {weights, x, y})
      if (one != nullptr) static_cast<void>(api.cublasLtMatrixLayoutDestroy(one));
  }
  const cublaslt::Api& api;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t weights = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algo{};
  size_t workspace_bytes = 0;
};

Result<std::shared_ptr<CublasLt>> CublasLt::open(Device& device, const Queue& queue) {
  const Result<cublaslt::Api>& api = cublaslt::api();
  if (!api) return api.error();
  std::shared_ptr<CublasLt> made(new CublasLt(*api, queue));
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
  MORACLE_CHECK(checked(*api, api->cublasLtCreate(&made->handle_), "cublasLtCreate"));
  MORACLE_TRY(made->workspace_, device.allocate(kCublasLtWorkspace));
  made->order_ = kernel_device(device).stream_order();
  return made;
}

CublasLt::~CublasLt() {
  choices_.clear();
  if (handle_ != nullptr) static_cast<void>(api_.cublasLtDestroy(handle_));
}

Result<std::shared_ptr<const Buffer>> CublasLt::scratch(Device& device, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!scratch_ || static_cast<int64_t>(scratch_->bytes()) < bytes) {
    MORACLE_TRY(Buffer larger, device.allocate(static_cast<size_t>(bytes)));
    scratch_ = std::make_shared<const Buffer>(std::move(larger));
  }
  return scratch_;
}

Status CublasLt::set_scales(const DenseProduct& product, const Choice& c) {
  MORACLE_CUBLASLT(cublasLtMatmulDescSetAttribute, c.product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                   &product.weight_scales, sizeof product.weight_scales);
  MORACLE_CUBLASLT(cublasLtMatmulDescSetAttribute, c.product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                   &product.x_scales, sizeof product.x_scales);
  return {};
}

Status CublasLt::choose(const Key& key, const DenseProduct& product, Choice& c) {
  MORACLE_CUBLASLT(cublasLtMatmulDescCreate, &c.product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const auto set = [&](cublasLtMatmulDescAttributes_t what, const auto& value) {
    return checked(api_, api_.cublasLtMatmulDescSetAttribute(c.product, what, &value, sizeof value),
                   "cublasLtMatmulDescSetAttribute");
  };
  MORACLE_CHECK(set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  if (key.bias) {
    MORACLE_CHECK(set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    MORACLE_CHECK(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(key.y)));
    MORACLE_CHECK(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias));
  }
#if CUBLAS_VERSION >= 120900
  if (key.blocks) {
    MORACLE_CHECK(set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
                      int32_t{CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F}));
    MORACLE_CHECK(
        set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, int32_t{CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F}));
    MORACLE_CHECK(set_scales(product, c));
  }
#endif
  const cudaDataType_t type = key.blocks ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
  MORACLE_CUBLASLT(cublasLtMatrixLayoutCreate, &c.weights, type, key.k, key.n, key.k);
  MORACLE_CUBLASLT(cublasLtMatrixLayoutCreate, &c.x, type, key.k, key.rows, key.x_stride);
  MORACLE_CUBLASLT(cublasLtMatrixLayoutCreate, &c.y, type_of(key.y), key.n, key.rows, key.y_stride);

  cublasLtMatmulPreference_t wishes = nullptr;
  MORACLE_CUBLASLT(cublasLtMatmulPreferenceCreate, &wishes);
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t,
                        cublasStatus_t (*)(cublasLtMatmulPreference_t)>
      owned(wishes, api_.cublasLtMatmulPreferenceDestroy);
  const auto wish = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
    return checked(api_,
                   api_.cublasLtMatmulPreferenceSetAttribute(wishes, what, &value, sizeof value),
                   "cublasLtMatmulPreferenceSetAttribute");
  };
  MORACLE_CHECK(wish(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kCublasLtWorkspace}));
  // Split sums are added in f32 from the workspace, in a fixed order.
  MORACLE_CHECK(wish(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                     static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
  MORACLE_CHECK(wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{16}));
  MORACLE_CHECK(
      wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(key.x_alignment)));
  for (const auto what :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    MORACLE_CHECK(wish(what, static_cast<uint32_t>(key.y_alignment)));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  MORACLE_CUBLASLT(cublasLtMatmulAlgoGetHeuristic, handle_, c.product, c.weights, c.x, c.y, c.y,
                   wishes, 1, &best, &found);
  if (found == 0) {
    return Error{
        ErrorKind::kUnsupported, "", "backend cuda-cublaslt",
        str("a kernel of cuBLASLt for [", key.rows, ", ", key.k, "] x [", key.n, ", ", key.k, "]"),
        "the library names none"};
  }
  c.algo = best.algo;
  c.workspace_bytes = best.workspaceSize;
  return {};
}

Result<CublasLt::Choice*> CublasLt::choice_for(const Key& key, const DenseProduct& product) {
  if (const auto known = choices_.find(key); known != choices_.end()) return known->second.get();
  auto choice = std::make_shared<Choice>(api_);
  MORACLE_CHECK(choose(key, product, *choice));
  if (choices_.size() >= kMostChoices) choices_.clear();
  return choices_.emplace(key, std::move(choice)).first->second.get();
}

Status CublasLt::multiply(const DenseProduct& p, Stream stream) {
  if (p.x.rows == 0) return {};
  const Key key{p.n,
                p.k,
                p.x.rows,
                p.x.stride,
                p.y.stride,
                p.y.dtype,
                p.bias != nullptr,
                p.weight_scales != nullptr,
                alignment(p.x.data),
                alignment(p.y.data)};
  const std::lock_guard lock(mutex_);
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
  MORACLE_TRY(const Choice* const choice, choice_for(key, p));
  if (p.bias != nullptr) {
    MORACLE_CUBLASLT(cublasLtMatmulDescSetAttribute, choice->product,
                     CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias, sizeof p.bias);
  }
  if (p.weight_scales != nullptr) MORACLE_CHECK(set_scales(p, *choice));
  const bool shares = choice->workspace_bytes > 0;
  if (shares) MORACLE_CHECK(order_->begin(stream));
  const float one = 1, zero = 0;
  const Status enqueued = checked(
      api_,
      api_.cublasLtMatmul(handle_, choice->product, &one, p.weights, choice->weights, p.x.data,
                          choice->x, &zero, p.y.data, choice->y, p.y.data, choice->y, &choice->algo,
                          workspace_.data(), choice->workspace_bytes, queue_.of(stream)),
      "cublasLtMatmul");
  if (shares) order_->end(stream);
  return enqueued;
}

}  // namespace moracle::cuda
#endif
