// Guard of one layer call: holds the device, orders the call's stream after the streams of earlier
// calls on the same workspace, and makes late errors name the layer.
#pragma once

#include <utility>

#include "kernels/kernel_device.h"
#include "kernels/ops.h"
#include "moracle/moe.h"

namespace moracle {

class LayerTurn {
 public:
  /// `scope`: the layer's, if its kernels report errors. Errors: those of the device if one stream
  /// has to wait for another.
  static Result<LayerTurn> take(Workspace& workspace, Stream stream, int scope = 0) {
    LayerTurn turn(workspace.device(), stream, scope);
    if (StreamOrder* const order = workspace.order_.get()) {
      if (Status begun = order->begin(stream); !begun) return std::move(begun).error();
      turn.order_ = order;
    }
    return turn;
  }
  LayerTurn(LayerTurn&& other) noexcept
      : turn_(std::move(other.turn_)),
        scopes_(std::exchange(other.scopes_, nullptr)),
        before_(other.before_),
        stream_(other.stream_),
        order_(std::exchange(other.order_, nullptr)) {}
  LayerTurn& operator=(LayerTurn&&) = delete;
  ~LayerTurn() {
    if (order_ != nullptr) order_->end(stream_);
    if (scopes_ != nullptr) scopes_->enter(before_);
  }

 private:
  LayerTurn(Device& device, Stream stream, int scope)
      : turn_(device.turn()),
        scopes_(&kernel_device(device).ops().error_scopes()),
        before_(scopes_->enter(scope)),
        stream_(stream) {}
  Turn turn_;
  ErrorScopes* scopes_;  // owned by the device; null: moved from
  int before_;
  Stream stream_;
  StreamOrder* order_ = nullptr;  // owned by the workspace; null if it has none
};

}  // namespace moracle
