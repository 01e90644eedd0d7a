// Checkpoints, and layers from files and from tensors.
#include <algorithm>

#include "base/try.h"
#include "c_api/arguments.h"
#include "c_api/handles.h"

namespace moracle::c_api {
namespace {

// The enums of moracle/c.h match the library's.
static_assert(MORACLE_F32 == static_cast<int>(DType::kF32));
static_assert(MORACLE_F16 == static_cast<int>(DType::kF16));
static_assert(MORACLE_BF16 == static_cast<int>(DType::kBF16));
static_assert(MORACLE_F64 == static_cast<int>(DType::kF64));
static_assert(MORACLE_I64 == static_cast<int>(DType::kI64));
static_assert(MORACLE_I32 == static_cast<int>(DType::kI32));
static_assert(MORACLE_I16 == static_cast<int>(DType::kI16));
static_assert(MORACLE_I8 == static_cast<int>(DType::kI8));
static_assert(MORACLE_U8 == static_cast<int>(DType::kU8));
static_assert(MORACLE_I4 == static_cast<int>(DType::kI4));
static_assert(MORACLE_BOOL == static_cast<int>(DType::kBool));
static_assert(MORACLE_F8_E4M3 == static_cast<int>(DType::kF8E4M3));
static_assert(MORACLE_F8_E5M2 == static_cast<int>(DType::kF8E5M2));
static_assert(MORACLE_F8_E8M0 == static_cast<int>(DType::kF8E8M0));
static_assert(MORACLE_F4_E2M1 == static_cast<int>(DType::kF4E2M1));
static_assert(MORACLE_F4_E2M1 + 1 ==
              static_cast<int>(DType::kQ4_0));  // tensors in memory have no blocks
static_assert(MORACLE_SOFTMAX == static_cast<int>(Score::kSoftmax));
static_assert(MORACLE_SIGMOID == static_cast<int>(Score::kSigmoid));
static_assert(MORACLE_TOPK_THEN_SOFTMAX == static_cast<int>(Score::kTopkThenSoftmax));
static_assert(MORACLE_SPARSE_MIXER == static_cast<int>(Score::kSparseMixer));
static_assert(MORACLE_SCORE_UNKNOWN == static_cast<int>(Score::kUnknown));
static_assert(MORACLE_SQRT_SOFTPLUS == static_cast<int>(Score::kSqrtSoftplus));

constexpr int32_t kMostRank = 8;

Result<TensorView> view_of(const moracle_tensor& tensor, const std::string& name) {
  TensorView view;
  if (tensor.data == nullptr) return view;
  MORACLE_TRY(view.dtype, dtype_of(tensor.dtype, name.c_str()));
  if (tensor.rank < 0 || tensor.rank > kMostRank)
    return bad_argument(name + ".rank", str("0 to ", kMostRank), str("it is ", tensor.rank));
  if (tensor.rank > 0) MORACLE_CHECK(check_given(tensor.shape, (name + ".shape").c_str()));
  int64_t left = int64_t{1} << 60;  // limit of elements: their bytes must fit into 64 bits
  for (int32_t i = 0; i < tensor.rank; ++i) {
    const int64_t size = tensor.shape[i];
    if (size < 0 || size > left)
      return bad_argument(str(name, ".shape[", i, "]"),
                          "a size of at least 0, and at most 2^60 elements", str("it is ", size));
    left /= std::max<int64_t>(size, 1);
    view.shape.push_back(size);
  }
  view.data = static_cast<const std::byte*>(tensor.data);
  return view;
}

Result<StoredMatrix> matrix_of(const moracle_stored_matrix& from, const std::string& name) {
  StoredMatrix matrix;
  matrix.name = name;
  matrix.input_name = name + "_input_scale";
  MORACLE_TRY(matrix.weight, view_of(from.weight, name));
  MORACLE_TRY(matrix.scales, view_of(from.scales, name + "_scale"));
  MORACLE_TRY(matrix.zero_points, view_of(from.zero_points, name + "_zp"));
  MORACLE_TRY(matrix.group_index, view_of(from.group_index, name + "_g_idx"));
  MORACLE_TRY(matrix.bias, view_of(from.bias, name + "_bias"));
  MORACLE_TRY(matrix.input_scales, view_of(from.input_scales, matrix.input_name));
  return matrix;
}

Result<std::vector<int32_t>> expert_map_of(const moracle_experts& from) {
  if (from.expert_map == nullptr) return std::vector<int32_t>();
  if (from.num_experts >= 1 && from.num_experts <= kMaxLayerSize)
    return std::vector<int32_t>(from.expert_map, from.expert_map + from.num_experts);
  return bad_argument("num_experts", str("1 to ", kMaxLayerSize, " entries of expert_map"),
                      str("it is ", from.num_experts));
}

Result<moracle_layer*> layer_from_tensors(const moracle_experts* experts) {
  MORACLE_TRY(const moracle_experts from, read_struct(experts, "experts"));
  MORACLE_CHECK(check_given(from.scheme, "scheme"));
  LayerSpec spec;
  spec.name = "experts";
  spec.top_k = from.top_k;
  MORACLE_TRY(spec.scheme, parse_scheme(from.scheme));
  if (from.activation != nullptr) {
    MORACLE_TRY(spec.activation.function, parse_activation(from.activation));
  }
  if (spec.activation.function == Activation::kSwigluOai) {
    spec.activation.alpha = from.alpha;
    spec.activation.beta = from.beta;
  }
  spec.activation.limit = from.limit;
  spec.routing.weight_on_input = from.weight_on_input != 0;
  StoredExperts stored;
  MORACLE_TRY(stored.w13, matrix_of(from.w13, "w13"));
  MORACLE_TRY(stored.w2, matrix_of(from.w2, "w2"));
  if (from.packing != nullptr) {
    MORACLE_TRY(stored.packing, parse_packing(from.packing));
  }
  stored.interleaved = from.interleaved != 0;
  MORACLE_TRY(stored.expert_map, expert_map_of(from));
  MORACLE_TRY(DescribedWeights weights, describe(std::move(stored), std::move(spec)));
  return new moracle_layer(std::move(weights));
}

Result<moracle_checkpoint*> open_checkpoint(const char* folder) {
  MORACLE_CHECK(check_given(folder, "folder"));
  MORACLE_TRY(Checkpoint checkpoint, Checkpoint::open(folder));
  std::vector<int64_t> layers = checkpoint.moe_layers();
  return new moracle_checkpoint{std::move(checkpoint), std::move(layers)};
}

Result<moracle_layer*> layer_from_checkpoint(const moracle_checkpoint* checkpoint, int64_t index,
                                             const char* quantization) {
  MORACLE_CHECK(check_given(checkpoint, "checkpoint"));
  QuantizationMap map;
  if (quantization != nullptr) {
    MORACLE_TRY(map, QuantizationMap::parse(quantization));
  }
  MORACLE_TRY(DescribedWeights weights, checkpoint->value.moe_layer(index, map));
  return new moracle_layer(std::move(weights));
}

Status get_routing(const moracle_layer* layer, moracle_routing* to) {
  MORACLE_CHECK(check_given(layer, "layer"));
  const Routing& routing = layer->spec.routing;
  moracle_routing known{};
  known.score = static_cast<int32_t>(routing.score);
  known.renormalize = routing.renormalize;
  known.num_groups = routing.num_groups;
  known.top_groups = routing.top_groups;
  known.scaling_factor = routing.scaling_factor;
  known.jitter = routing.jitter;
  known.correction_bias = routing.correction_bias;
  known.expert_scales = routing.expert_scales;
  known.weight_on_input = routing.weight_on_input;
  return write_struct(known, to, "routing");
}

Status set_routing(moracle_layer* layer, const moracle_routing* from) {
  MORACLE_CHECK(check_given(layer, "layer"));
  if (!layer->weights) return used_up(layer->spec);
  MORACLE_TRY(const Routing routing, routing_of(from));
  layer->spec.routing = layer->weights->spec.routing = routing;
  layer->text = describe(layer->spec);
  return {};
}

}  // namespace

Result<DType> dtype_of(moracle_dtype dtype, const char* place) {
  if (dtype >= 0 && dtype <= MORACLE_F4_E2M1) return static_cast<DType>(dtype);
  return bad_argument(str(place, ".dtype"), "a value of moracle_dtype", str("it is ", dtype));
}

Error used_up(const LayerSpec& spec) {
  return bad_argument(spec.name, "a layer with weights", "moracle_moe_make has consumed them");
}

Result<Routing> routing_of(const moracle_routing* routing) {
  MORACLE_TRY(const moracle_routing from, read_struct(routing, "routing"));
  if (from.score < 0 || from.score > static_cast<int32_t>(Score::kSqrtSoftplus))
    return bad_argument("routing.score", "a score function", str("it is ", from.score));
  return Routing{.score = static_cast<Score>(from.score),
                 .renormalize = from.renormalize != 0,
                 .num_groups = from.num_groups == 0 ? 1 : from.num_groups,
                 .top_groups = from.top_groups == 0 ? 1 : from.top_groups,
                 .scaling_factor = from.scaling_factor == 0 ? 1 : from.scaling_factor,
                 .correction_bias = from.correction_bias != 0,
                 .weight_on_input = from.weight_on_input != 0,
                 .expert_scales = from.expert_scales != 0,
                 .jitter = from.jitter};
}

}  // namespace moracle::c_api

namespace c_api = moracle::c_api;

moracle_status moracle_checkpoint_open(const char* folder, moracle_checkpoint** out,
                                       moracle_error** error) {
  return c_api::guarded(out, error, [&] { return c_api::open_checkpoint(folder); });
}
int64_t moracle_checkpoint_moe_layers(const moracle_checkpoint* checkpoint, int64_t* layers,
                                      int64_t most) {
  if (checkpoint == nullptr) return 0;
  const std::vector<int64_t>& all = checkpoint->moe_layers;
  const auto count = static_cast<int64_t>(all.size());
  if (layers != nullptr) std::copy_n(all.begin(), std::clamp<int64_t>(most, 0, count), layers);
  return count;
}
void moracle_checkpoint_free(moracle_checkpoint* checkpoint) {
  delete checkpoint;
}

moracle_status moracle_layer_from_checkpoint(const moracle_checkpoint* checkpoint, int64_t index,
                                             const char* quantization, moracle_layer** out,
                                             moracle_error** error) {
  return c_api::guarded(
      out, error, [&] { return c_api::layer_from_checkpoint(checkpoint, index, quantization); });
}
moracle_status moracle_layer_from_tensors(const moracle_experts* experts, moracle_layer** out,
                                          moracle_error** error) {
  return c_api::guarded(out, error, [&] { return c_api::layer_from_tensors(experts); });
}

int64_t moracle_layer_num_experts(const moracle_layer* layer) {
  return layer == nullptr ? 0 : layer->spec.num_experts;
}
int64_t moracle_layer_hidden_size(const moracle_layer* layer) {
  return layer == nullptr ? 0 : layer->spec.hidden_size;
}
int64_t moracle_layer_intermediate_size(const moracle_layer* layer) {
  return layer == nullptr ? 0 : layer->spec.intermediate_size;
}
int64_t moracle_layer_top_k(const moracle_layer* layer) {
  return layer == nullptr ? 0 : layer->spec.top_k;
}
const char* moracle_layer_scheme(const moracle_layer* layer) {
  return layer == nullptr ? nullptr : layer->scheme.c_str();
}
const char* moracle_layer_text(const moracle_layer* layer) {
  return layer == nullptr ? nullptr : layer->text.c_str();
}
moracle_status moracle_layer_routing(const moracle_layer* layer, moracle_routing* routing,
                                     moracle_error** error) {
  return c_api::guarded(error, [&] { return c_api::get_routing(layer, routing); });
}
moracle_status moracle_layer_set_routing(moracle_layer* layer, const moracle_routing* routing,
                                         moracle_error** error) {
  return c_api::guarded(error, [&] { return c_api::set_routing(layer, routing); });
}
void moracle_layer_free(moracle_layer* layer) {
  delete layer;
}
