#include "models/description.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/kv_scales.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"

namespace moracle {

namespace {

// Tensors of a multimodal model beside its language model.
Status ignore_other_modalities(const Checkpoint& checkpoint, Description& description) {
  return ignore_tensors(
      checkpoint, "vision and audio, not run",
      {"model.visual.", "visual.", "vision_model.", "model.vision_tower.", "model.embed_vision.",
       "model.audio_tower.", "model.embed_audio.", "multi_modal_projector.", "vision_tower.",
       "mm_projector.", "vit_large_projector.", "patch_merge_mlp."},
      description);
}

Status describe_kv_scales(const Checkpoint& checkpoint, Description& description) {
  int64_t number = 0;
  for (LayerDescription& layer : description.layers) {
    MORACLE_TRY(KvScales scales,
                read_kv_scales(checkpoint, layer_prefix(checkpoint, number) + "self_attn."));
    if (scales.keys.empty() && scales.values.empty()) {
      MORACLE_TRY(scales, read_kv_scales(checkpoint, layer_prefix(checkpoint, number) + "mixer."));
    }
    ++number;
    layer.key_scales = std::move(scales.keys);
    layer.value_scales = std::move(scales.values);
  }
  return {};
}

// Layers for multi-token prediction lie behind the last layer, or under a name of their own. The
// tensors decide: config.json of many quantized files does not mention the layers any more. `enorm`
// tells such a layer from one that config.json should count.
Status ignore_next_tokens(const Checkpoint& checkpoint, Description& description) {
  const Checkpoint::State& state = checkpoint.state();
  MORACLE_TRY(const int64_t listed,
              state.config.integer_or(0, {"num_nextn_predict_layers"}, 0, 1000));
  std::vector<std::string> prefixes = {"mtp.", "language_model.mtp.", state.root + "mtp.",
                                       state.root + "mtp_"};
  for (int64_t layer = state.num_layers;; ++layer) {
    const std::string prefix = str(state.root, "layers.", layer, ".");
    if (layer >= state.num_layers + listed && !checkpoint.has_tensor(prefix + "enorm.weight"))
      break;
    prefixes.push_back(prefix);
  }
  return ignore_tensors(checkpoint, "multi-token prediction, not run", prefixes, description);
}

std::string routing_text(const Routing& routing) {
  if (routing.score != Score::kUnknown) return "routed by " + name(routing);
  return "routing unknown, so the caller must give it";
}

// The error for an unknown architecture: its usable experts, and the file to add.
std::string unknown(const Checkpoint& checkpoint) {
  const std::string is = "it is '" + checkpoint.architecture() + "'";
  const std::vector<int64_t> layers = checkpoint.moe_layers();
  if (layers.empty()) {
    return str(is, ", and no tensor has a known expert name, such as ",
               join(known_expert_names(checkpoint.state(), 0), " or "));
  }
  LayerSpec spec;
  for (int64_t layer : layers) {
    const Result<DescribedWeights> experts = checkpoint.moe_layer(layer);
    if (!experts) return is + "; its experts cannot be used: " + experts.error().to_string();
    if (layer == layers[0]) spec = experts->spec;
  }
  return str(is, "; its experts can be used: ", layers.size(), " layers of ", spec.num_experts,
             " experts, top-", spec.top_k, ", hidden size ", spec.hidden_size,
             ", intermediate size ", spec.intermediate_size, ", ", spec.scheme_name(), ", ",
             routing_text(spec.routing), assumptions(checkpoint.state()),
             "; the whole model needs a file in src/models/families (see CONTRIBUTING.md)");
}

}  // namespace

Result<Description> describe(const Checkpoint& checkpoint) {
  std::vector<std::string_view> known;
  for (const Family* family : families()) {
    if (family->describe == nullptr) continue;
    known.push_back(family->architecture);
    if (!family->also.empty()) known.push_back(family->also);
    if (family->multimodal != family->architecture && !family->multimodal.empty())
      known.push_back(family->multimodal);
    if (!family->is(checkpoint.architecture())) continue;
    // Describe a copy without claims: earlier calls must not affect this description.
    const Checkpoint own = checkpoint.unclaimed_copy();
    MORACLE_TRY(Description description, family->describe(own));
    MORACLE_CHECK(ignore_next_tokens(own, description));
    MORACLE_CHECK(describe_kv_scales(own, description));
    if (!family->multimodal.empty()) MORACLE_CHECK(ignore_other_modalities(own, description));
    const std::vector<std::string> left = own.unclaimed();
    if (left.empty()) return description;
    return checkpoint.state().tensors.wrong(
        left[0], str("to be part of ", family->architecture),
        str("the model does not use it",
            left.size() > 1 ? str(", and ", left.size() - 1, " other tensors") : ""));
  }
  return Error{ErrorKind::kUnsupported, checkpoint.folder() + "/config.json", "architectures",
               "one of " + join(known), unknown(checkpoint)};
}

namespace {

// Families whose layer for multi-token prediction describe_decoder() describes. Others have further
// steps in it, or names of their own.
constexpr std::string_view kWithNextTokens[] = {"Glm4MoeForCausalLM",     "DeepseekV3ForCausalLM",
                                                "Qwen3NextForCausalLM",   "Qwen3_5MoeForCausalLM",
                                                "MiMoV2FlashForCausalLM", "DeepseekV32ForCausalLM",
                                                "GlmMoeDsaForCausalLM",   "Glm4MoeLiteForCausalLM"};

const Family* family_with_next_tokens(const Checkpoint& checkpoint) {
  for (const Family* family : families()) {
    if (!family->is(checkpoint.architecture())) continue;
    const bool known = std::find(std::begin(kWithNextTokens), std::end(kWithNextTokens),
                                 family->architecture) != std::end(kWithNextTokens);
    return known ? family : nullptr;
  }
  return nullptr;
}

}  // namespace

bool has_next_tokens(const Checkpoint& checkpoint) {
  const Checkpoint::State& state = checkpoint.state();
  if (family_with_next_tokens(checkpoint) == nullptr) return false;
  return checkpoint.has_tensor("mtp.fc.weight") ||
         checkpoint.has_tensor(layer_prefix(checkpoint, state.num_layers) + "enorm.weight");
}

Result<Description> describe_next_tokens(const Checkpoint& checkpoint) {
  if (!has_next_tokens(checkpoint)) {
    return Error{ErrorKind::kUnsupported, checkpoint.folder(), "speculate",
                 str("a layer for multi-token prediction of ", join(kWithNextTokens),
                     "; or ngram, which needs no layer"),
                 family_with_next_tokens(checkpoint) == nullptr
                     ? str("the architecture is ", checkpoint.architecture())
                     : std::string("the files have none")};
  }
  return family_with_next_tokens(checkpoint)->describe(checkpoint.next_tokens_copy());
}

int64_t OutputShares::first(int64_t of_rank) const {
  const int64_t blocks = (num_rows + of_block - 1) / of_block;
  const int64_t least = blocks / size, more = blocks % size;
  return std::min((of_rank * least + std::min(of_rank, more)) * of_block, num_rows);
}

}  // namespace moracle
