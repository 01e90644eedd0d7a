#include "models/decoder/feed_forward.h"

#include <algorithm>

#include "base/try.h"
#include "oracle/carve.h"

namespace moracle {

FeedForwardScratch carve_feed_forward(const Description& description, int64_t max_num_tokens,
                                      DType dtype, std::byte* base) {
  int64_t num_experts = 1, top_k = 1;
  bool shared = false, beside = false;
  for (const LayerDescription& layer : description.layers) {
    num_experts = std::max(num_experts, layer.mlp.spec.num_experts);
    top_k = std::max(top_k, layer.mlp.spec.top_k);
    shared = shared || layer.shared.has_value();
    beside = beside || layer.beside_mlp.has_value();
  }
  Carver carver(base);
  FeedForwardScratch scratch;
  scratch.logits = carver.take_matrix(dtype, max_num_tokens, num_experts);
  scratch.shared =
      carver.take_matrix(dtype, max_num_tokens, shared ? description.spec.hidden_size : 0);
  scratch.normed =
      carver.take_matrix(dtype, max_num_tokens, beside ? description.spec.hidden_size : 0);
  scratch.topk_ids = carver.take<int32_t>(max_num_tokens * top_k);
  scratch.topk_weights = carver.take<float>(max_num_tokens * top_k);
  scratch.own_ids = carver.take<int32_t>(max_num_tokens * top_k);
  scratch.first_expert = carver.take<int32_t>(max_num_tokens);
  scratch.weight_one = carver.take<float>(max_num_tokens);
  scratch.lora_ids = carver.take<int32_t>(max_num_tokens);
  scratch.bytes = carver.bytes();
  return scratch;
}

namespace {

// Errors: a reload adds or removes an optional module. `now` is the loaded one, `next` the new one.
Status same_presence(const char* what, bool loaded, const auto& now, const auto& next) {
  if (!loaded || now.has_value() == next.has_value()) return {};
  return Error{ErrorKind::kInvalidArgument, "", what,
               now.has_value() ? "one, as in the loaded layer" : "none, as in the loaded layer",
               next ? "the new layer has one" : "the new layer has none"};
}

}  // namespace

Status MoeStage::load(std::optional<RouterDescription>&& router, DescribedWeights&& experts,
                      Loader& loader) {
  MORACLE_CHECK(same_presence("router", loaded(), router_, router));
  if (router) {
    MORACLE_CHECK(loader.load(router_, std::move(router->weights)));
    MORACLE_CHECK(loader.load(correction_bias_, router->correction_bias));
    MORACLE_CHECK(loader.load(expert_scales_, router->expert_scales));
  }
  if (placed_ || loader.next_is_placed()) return loader.load(placed_, std::move(experts));
  return loader.load(experts_, std::move(experts));
}

Status MoeStage::apply(LayerInput input, const Matrix& out, const FeedForwardScratch& scratch,
                       Ops& ops, Stream stream, const StepObserver& observer) {
  const Matrix x = input.x;
  MORACLE_CHECK(route(std::move(input), scratch, ops, stream, observer));
  return run_experts(x, out, scratch, stream);
}

Status MoeStage::route(LayerInput input, const FeedForwardScratch& scratch, Ops& ops, Stream stream,
                       const StepObserver& observer) {
  if (!router_) return input.compute(ops, stream, observer);
  const Matrix& x = input.x;
  const LayerSpec& layer = this->layer();
  const Matrix logits{scratch.logits.data, scratch.logits.dtype, x.rows, layer.num_experts,
                      scratch.logits.stride};
  const float* bias = correction_bias_.bytes() > 0 ? correction_bias_.as<float>() : nullptr;
  LinearCall call = input.call(logits);
  call.output =
      LinearCall::Route{layer.routing, bias, layer.top_k, scratch.topk_ids, scratch.topk_weights};
  MORACLE_CHECK(router_->apply(call, stream));
  const size_t id_bytes = x.rows * layer.top_k * sizeof(int32_t);
  if (id_bytes <= forced_.bytes())
    MORACLE_CHECK(forced_on_->copy(scratch.topk_ids, forced_.data(), id_bytes, stream));
  if (expert_scales_.bytes() > 0) {
    MORACLE_CHECK(ops.scale_by_expert(scratch.topk_ids, x.rows * layer.top_k,
                                      expert_scales_.as<float>(), scratch.topk_weights, stream));
  }
  if (scratch.count_tokens) count(scratch.topk_ids, x.rows * layer.top_k);
  observer.done(StepPart::kRouter);
  return {};
}

Status MoeStage::force(std::span<const int32_t> topk_ids, Device& device) {
  if (forced_.bytes() < topk_ids.size_bytes()) {
    MORACLE_TRY(forced_, device.allocate(topk_ids.size_bytes()));
    forced_on_ = &device;
  }
  return device.enqueue_upload(forced_.data(), topk_ids.data(), topk_ids.size_bytes());
}

void MoeStage::count(const int32_t* topk_ids, int64_t slots) {
  tokens_.resize(layer().num_experts);
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int32_t expert = topk_ids[slot];
    if (expert >= 0 && expert < static_cast<int32_t>(tokens_.size())) ++tokens_[expert];
  }
}

std::vector<int64_t> MoeStage::tokens_per_expert() const {
  return tokens_.empty() ? std::vector<int64_t>(layer().num_experts) : tokens_;
}

Status MoeStage::run_experts(const Matrix& x, const Matrix& out, const FeedForwardScratch& scratch,
                             Stream stream) {
  if (placed_) {
    const LoraIds adapters{placed_->host_plan().lora_rank > 0 ? scratch.lora_ids : nullptr};
    const TopkIds topk_ids{scratch.topk_ids};
    const TopkWeights topk_weights{scratch.topk_weights};
    if (scratch.ranks == nullptr)
      return placed_->apply(x, topk_ids, topk_weights, out, stream, adapters);
    return scratch.ranks->apply(*placed_, copies_, scratch.own_ids, x, topk_ids, topk_weights, out,
                                stream, adapters);
  }
  if (router_ && scratch.dispatch != nullptr)
    return scratch.dispatch->run_experts(*experts_, copies_, x, scratch.topk_ids,
                                         scratch.topk_weights, out, stream);
  const LoraIds lora_ids{experts_->plan().lora_rank > 0 ? scratch.lora_ids : nullptr};
  const int32_t* const ids = router_ ? scratch.topk_ids : scratch.first_expert;
  const float* const weights = router_ ? scratch.topk_weights : scratch.weight_one;
  if (router_ && scratch.ranks != nullptr)
    return scratch.ranks->apply(*experts_, copies_, scratch.own_ids, x, {ids}, {weights}, out,
                                stream, lora_ids);
  return experts_->apply(x, {ids}, {weights}, out, stream, lora_ids);
}

Status MoeStage::find_copies(Group& group, bool one_each, Device& device) {
  const ExpertMap& experts = placed_ ? placed_->host_plan().experts : experts_->plan().experts;
  MORACLE_TRY(copies_, ExpertCopies::gather(group, experts, one_each));
  return copies_.upload(group.rank(), device);
}

Status FeedForward::load(LayerDescription&& layer, float norm_epsilon, Loader& loader) {
  MORACLE_CHECK(same_presence("shared expert", routed.loaded(), shared, layer.shared));
  if (layer.beside_mlp) {
    if (!beside_mlp) beside_mlp.emplace();
    const BesideMlp& from = *layer.beside_mlp;
    beside_mlp->epsilon = norm_epsilon;
    MORACLE_CHECK(loader.load(beside_mlp->router, from.router_norm));
    MORACLE_CHECK(loader.load(beside_mlp->experts, from.experts_norm));
    MORACLE_CHECK(loader.load(beside_mlp->experts_output, from.experts_output_norm));
    MORACLE_CHECK(loader.load(beside_mlp->mlp_output, from.mlp_output_norm));
  }
  MORACLE_CHECK(routed.load(std::move(layer.router), std::move(layer.mlp), loader));
  if (!layer.shared) return {};
  if (!shared) shared.emplace();
  std::optional<RouterDescription> gate;
  if (layer.shared->gate) gate.emplace(RouterDescription{std::move(*layer.shared->gate), {}, {}});
  return shared->load(std::move(gate), std::move(layer.shared->mlp), loader);
}

Status FeedForward::apply_beside_mlp(const Matrix& residual, const Matrix& out,
                                     const FeedForwardScratch& scratch, Ops& ops, Stream stream,
                                     const StepObserver& observer) {
  const BesideMlpNorms& norms = *beside_mlp;
  const Matrix normed = scratch.normed.slice(0, residual.rows);
  const auto norm = [&](const Matrix& x, const Buffer& weight, const Matrix& to) {
    return ops.rms_norm(x, weight.as<float>(), x.cols, norms.epsilon, to, stream);
  };
  MORACLE_CHECK(norm(residual, norms.router, normed));
  MORACLE_CHECK(routed.route({normed}, scratch, ops, stream, observer));
  MORACLE_CHECK(norm(residual, norms.experts, normed));
  MORACLE_CHECK(routed.run_experts(normed, out, scratch, stream));
  return norm(out, norms.experts_output, out);
}

Status FeedForward::apply(LayerInput input, const Matrix& residual, const Matrix& out,
                          const FeedForwardScratch& scratch, Ops& ops, Stream stream,
                          const StepObserver& observer) {
  const Matrix x = input.x;
  // One all-reduce of routed and shared experts together, where nothing but a sum follows.
  const bool one_sum = scratch.divided != nullptr && shared && !beside_mlp &&
                       scratch.ranks != nullptr && !scratch.ranks->same_bits;
  FeedForwardScratch summed = scratch;
  if (one_sum) summed.ranks = nullptr;
  if (beside_mlp) {
    MORACLE_CHECK(input.compute(ops, stream, observer));
    MORACLE_CHECK(apply_beside_mlp(residual, out, scratch, ops, stream, observer));
  } else {
    MORACLE_CHECK(routed.apply(std::move(input), out, summed, ops, stream, observer));
  }
  if (scratch.divided != nullptr && !routed.has_router())
    MORACLE_CHECK(scratch.divided->all_reduce(out, stream));
  observer.done(StepPart::kExperts);
  if (!shared) return {};
  const Matrix also = scratch.shared.slice(0, x.rows);
  FeedForwardScratch here = scratch;  // every rank has the shared expert
  here.ranks = nullptr;
  here.dispatch = nullptr;
  here.count_tokens = false;
  MORACLE_CHECK(shared->apply({x}, also, here, ops, stream));
  if (scratch.divided != nullptr && !one_sum)
    MORACLE_CHECK(scratch.divided->all_reduce(also, stream));
  if (beside_mlp) {
    MORACLE_CHECK(ops.rms_norm(also, beside_mlp->mlp_output.as<float>(), also.cols,
                               beside_mlp->epsilon, also, stream));
  }
  MORACLE_CHECK(ops.add(out, also, stream));
  if (one_sum) MORACLE_CHECK(scratch.divided->all_reduce(out, stream));
  observer.done(StepPart::kSharedExpert);
  return {};
}

}  // namespace moracle
