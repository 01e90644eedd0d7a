// Dense products through cuBLASLt: one handle, one workspace and the chosen kernels of a device.
#pragma once

#if defined(MORACLE_WITH_CUBLASLT)
#include <map>
#include <memory>
#include <mutex>

#include "kernels/ops.h"
#include "moracle/device.h"
#include "oracle/machine/cublaslt_api.h"

namespace moracle::cuda {

struct Queue;

/// y = x · weightsᵀ + bias, sums in f32. n and k are multiples of 8.
struct DenseProduct {
  const void* weights = nullptr;  ///< [n, k] bf16, 16-byte aligned
  const void* bias = nullptr;     ///< [n] of y's dtype; null: none
  int64_t n = 0, k = 0;
  Matrix x;  ///< [rows, k], bf16
  Matrix y;  ///< [rows, n], bf16 or f32
  /// Not null: weights and x are e4m3 with scales, and there is no bias. Rows are a multiple of 4,
  /// the library one of kBlocksVersion.
  const float* weight_scales = nullptr;  ///< [n / 128 rounded up][k / 128 rounded up to 4]
  const float* x_scales = nullptr;       ///< [k / 128][rows]
};

class CublasLt {
 public:
  /// Errors: the library is missing or refuses the GPU; memory for the workspace.
  static Result<std::shared_ptr<CublasLt>> open(Device& device, const Queue& queue);
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;
  ~CublasLt();

  /// Scratch of at least `bytes` bytes for one product at a time: begin and end its use by order().
  /// Callers share it, and own it because captured graphs use it.
  Result<std::shared_ptr<const Buffer>> scratch(Device& device, int64_t bytes);
  StreamOrder& order() const { return *order_; }

  /// Enqueues. The first call for a shape, a number of rows, and strides queries cuBLASLt for a
  /// kernel and caches the answer. The query takes tens of microseconds on the host and nothing on
  /// the device. The sums of a kernel have a fixed order, so equal calls give equal bits.
  Status multiply(const DenseProduct& product, Stream stream);

 private:
  struct Key {
    int64_t n, k, rows, x_stride, y_stride;
    DType y;
    bool bias, blocks;
    int x_alignment, y_alignment;
    auto operator<=>(const Key&) const = default;
  };
  struct Choice;

  CublasLt(const cublaslt::Api& api, const Queue& queue) : api_(api), queue_(queue) {}
  Result<Choice*> choice_for(const Key& key, const DenseProduct& product);
  Status choose(const Key& key, const DenseProduct& product, Choice& choice);
  Status set_scales(const DenseProduct& product, const Choice& choice);

  const cublaslt::Api& api_;
  const Queue& queue_;  // owned by the device, which outlives this object
  cublasLtHandle_t handle_ = nullptr;
  Buffer workspace_;
  std::shared_ptr<const Buffer> scratch_;  // the largest so far
  std::shared_ptr<StreamOrder> order_;     // of streams that use the workspace
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Choice>> choices_;
};

}  // namespace moracle::cuda
#endif
