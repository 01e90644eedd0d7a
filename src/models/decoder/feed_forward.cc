#include "models/decoder/feed_forward.h"

#include <algorithm>

#include "base/try.h"
#include "oracle/carve.h"

namespace moracle {

FeedForwardScratch carve_feed_forward(const Description& description, int64_t max_num_tokens,
                                      DType dtype, std::byte* base) {
  int64_t num_experts = 1, top_k = 1;
  bool shared = false;
  for (const LayerDescription& layer : description.layers) {
    num_experts = std::max(num_experts, layer.mlp.spec.num_experts);
    top_k = std::max(top_k, layer.mlp.spec.top_k);
    shared = shared || layer.shared.has_value();
  }
  Carver carver(base);
  FeedForwardScratch scratch;
  scratch.logits = carver.take_matrix(dtype, max_num_tokens, num_experts);
  scratch.shared =
      carver.take_matrix(dtype, max_num_tokens, shared ? description.spec.hidden_size : 0);
  scratch.topk_ids = carver.take<int32_t>(max_num_tokens * top_k);
  scratch.topk_weights = carver.take<float>(max_num_tokens * top_k);
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

Status MoeStage::load(std::optional<DescribedMatrix>&& router,
                      const std::vector<float>& correction_bias, DescribedWeights&& experts,
                      Loader& loader) {
  MORACLE_CHECK(same_presence("router", experts_.has_value(), router_, router));
  if (router) MORACLE_CHECK(loader.load(router_, std::move(*router)));
  MORACLE_CHECK(loader.load(correction_bias_, correction_bias));
  return loader.load(experts_, std::move(experts));
}

Status MoeStage::apply(const Matrix& x, const Matrix& out, const FeedForwardScratch& scratch,
                       Ops& ops, Stream stream, const OnPart& on_part, const AddRmsNorm* norm) {
  const LoraIds lora_ids{experts_->plan().lora_rank > 0 ? scratch.lora_ids : nullptr};
  if (!router_) {
    if (norm != nullptr) {
      MORACLE_CHECK(
          ops.add_rms_norm(norm->x, norm->y, norm->weight, norm->epsilon, norm->out, stream));
      part_done(on_part, "norms");
    }
    return experts_->apply(x, {scratch.first_expert}, {scratch.weight_one}, out, stream, lora_ids);
  }
  const LayerSpec& layer = experts_->plan().layer;
  const Matrix logits{scratch.logits.data, scratch.logits.dtype, x.rows, layer.num_experts,
                      scratch.logits.stride};
  const float* bias = correction_bias_.bytes() > 0 ? correction_bias_.as<float>() : nullptr;
  MORACLE_CHECK(router_->route(
      {x, norm, logits, layer.routing, bias, layer.top_k, scratch.topk_ids, scratch.topk_weights},
      ops, stream));
  part_done(on_part, "router");
  return experts_->apply(x, {scratch.topk_ids}, {scratch.topk_weights}, out, stream, lora_ids);
}

Status FeedForward::load(LayerDescription&& layer, Loader& loader) {
  std::optional<DescribedMatrix> router;
  std::vector<float> correction_bias;
  if (layer.router) {
    router.emplace(std::move(layer.router->weights));
    correction_bias = std::move(layer.router->correction_bias);
  }
  MORACLE_CHECK(same_presence("shared expert", routed.loaded(), shared, layer.shared));
  MORACLE_CHECK(routed.load(std::move(router), correction_bias, std::move(layer.mlp), loader));
  if (!layer.shared) return {};
  if (!shared) shared.emplace();
  return shared->load(std::move(layer.shared->gate), {}, std::move(layer.shared->mlp), loader);
}

Status FeedForward::apply(const Matrix& x, const Matrix& out, const FeedForwardScratch& scratch,
                          Ops& ops, Stream stream, const OnPart& on_part, const AddRmsNorm* norm) {
  MORACLE_CHECK(routed.apply(x, out, scratch, ops, stream, on_part, norm));
  part_done(on_part, "experts");
  if (!shared) return {};
  const Matrix also = scratch.shared.slice(0, x.rows);
  MORACLE_CHECK(shared->apply(x, also, scratch, ops, stream));
  MORACLE_CHECK(ops.add(out, also, stream));
  part_done(on_part, "shared expert");
  return {};
}

}  // namespace moracle
