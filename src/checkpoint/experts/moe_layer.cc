// Describes the experts of one layer: reads config.json and checks every tensor.
#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/experts/stack.h"
#include "checkpoint/state.h"
#include "quant/widen.h"

namespace moracle {
namespace {

Config::Keys keys(ConfigKeys keys) {
  return {keys.begin(), keys.end()};
}

// A number of the layer: one for all layers, or an array with one for each.
Result<int64_t> integer_of_layer(const Checkpoint::State& state, ConfigKeys names, int64_t layer,
                                 int64_t max) {
  const Config& config = state.config;
  const nlohmann::json* const value = config.find(keys(names));
  if (value == nullptr || !value->is_array()) return config.integer(keys(names), 1, max);
  MORACLE_TRY(const std::vector<int64_t> all, config.integers(keys(names)));
  if (static_cast<int64_t>(all.size()) != state.num_layers) {
    return config.wrong(keys(names),
                        str("a number, or one for each of ", state.num_layers, " layers"),
                        str("it has ", all.size()));
  }
  const int64_t own = all[static_cast<size_t>(layer)];
  if (own >= 1 && own <= max) return own;
  return config.wrong(keys(names), str("whole numbers from 1 to ", max),
                      str("it is ", own, " for layer ", layer));
}

Result<Score> read_score(const Config& config, const ExpertConvention& family) {
  if (family.score) return *family.score;
  const Config::Keys names = keys(family.score_keys);
  if (!config.has(names)) return family.default_score;
  MORACLE_TRY(const std::string score, config.text(names));
  if (score == "softmax") return family.softmax;
  if (score == "sigmoid") return Score::kSigmoid;
  if (score == "sqrtsoftplus") return Score::kSqrtSoftplus;
  return config.unsupported(names, "softmax, sigmoid or sqrtsoftplus", "it is " + score);
}

Result<Routing> read_routing(const Checkpoint::State& state, int64_t layer) {
  if (state.convention == nullptr) return Routing{.score = Score::kUnknown};
  const Config& config = state.config;
  const ExpertConvention& family = *state.convention;
  Routing routing;
  MORACLE_TRY(routing.score, read_score(config, family));
  MORACLE_TRY(routing.renormalize,
              config.boolean_or(family.renormalize, keys(family.renormalize_keys)));
  // Files of DeepSeek-V2 may name groups and a method that does not use them.
  MORACLE_TRY(const std::string method, config.text_or("", {"topk_method"}));
  if (method != "greedy") {
    MORACLE_TRY(routing.num_groups, config.integer_or(1, {"n_group", "num_expert_group"}, 1));
    MORACLE_TRY(routing.top_groups, config.integer_or(1, {"topk_group"}, 1, routing.num_groups));
  }
  MORACLE_TRY(const double factor, config.number_or(1, keys(family.scaling_factor)));
  routing.scaling_factor = static_cast<float>(factor);
  routing.weight_on_input = family.weight_on_input;
  routing.expert_scales = family.expert_scales;
  if (routing.score == Score::kSparseMixer) {
    MORACLE_TRY(const double jitter, config.number({"router_jitter_noise"}));
    if (!(jitter >= 0 && jitter <= 1))
      return config.wrong({"router_jitter_noise"}, "a number from 0 to 1", str("it is ", jitter));
    routing.jitter = static_cast<float>(jitter);
  }
  routing.correction_bias =
      state.tensors.find(of_layer(state, family.correction_bias, layer)) != nullptr;
  return routing;
}

// The same rule as the router's, but with the key in the message.
Status check_groups(const Config& config, const LayerSpec& spec) {
  const Config::Keys of_all = {"n_group", "num_expert_group"}, of_best = {"topk_group"};
  const int64_t groups = spec.routing.num_groups;
  if (spec.num_experts % groups != 0) {
    return config.wrong(of_all, str("a divisor of ", spec.num_experts, " experts"),
                        str("it is ", groups));
  }
  const int64_t most = spec.num_experts / groups * spec.routing.top_groups;
  if (spec.top_k <= most) return {};
  return config.wrong(of_best, str("groups with at least ", spec.top_k, " experts together"),
                      str(spec.routing.top_groups, " of ", groups, " groups have ", most));
}

// Step-3.7's limits, one for each layer, and perhaps more; 0 or null: none.
Result<double> limit_of_layer(const Config& config, int64_t layer) {
  const nlohmann::json* const limits = config.find({"swiglu_limits"});
  if (limits == nullptr) return 0.0;
  const auto at = static_cast<size_t>(layer);
  const bool listed = limits->is_array() && limits->size() > at;
  if (listed && (*limits)[at].is_null()) return 0.0;
  const bool number = listed && (*limits)[at].is_number();
  const double limit = number ? (*limits)[at].get<double>() : -1;
  if (limit >= 0 && limit <= 1e30) return limit;
  return config.wrong({"swiglu_limits"}, "a number from 0 for each layer",
                      str("it has another one for layer ", layer));
}

// Configs name the function alone: of experts with a gate, "silu" means silu(gate) · up.
Result<ActivationSpec> read_activation(const Checkpoint::State& state, int64_t layer) {
  const Config& config = state.config;
  MORACLE_TRY(const double own_limit, limit_of_layer(config, layer));
  if (own_limit > 0)
    return ActivationSpec{.function = Activation::kSwigluStep,
                          .limit = static_cast<float>(own_limit)};
  const Config::Keys names = keys(convention_of(state).activation_keys);
  MORACLE_TRY(const std::string text, config.text_or("silu", names));
  const Result<Activation> function = parse_activation(text);
  if (!function || !is_gated(*function))
    return config.unsupported(names, "an activation function with a gate", "it is " + text);
  if (!convention_of(state).gated) {
    const std::optional<Activation> own = without_gate(*function);
    if (own) return ActivationSpec{*own};
    return config.unsupported(names, "silu, gelu, gelu_tanh or relu2", "it is " + text);
  }
  ActivationSpec activation{convention_of(state).activation.value_or(*function)};
  const bool clamped = activation.function == Activation::kSwigluOai ||
                       activation.function == Activation::kSwigluStep;
  MORACLE_TRY(const double limit, config.number_or(clamped ? 7 : 0, {"swiglu_limit"}));
  if (!(limit > 0 || (limit == 0 && !clamped)) || limit > 1e30)
    return config.wrong({"swiglu_limit"}, "a number above 0", str("it is ", limit));
  activation.limit = static_cast<float>(limit);
  MORACLE_TRY(const double alpha, config.number_or(activation.alpha, {"swiglu_alpha"}));
  if (!(std::abs(alpha) <= 1e30))
    return config.wrong({"swiglu_alpha"}, "a finite number", str("it is ", alpha));
  activation.alpha = static_cast<float>(alpha);
  return activation;
}

Result<LayerSpec> read_spec(const Checkpoint::State& state, const ExpertNames& names,
                            int64_t layer) {
  const Config& config = state.config;
  const ExpertConvention& family = convention_of(state);
  LayerSpec spec;
  spec.name = experts_prefix(state, names, layer);
  MORACLE_TRY(spec.num_experts, config.integer(keys(family.num_experts), 1, 1 << 20));
  MORACLE_TRY(spec.top_k, integer_of_layer(state, family.top_k, layer, spec.num_experts));
  MORACLE_TRY(spec.hidden_size, config.integer(keys(family.hidden_size), 1, 1 << 24));
  MORACLE_TRY(spec.intermediate_size, config.integer(keys(family.intermediate_size), 1, 1 << 24));
  MORACLE_TRY(spec.routing, read_routing(state, layer));
  MORACLE_CHECK(check_groups(config, spec));
  MORACLE_TRY(spec.activation, read_activation(state, layer));
  return spec;
}

// Checks each source separately: extra rows of gate must not hide missing rows of up.
Status check_sizes(const Tensors& tensors, const Stack& stack, int64_t n, int64_t k) {
  for (const auto& source : stack.sources) {
    if (source.n == n && stack.shape.k == k) continue;
    MatrixShape shape = stack.shape;
    shape.n = source.n;
    return tensors.wrong(source.tensors[0], str("[", n, ", ", k, "] (from config.json)"),
                         "it is " + show(shape, stack.scheme));
  }
  return {};
}

// One matrix of all experts.
struct Experts {
  std::optional<Stack> first;
  std::optional<Scheme> common;  // the scheme of all experts so far
  std::vector<std::vector<DescribedMatrix::Source>> sources;
  std::vector<float> input_scales;
  bool group_index = false;  // true if any expert has one
  bool differ = false;       // true if the experts have several schemes

  Status push(const Checkpoint::State& state, Stack stack) {
    if (!first) common = stack.scheme;
    if (first && (first->shape != stack.shape || first->scheme != stack.scheme)) {
      MatrixShape same = stack.shape;
      same.group_index = first->shape.group_index;  // may differ between experts
      if (first->scheme != stack.scheme) same.key = first->shape.key;
      common = common_scheme(*common, stack.scheme);
      if (!common || first->shape != same) {
        return state.tensors.wrong(
            stack.sources[0].tensors[0],
            str("the scheme of expert 0, ", show(first->shape, first->scheme),
                ", because one kernel multiplies all experts"),
            "it is " + show(stack.shape, stack.scheme));
      }
      differ |= first->scheme != stack.scheme;
    }
    sources.push_back(stack.sources);
    if (stack.input_scale > 0) input_scales.push_back(stack.input_scale);
    group_index |= stack.shape.group_index;
    if (!first) first = std::move(stack);
    first->shape.group_index = group_index;
    return {};
  }
  void add_tensors(std::unordered_set<std::string>& names) const {
    for (const auto& expert : sources) {
      for (const auto& source : expert) names.insert(source.tensors.begin(), source.tensors.end());
    }
  }
  DescribedMatrix matrix(std::shared_ptr<const void> owner) && {
    if (differ) {
      for (auto& expert : sources) widen(expert, common->weight);
      first->shape.key = common->weight;
    }
    DescribedMatrix all(first->shape, *common, std::move(sources), std::move(owner));
    all.set_input_scales(std::move(input_scales));
    return all;
  }
};

// Gate and up of expert e, each from a tensor that holds all experts.
Result<Stack> describe_gate_and_up(const Checkpoint::State& state, const ExpertNames& names,
                                   const LayerSpec& spec, int64_t e) {
  const FusedShape shape = {spec.num_experts, spec.intermediate_size, spec.hidden_size};
  MORACLE_TRY(Stack gate,
              describe_fused(state, names, str(spec.name, ".", names.gate), false, e, shape));
  MORACLE_TRY(Stack up,
              describe_fused(state, names, str(spec.name, ".", names.up), false, e, shape));
  if (up.shape != gate.shape || up.scheme != gate.scheme) {
    return state.tensors.wrong(up.sources[0].tensors[0],
                               "the scheme of the gate, " + show(gate.shape, gate.scheme),
                               "it is " + show(up.shape, up.scheme));
  }
  gate.shape.n += up.shape.n;
  gate.input_scale = std::max(gate.input_scale, up.input_scale);
  gate.sources.push_back(std::move(up.sources[0]));
  align_blocks(gate.shape, gate.sources);
  return gate;
}

Status describe_expert(const Checkpoint::State& state, const ExpertNames& names,
                       const LayerSpec& spec, int64_t e, Experts& w13, Experts& w2) {
  const int64_t intermediate = spec.intermediate_size, hidden = spec.hidden_size;
  if (names.fused && !names.gate.empty()) {
    MORACLE_TRY(Stack gate_up, describe_gate_and_up(state, names, spec, e));
    MORACLE_TRY(Stack down, describe_fused(state, names, fused_down(names, spec.name), false, e,
                                           {spec.num_experts, hidden, intermediate}));
    MORACLE_CHECK(check_sizes(state.tensors, gate_up, intermediate, hidden));
    MORACLE_CHECK(check_sizes(state.tensors, down, hidden, intermediate));
    MORACLE_CHECK(w13.push(state, std::move(gate_up)));
    return w2.push(state, std::move(down));
  }
  if (names.fused) {
    const int64_t experts = spec.num_experts, rows = spec.w13_rows();
    MORACLE_TRY(Stack gate_up, describe_fused(state, names, fused_gate_up(names, spec.name), true,
                                              e, {experts, rows, hidden}));
    MORACLE_TRY(Stack down, describe_fused(state, names, fused_down(names, spec.name), false, e,
                                           {experts, hidden, intermediate}));
    MORACLE_CHECK(check_sizes(state.tensors, gate_up, rows, hidden));
    MORACLE_CHECK(check_sizes(state.tensors, down, hidden, intermediate));
    MORACLE_CHECK(w13.push(state, std::move(gate_up)));
    return w2.push(state, std::move(down));
  }
  const std::string expert = str(spec.name, ".", e, ".");
  std::vector<std::string> modules = {str(expert, names.up)};
  if (!names.gate.empty()) modules.insert(modules.begin(), str(expert, names.gate));
  MORACLE_TRY(Stack gate_up, describe_stack(state, modules));
  MORACLE_TRY(Stack down, describe_stack(state, {str(expert, names.down)}));
  MORACLE_CHECK(check_sizes(state.tensors, gate_up, intermediate, hidden));
  MORACLE_CHECK(check_sizes(state.tensors, down, hidden, intermediate));
  MORACLE_CHECK(w13.push(state, std::move(gate_up)));
  return w2.push(state, std::move(down));
}

// True for tensors of the experts that return their input.
bool is_identity(const Checkpoint::State& state, const LayerSpec& spec, const std::string& name) {
  const ConfigKeys names = convention_of(state).num_identity;
  const Result<int64_t> count = state.config.integer_or(0, keys(names), 0);
  for (int64_t e = 0; !names.empty() && count && e < *count; ++e)
    if (name.starts_with(str(spec.name, ".", spec.num_experts + e, "."))) return true;
  return false;
}

// An unread tensor of this layer's experts would be a forgotten expert or bias.
Status check_coverage(const Checkpoint::State& state, const LayerSpec& spec, int64_t layer,
                      const std::unordered_set<std::string>& claimed) {
  const std::string prefix = spec.name + ".";
  // Some families name the router's bias as if it were one of the experts' tensors.
  const std::string bias = of_layer(state, convention_of(state).correction_bias, layer);
  const auto& all = state.tensors.all();
  for (auto it = all.lower_bound(prefix); it != all.end() && it->first.starts_with(prefix); ++it) {
    if (claimed.contains(it->first) || it->first == bias || is_identity(state, spec, it->first))
      continue;
    return state.tensors.wrong(
        it->first, str("to belong to one of ", spec.num_experts, " experts of this scheme"),
        "the model does not use it");
  }
  return {};
}

}  // namespace

std::optional<Activation> without_gate(Activation function) {
  if (function == Activation::kSilu) return Activation::kSiluNoMul;
  if (function == Activation::kGelu) return Activation::kGeluNoMul;
  if (function == Activation::kGeluTanh) return Activation::kGeluTanhNoMul;
  if (function == Activation::kRelu2) return Activation::kRelu2NoMul;
  return {};
}

std::string assumptions(const Checkpoint::State& state) {
  if (state.convention != nullptr) return "";
  const Config& config = state.config;
  std::string text = "; assumptions, because the architecture is unknown: usual tensor names";
  if (!config.has({"moe_intermediate_size"}))
    text += ", intermediate_size is the size of the experts";
  if (!config.has({"hidden_act"})) text += ", silu";
  return text;
}

Result<DescribedWeights> Checkpoint::moe_layer(int64_t layer) const {
  const State& state = *state_;
  const ExpertNames* names = expert_names(state, layer);
  if (names == nullptr) {
    const std::vector<int64_t> layers = moe_layers();
    if (layers.empty()) {
      return Error{ErrorKind::kBadFile, state.folder, str("layer ", layer),
                   str("experts, such as ", join(known_expert_names(state, layer), " or ")),
                   "the file has no tensor of experts in any layer"};
    }
    std::string fact = "this layer has no experts";
    if (layer >= 0 && layer < state.num_layers)
      fact += str(", such as ", join(known_expert_names(state, layer), " or "));
    return Error{ErrorKind::kInvalidArgument, state.folder, str("layer ", layer),
                 "a layer with experts, one of " + join(layers), std::move(fact)};
  }
  MORACLE_TRY(LayerSpec spec, read_spec(state, *names, layer));
  Experts w13, w2;
  for (int64_t e = 0; e < spec.num_experts; ++e) {
    MORACLE_CHECK(describe_expert(state, *names, spec, e, w13, w2));
  }
  std::unordered_set<std::string> claimed;
  w13.add_tensors(claimed);
  w2.add_tensors(claimed);
  claims_->add(claimed);
  // Families with their own names for fused tensors store other tensors beside the experts.
  if (!names->fused || names->up.empty())
    MORACLE_CHECK(check_coverage(state, spec, layer, claimed));
  const std::string gate = w13.first->first_module, down = w2.first->first_module;
  DescribedWeights weights{std::move(spec), std::move(w13).matrix(state_),
                           std::move(w2).matrix(state_)};
  MORACLE_CHECK(check_activations(state.tensors, gate, weights.w13, down, weights.w2));
  weights.spec.scheme = weights.w13.scheme();
  const MatrixShape& first = weights.w13.shape();
  const MatrixShape& second = weights.w2.shape();
  weights.spec.group_index = first.group_index || second.group_index;
  weights.spec.bias = first.bias || second.bias;
  weights.spec.set_matrices({first, second});
  return weights;
}

}  // namespace moracle
