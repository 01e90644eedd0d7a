#include "moe/fused_moe_state.h"

namespace moracle {

PackedWeights::PackedWeights(std::unique_ptr<State> state) : state_(std::move(state)) {}
PackedWeights::PackedWeights(PackedWeights&&) noexcept = default;
PackedWeights& PackedWeights::operator=(PackedWeights&&) noexcept = default;
PackedWeights::~PackedWeights() = default;

}  // namespace moracle
