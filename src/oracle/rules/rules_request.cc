// Rules about how the layer is run: token count, activation format, parallelism, guarantees.
#include <algorithm>
#include <limits>

#include "base/text.h"
#include "oracle/rules/rules.h"

namespace moracle {
namespace rules_request {
namespace {

using Objection = std::optional<Reason>;

bool lacks(const Backend& b, Feature feature) {
  return missing(feature, b.features) != Feature::kNone;
}

Objection refuse_tokens(const Backend&, const Request& r, const Machine&) {
  const int64_t most = countable_tokens(r);
  if (r.max_num_tokens < 1)
    return object("at least 1 token per step", str("the request allows ", r.max_num_tokens));
  if (r.max_num_tokens <= most) return {};
  return object(str("at most ", most, " tokens per step"),
                str("the request allows ", r.max_num_tokens));
}

Objection refuse_activation_format(const Backend& b, const Request& r, const Machine&) {
  if (r.parallel.format == ActivationFormat::kStandard || !lacks(b, Feature::kBatched)) return {};
  return object("activations as [num_tokens, hidden_size]",
                "they are batched by expert: [num_experts, max_tokens, hidden_size]");
}

Objection refuse_expert_parallel(const Backend& b, const Request& r, const Machine&) {
  if (r.layer.linear) return {};
  if (const auto map = r.parallel.map(r.layer.num_experts); !map)
    return object(map.error().need, map.error().fact);
  const bool spread = r.parallel.ep_size != 1 || r.parallel.expert_map;
  if (!spread || !lacks(b, Feature::kExpertParallel)) return {};
  return object("all experts on one rank",
                str("they are spread over ", r.parallel.ep_size, " ranks"));
}

Objection refuse_lora(const Backend& b, const Request& r, const Machine&) {
  if (!countable_adapters(r)) {
    return object(str("a rank from 0 to ", kMaxLayerSize, " and 1 to ", kMaxLayerSize,
                      " adapters, whose bytes 64 bits count"),
                  str("the request has rank ", r.lora_rank, " and ", r.max_adapters, " adapters"));
  }
  if (r.lora_rank == 0 || !lacks(b, Feature::kLora)) return {};
  return object("a layer without LoRA adapters",
                str("adapters of rank up to ", r.lora_rank, " are requested"));
}

// Weighting the input equals weighting the output only if one expert processes the token.
Objection refuse_input_weight(const Backend&, const Request& r, const Machine&) {
  if (r.layer.linear || !r.layer.routing.weight_on_input) return {};
  if (r.layer.top_k != 1)
    return object("one expert per token, because the router's weight multiplies the input",
                  str("the layer selects ", r.layer.top_k));
  if (r.parallel.format == ActivationFormat::kStandard) return {};
  return object("router weights, because they multiply the input", "batched activations have none");
}

Objection refuse_deterministic(const Backend& b, const Request& r, const Machine&) {
  if (!r.deterministic || !lacks(b, Feature::kDeterministic)) return {};
  return object("results that may depend on the other tokens in the batch",
                "batch-invariant results are requested");
}

constexpr Rule kRules[] = {
    {"tokens", refuse_tokens},
    {"activation-format", refuse_activation_format},
    {"expert-parallel", refuse_expert_parallel},
    {"lora", refuse_lora},
    {"input-weight", refuse_input_weight},
    {"deterministic", refuse_deterministic},
};

}  // namespace
}  // namespace rules_request

std::span<const Rule> request_rules() {
  return rules_request::kRules;
}

bool countable_adapters(const Request& request) {
  const int64_t rank = request.lora_rank, adapters = request.max_adapters;
  if (rank == 0) return true;
  if (rank < 0 || rank > kMaxLayerSize || adapters < 1 || adapters > kMaxLayerSize) return false;
  // An adapter has 3 numbers of at most 4 bytes for each of these.
  constexpr int64_t kMost = int64_t{1} << 58;
  const LayerSpec& layer = request.layer;
  return adapters * rank <=
         kMost / layer.num_experts / (layer.hidden_size + layer.intermediate_size);
}

int64_t countable_tokens(const Request& request) {
  const bool batched = request.parallel.format == ActivationFormat::kBatched;
  const int64_t per_token = batched ? request.layer.num_experts : request.layer.top_k;
  return std::numeric_limits<int32_t>::max() / std::max<int64_t>(per_token, 1);
}

}  // namespace moracle
