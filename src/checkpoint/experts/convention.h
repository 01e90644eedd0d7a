// How a model family writes its experts: names of tensors, keys of config.json, and the meaning of
// keys that are missing. The routing of a checkpoint without a known family is unknown. Each family
// defines its own in src/models/families; this room only applies them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf/convention.h"
#include "moracle/checkpoint.h"

namespace moracle {

/// Names of one layer's expert tensors: {L} and {E} stand for layer and expert.
struct ExpertNames {
  std::string_view experts;         ///< prefix of one layer's experts
  std::string_view gate, up, down;  ///< modules of one expert, below `experts`.{E}.
  /// One tensor per projection holds all experts: `experts`.gate_up_proj and .down_proj. gate, up
  /// and down are empty; or `up` and `down` name the tensors, and others may lie beside them. With
  /// `gate`, gate and up are two tensors. Experts without a gate have no rows of one in `up`.
  bool fused = false;
  bool transposed = false;   ///< plain fused tensors are [E, K, N]
  bool either_way = false;   ///< plain fused tensors are [E, K, N] where they do not fit [E, N, K]
  bool interleaved = false;  ///< rows of gate_up alternate: gate, up, gate, up
};

/// Alternative keys of config.json; the first present one counts.
using ConfigKeys = std::span<const char* const>;

inline constexpr const char* kNumExpertsKeys[] = {"num_experts", "num_local_experts",
                                                  "n_routed_experts"};
inline constexpr const char* kTopKKeys[] = {"num_experts_per_tok", "experts_per_token"};
inline constexpr const char* kHiddenSizeKeys[] = {"hidden_size"};
inline constexpr const char* kActivationKeys[] = {"hidden_act"};
inline constexpr const char* kExpertSizeKeys[] = {"moe_intermediate_size"};
/// For families without dense layers, whose config may have only one of the sizes.
inline constexpr const char* kOnlySizeKeys[] = {"moe_intermediate_size", "intermediate_size"};
inline constexpr const char* kRenormalizeKeys[] = {"norm_topk_prob"};
inline constexpr const char* kScoreKeys[] = {"scoring_func"};
inline constexpr const char* kScalingFactorKeys[] = {"routed_scaling_factor"};

inline constexpr const char* kNumLayersKeys[] = {"num_hidden_layers"};

struct ExpertConvention {
  /// Values of keys that config.json lacks, as a JSON object: the defaults of the family's
  /// configuration class in transformers, for the keys that are read.
  std::string_view defaults = "{}";
  /// Tried in this order, before the names that several families share (see expert_names).
  std::span<const ExpertNames> names = {};
  ConfigKeys num_layers = kNumLayersKeys;
  /// Layers of the model for each of these (LongCat-Flash: 2).
  int64_t layers_of_each = 1;
  ConfigKeys num_experts = kNumExpertsKeys;
  /// The number of experts behind these that return their input. Their tensors mean nothing.
  ConfigKeys num_identity = {};
  ConfigKeys top_k = kTopKKeys;
  ConfigKeys intermediate_size = kExpertSizeKeys;
  ConfigKeys hidden_size = kHiddenSizeKeys;  ///< of the vectors that experts read
  ConfigKeys score_keys = kScoreKeys;
  Score softmax = Score::kSoftmax;        ///< the score that the config calls softmax
  Score default_score = Score::kSoftmax;  ///< used if the config has none of score_keys
  std::optional<Score> score;             ///< fixed: score_keys are ignored
  bool renormalize = false;               ///< used if the config has none of renormalize_keys
  ConfigKeys renormalize_keys = kRenormalizeKeys;  ///< empty: fixed
  ConfigKeys scaling_factor = kScalingFactorKeys;
  bool weight_on_input = false;  ///< the weights multiply the experts' inputs
  bool expert_scales = false;    ///< each weight is multiplied by a number of its expert
  /// The tensor whose presence means that a bias affects the choice of experts.
  std::string_view correction_bias = "model.layers.{L}.mlp.gate.e_score_correction_bias";
  ConfigKeys activation_keys = kActivationKeys;
  std::optional<Activation> activation;  ///< fixed: activation_keys are ignored
  bool gated = true;                     ///< false: `gate` of the names is empty
  /// The number of layers is that of the first present key's list, or of its letters. Without one
  /// of these keys: num_hidden_layers.
  ConfigKeys layer_lists = {};
  /// The name by which the family reads a stored tensor, where files have several names for one
  /// tensor; null: the stored name.
  std::string (*tensor_name)(std::string_view stored) = nullptr;
  std::span<const GgufConvention> gguf = {};  ///< how the family appears in GGUF files
};

/// The model class of files with this architectures[0] and model_type: most often `architecture`
/// itself. transformers saves some families under the class of another one, which computes them.
std::string model_class_of(const std::string& architecture, std::string_view model_type);
/// The convention of a model class; nullptr for an unknown family.
const ExpertConvention* find_convention(std::string_view architecture);

/// The function of the up projection alone that has the name of `function`: relu2_no_mul for relu2.
/// Empty if there is none.
std::optional<Activation> without_gate(Activation function);

struct NamedConvention {
  std::string_view model_class;  ///< config.json's architectures[0]
  const ExpertConvention* convention;
};
/// Those of all families.
std::vector<NamedConvention> conventions();

}  // namespace moracle
