// Guard of one layer call: holds the device, and orders the call's stream after the streams of
// earlier calls on the same workspace.
#pragma once

#include <utility>

#include "kernels/kernel_device.h"
#include "moracle/moe.h"

namespace moracle {

class LayerTurn {
 public:
  /// Errors: those of the device if one stream has to wait for another.
  static Result<LayerTurn> take(Workspace& workspace, Stream stream) {
    LayerTurn turn(workspace.device().turn(), stream);
    if (StreamOrder* const order = workspace.order_.get()) {
      if (Status begun = order->begin(stream); !begun) return std::move(begun).error();
      turn.order_ = order;
    }
    return turn;
  }
  LayerTurn(LayerTurn&& other) noexcept
      : turn_(std::move(other.turn_)),
        stream_(other.stream_),
        order_(std::exchange(other.order_, nullptr)) {}
  LayerTurn& operator=(LayerTurn&&) = delete;
  ~LayerTurn() {
    if (order_ != nullptr) order_->end(stream_);
  }

 private:
  LayerTurn(Turn turn, Stream stream) : turn_(std::move(turn)), stream_(stream) {}
  Turn turn_;
  Stream stream_;
  StreamOrder* order_ = nullptr;  // owned by the workspace; null if it has none
};

}  // namespace moracle
