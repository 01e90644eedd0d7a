// Guard of one layer call: holds the device, orders the call's stream after the streams of earlier
// calls on the same workspace, and makes late errors name the layer.
#pragma once

#include <utility>

#include "kernels/kernel_device.h"
#include "kernels/ops.h"
#include "moracle/moe.h"

namespace moracle {

class LayerLock {
 public:
  /// `scope`: the layer's, if its kernels report errors. Errors: those of the device if one stream
  /// has to wait for another.
  static Result<LayerLock> take(Workspace& workspace, Stream stream, int scope = 0) {
    LayerLock lock(workspace.device(), stream, scope);
    if (StreamOrder* const order = workspace.order_.get()) {
      if (Status begun = order->begin(stream); !begun) return std::move(begun).error();
      lock.order_ = order;
    }
    return lock;
  }
  LayerLock(LayerLock&& other) noexcept
      : lock_(std::move(other.lock_)),
        scopes_(std::exchange(other.scopes_, nullptr)),
        before_(other.before_),
        stream_(other.stream_),
        order_(std::exchange(other.order_, nullptr)) {}
  LayerLock& operator=(LayerLock&&) = delete;
  ~LayerLock() {
    if (order_ != nullptr) order_->end(stream_);
    if (scopes_ != nullptr) scopes_->enter(before_);
  }

 private:
  LayerLock(Device& device, Stream stream, int scope)
      : lock_(device.lock()),
        scopes_(&kernel_device(device).ops().error_scopes()),
        before_(scopes_->enter(scope)),
        stream_(stream) {}
  DeviceLock lock_;
  ErrorScopes* scopes_;  // owned by the device; null: moved from
  int before_;
  Stream stream_;
  StreamOrder* order_ = nullptr;  // owned by the workspace; null if it has none
};

}  // namespace moracle
