#include "models/decoder/feed_forward.h"

#include <algorithm>

#include "base/try.h"
#include "oracle/carve.h"

namespace moracle {

FeedForwardScratch carve_feed_forward(const Description& description, int64_t max_num_tokens,
                                      DType dtype, std::byte* base) {
  int64_t num_experts = 1, top_k = 1;
  int64_t latent = 0;
  bool shared = false, beside = false, shortcut = false, identity = false;
  for (const LayerDescription& layer : description.layers) {
    if (!layer.mlp) continue;
    const int64_t own_identity = layer.router ? layer.router->num_identity : 0;
    num_experts = std::max(num_experts, layer.mlp->spec.num_experts + own_identity);
    top_k = std::max(top_k, layer.mlp->spec.top_k);
    if (layer.latent) latent = std::max(latent, layer.mlp->spec.hidden_size);
    shared = shared || layer.shared.has_value();
    beside = beside || layer.beside_mlp.has_value();
    shortcut = shortcut || layer.shortcut == Shortcut::kBegins;
    identity = identity || own_identity > 0;
  }
  Carver carver(base);
  FeedForwardScratch scratch;
  scratch.logits = carver.take_matrix(dtype, max_num_tokens, num_experts);
  const auto take = [&](bool needed) {
    return carver.take_matrix(dtype, max_num_tokens, needed ? description.spec.hidden_size : 0);
  };
  scratch.shared = take(shared);
  scratch.normed = take(beside || identity);
  scratch.shortcut = take(shortcut);
  scratch.latent = carver.take_matrix(dtype, max_num_tokens, latent);
  scratch.latent_out = carver.take_matrix(dtype, max_num_tokens, latent);
  scratch.topk_ids = carver.take<int32_t>(max_num_tokens * top_k);
  scratch.topk_weights = carver.take<float>(max_num_tokens * top_k);
  scratch.own_ids = carver.take<int32_t>(max_num_tokens * top_k);
  scratch.first_expert = carver.take<int32_t>(max_num_tokens);
  scratch.weight_one = carver.take<float>(max_num_tokens);
  scratch.identity = carver.take<float>(identity ? max_num_tokens : 0);
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
    MORACLE_CHECK(loader.load(by_token_, router->by_token));
    num_identity_ = router->num_identity;
  }
  if (placed_ || loader.next_is_placed()) return loader.load(placed_, std::move(experts));
  return loader.load(experts_, std::move(experts));
}

Status MoeStage::apply(LayerInput input, const Matrix& out, const FeedForwardScratch& scratch,
                       Ops& ops, Stream stream, const StepObserver& observer) {
  const Matrix x = input.x;
  MORACLE_CHECK(route(std::move(input), scratch, ops, stream, observer));
  MORACLE_CHECK(run_experts(x, out, scratch, stream));
  return num_identity_ > 0 ? add_identity(x, out, scratch, ops, stream) : Status();
}

Status MoeStage::add_identity(const Matrix& x, const Matrix& out, const FeedForwardScratch& scratch,
                              Ops& ops, Stream stream) {
  const Matrix scaled = scratch.normed.slice(0, x.rows);
  MORACLE_CHECK(ops.scale_rows(x, scratch.identity, scaled, stream));
  return ops.add(out, scaled, stream);
}

Status MoeStage::route(LayerInput input, const FeedForwardScratch& scratch, Ops& ops, Stream stream,
                       const StepObserver& observer) {
  if (!router_) return input.compute(ops, stream, observer);
  const Matrix& x = input.x;
  const LayerSpec& layer = this->layer();
  const Matrix logits{scratch.logits.data, scratch.logits.dtype, x.rows,
                      layer.num_experts + num_identity_, scratch.logits.stride};
  const float* bias = correction_bias_.bytes() > 0 ? correction_bias_.as<float>() : nullptr;
  LinearCall call = input.call(logits);
  if (by_token_.bytes() == 0) {
    call.output =
        LinearCall::Route{layer.routing, bias, layer.top_k, scratch.topk_ids, scratch.topk_weights};
  }
  MORACLE_CHECK(router_->apply(call, stream));
  if (by_token_.bytes() > 0) {
    MORACLE_CHECK(ops.route_by_token(logits, layer.routing, {by_token_.as<int32_t>()},
                                     scratch.token_ids, layer.top_k, scratch.topk_ids,
                                     scratch.topk_weights, stream));
  }
  const size_t id_bytes = x.rows * layer.top_k * sizeof(int32_t);
  if (id_bytes <= forced_.bytes())
    MORACLE_CHECK(forced_on_->copy(scratch.topk_ids, forced_.data(), id_bytes, stream));
  if (expert_scales_.bytes() > 0) {
    MORACLE_CHECK(ops.scale_by_expert(scratch.topk_ids, x.rows * layer.top_k,
                                      expert_scales_.as<float>(), scratch.topk_weights, stream));
  }
  if (num_identity_ > 0) {
    MORACLE_CHECK(ops.take_identity(scratch.topk_ids, scratch.topk_weights, x.rows, layer.top_k,
                                    layer.num_experts, scratch.identity, stream));
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
  if (!layer.mlp) {
    if (!routed.loaded()) return {};
    return Error{ErrorKind::kInvalidArgument, "", "feed-forward", "one, as in the loaded layer",
                 "the new layer has none"};
  }
  MORACLE_CHECK(same_presence("shared expert", routed.loaded(), shared, layer.shared));
  shortcut = layer.shortcut;
  if (layer.beside_mlp) {
    if (!beside_mlp) beside_mlp.emplace();
    const BesideMlp& from = *layer.beside_mlp;
    beside_mlp->epsilon = norm_epsilon;
    MORACLE_CHECK(loader.load(beside_mlp->router, from.router_norm));
    MORACLE_CHECK(loader.load(beside_mlp->experts, from.experts_norm));
    MORACLE_CHECK(loader.load(beside_mlp->experts_output, from.experts_output_norm));
    MORACLE_CHECK(loader.load(beside_mlp->mlp_output, from.mlp_output_norm));
  }
  MORACLE_CHECK(same_presence("latent experts", routed.loaded(), latent_down, layer.latent));
  if (layer.latent) {
    latent_size = layer.mlp->spec.hidden_size;
    MORACLE_CHECK(loader.load(latent_down, std::move(layer.latent->down)));
  }
  MORACLE_CHECK(routed.load(std::move(layer.router), std::move(*layer.mlp), loader));
  if (layer.latent) MORACLE_CHECK(loader.load(latent_up, std::move(layer.latent->up)));
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

Status FeedForward::apply_latent(LayerInput input, const Matrix& out,
                                 const FeedForwardScratch& scratch, Ops& ops, Stream stream,
                                 const StepObserver& observer) {
  const Matrix x = input.x;
  const auto [in, sum] = latent_rows(scratch, x.rows);
  MORACLE_CHECK(routed.route(std::move(input), scratch, ops, stream, observer));
  MORACLE_CHECK(latent_down->apply(x, in, stream));
  MORACLE_CHECK(routed.run_experts(in, sum, scratch, stream));
  return latent_up->apply(sum, out, stream);
}

std::pair<Matrix, Matrix> FeedForward::latent_rows(const FeedForwardScratch& scratch,
                                                   int64_t rows) const {
  Matrix in = scratch.latent.slice(0, rows), sum = scratch.latent_out.slice(0, rows);
  in.cols = sum.cols = latent_size;
  return {in, sum};
}

Status FeedForward::run_experts_of_others(const Matrix& x, const Matrix& out,
                                          const FeedForwardScratch& scratch, Stream stream) {
  if (!latent_down) return routed.run_experts(x.slice(0, 0), out.slice(0, 0), scratch, stream);
  const auto [in, sum] = latent_rows(scratch, 0);
  return routed.run_experts(in, sum, scratch, stream);
}

Status FeedForward::apply(LayerInput input, const Matrix& residual, const Matrix& out,
                          const FeedForwardScratch& scratch, Ops& ops, Stream stream,
                          const StepObserver& observer) {
  const Matrix x = input.x;
  // One all-reduce of routed and shared experts together, where nothing but a sum follows.
  const bool one_sum = scratch.divided != nullptr && shared && !beside_mlp && !latent_down &&
                       shortcut == Shortcut::kNone && scratch.ranks != nullptr &&
                       !scratch.ranks->same_bits;
  FeedForwardScratch summed = scratch;
  if (one_sum) summed.ranks = nullptr;
  if (beside_mlp) {
    MORACLE_CHECK(input.compute(ops, stream, observer));
    MORACLE_CHECK(apply_beside_mlp(residual, out, scratch, ops, stream, observer));
  } else if (latent_down) {
    MORACLE_CHECK(apply_latent(std::move(input), out, summed, ops, stream, observer));
  } else {
    const Matrix later = shortcut == Shortcut::kBegins ? scratch.shortcut.slice(0, x.rows) : out;
    MORACLE_CHECK(routed.apply(std::move(input), later, summed, ops, stream, observer));
  }
  if (scratch.divided != nullptr && !routed.has_router())
    MORACLE_CHECK(scratch.divided->all_reduce(out, stream));
  if (shortcut == Shortcut::kEnds)
    MORACLE_CHECK(ops.add(out, scratch.shortcut.slice(0, x.rows), stream));
  observer.done(StepPart::kExperts);
  if (!shared) return {};
  const Matrix also = shortcut == Shortcut::kBegins ? out : scratch.shared.slice(0, x.rows);
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
  if (shortcut != Shortcut::kBegins) MORACLE_CHECK(ops.add(out, also, stream));
  if (one_sum) MORACLE_CHECK(scratch.divided->all_reduce(out, stream));
  observer.done(StepPart::kSharedExpert);
  return {};
}

}  // namespace moracle
