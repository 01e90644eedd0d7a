// Features of a layer beside its scheme: one row each.
#include "conformance/conformance.h"

namespace moracle::conformance {
namespace {

template <Activation kFunction>
void activation(Request& request) {
  // Values are near 1 in size: a limit of 0.9 clamps some of them.
  request.layer.activation = {.function = kFunction};
  if (kFunction == Activation::kSwigluOai || kFunction == Activation::kSwigluStep)
    request.layer.activation.limit = 0.9f;
}

template <int kRanks, Placement kPlacement>
void spread(Request& request) {
  request.parallel.ep_size = kRanks;
  request.parallel.placement = kPlacement;
}

// Act-order needs groups along K: without them there is no order to change.
void act_order(Request& request) {
  const GroupShape& group = request.layer.scheme.weight.group;
  request.layer.group_index = request.layer.scheme.weight.quantized() && group.cols > 0;
}

void adapters(Request& request) {
  request.lora_rank = 7;
  request.max_adapters = 2;
}

constexpr Variant kVariants[] = {
    {"plain", "no special feature", [](Request&) {}},
    {"act-order", "groups of columns that are not neighbours (GPTQ's desc_act)", act_order},
    {"bias", "biases on w13 and w2", [](Request& r) { r.layer.bias = true; }},
    {"silu-limit", "clamped SwiGLU", [](Request& r) { r.layer.activation.limit = 0.9f; }},
    {"gelu", "gelu", activation<Activation::kGelu>},
    {"gelu-tanh", "gelu_tanh", activation<Activation::kGeluTanh>},
    {"relu2", "relu²", activation<Activation::kRelu2>},
    {"swigluoai", "swigluoai (GPT-OSS)", activation<Activation::kSwigluOai>},
    {"swiglustep", "swiglustep", activation<Activation::kSwigluStep>},
    {"silu-no-mul", "silu without a gate", activation<Activation::kSiluNoMul>},
    {"gelu-no-mul", "gelu without a gate", activation<Activation::kGeluNoMul>},
    {"gelu-tanh-no-mul", "gelu_tanh without a gate", activation<Activation::kGeluTanhNoMul>},
    {"relu2-no-mul", "relu² without a gate", activation<Activation::kRelu2NoMul>},
    {"input-weight", "the router's weight on the input (Llama-4)",
     [](Request& r) { r.layer.routing.weight_on_input = true; }},
    {"ep-2", "experts on 2 ranks", spread<2, Placement::kLinear>},
    {"ep-3-round-robin", "experts on 3 ranks, round-robin", spread<3, Placement::kRoundRobin>},
    {"ep-4", "experts on 4 ranks", spread<4, Placement::kLinear>},
    {"ep-8-round-robin", "experts on 8 ranks, round-robin", spread<8, Placement::kRoundRobin>},
    {"batched", "activations batched by expert",
     [](Request& r) { r.parallel.format = ActivationFormat::kBatched; }},
    {"ep-batched", "batched, on 2 ranks",
     [](Request& r) {
       spread<2, Placement::kLinear>(r);
       r.parallel.format = ActivationFormat::kBatched;
     }},
    {"lora", "LoRA adapters", adapters},
    {"lora-batched", "LoRA adapters, batched",
     [](Request& r) {
       adapters(r);
       r.parallel.format = ActivationFormat::kBatched;
     }},
    {"ep-all", "biases, swigluoai, adapters, act-order, on 3 ranks",
     [](Request& r) {
       act_order(r);
       r.layer.bias = true;
       activation<Activation::kSwigluOai>(r);
       adapters(r);
       spread<3, Placement::kRoundRobin>(r);
     }},
    {"deterministic", "batch-invariant results", [](Request& r) { r.deterministic = true; }},
    {"bf16-activations", "floats may be rounded to bf16 before products",
     [](Request& r) { r.bf16_activations = true; }},
    {"reload", "weights replaced by reload", [](Request&) {}, true},
};

}  // namespace

std::span<const Variant> variants() {
  return kVariants;
}

const Variant* find_variant(std::string_view name) {
  for (const Variant& variant : kVariants) {
    if (variant.name == name) return &variant;
  }
  return nullptr;
}

}  // namespace moracle::conformance
