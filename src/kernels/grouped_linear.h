// The operation that every backend serves: a grouped GEMM on the weights of its layout.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/linear_call.h"
#include "kernels/weights/kernel_weights.h"

namespace moracle {

/// A kernel on one packed matrix.
class LinearKernel {
 public:
  virtual ~LinearKernel() = default;
  /// True if this kernel computes the call. Depends on shapes, types, alignment and the number of
  /// rows. For norms, `out` may be empty. By default: sums of grouped rows.
  virtual bool serves(const LinearCall& call) const;
  /// Enqueues. Allocates nothing on the device. Requires serves.
  virtual Status run(const LinearCall& call, Stream stream) = 0;
};

/// A packed matrix and its kernels, in the order of the plan: a call runs in the first kernel that
/// serves it.
class GroupedLinear {
 public:
  using Refresh = std::function<Status(const KernelWeights& weights, Stream stream)>;

  /// `refresh` computes what is derived from the bytes of the weights.
  explicit GroupedLinear(KernelWeights weights, Refresh refresh = {})
      : weights_(std::move(weights)), refresh_(std::move(refresh)) {}
  GroupedLinear(const GroupedLinear&) = delete;
  GroupedLinear& operator=(const GroupedLinear&) = delete;

  bool serves(const LinearCall& call) const { return kernel_for(call) != nullptr; }
  /// Errors: no kernel serves the call; those of the kernel.
  Status run(const LinearCall& call, Stream stream);
  /// Call after new bytes were enqueued into weights(), in stream order.
  Status weights_replaced(Stream stream) {
    return refresh_ ? refresh_(weights_, stream) : Status();
  }
  /// The same for the bytes of expert e alone.
  Status expert_replaced(int64_t e, Stream stream);
  /// Stays at one place, so kernels may refer to it.
  const KernelWeights& weights() const { return weights_; }
  std::vector<std::unique_ptr<LinearKernel>>& kernels() { return kernels_; }
  /// Appends Kernel(weights(), args...).
  template <class Kernel, class... Args>
  Kernel& add(Args&&... args) {
    auto kernel = std::make_unique<Kernel>(weights_, std::forward<Args>(args)...);
    Kernel& added = *kernel;
    kernels_.push_back(std::move(kernel));
    return added;
  }

 private:
  LinearKernel* kernel_for(const LinearCall& call) const;

  KernelWeights weights_;
  Refresh refresh_;
  std::vector<std::unique_ptr<LinearKernel>> kernels_;
};

}  // namespace moracle
