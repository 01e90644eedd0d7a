// From a Description to a Model: choose for every layer, then read, pack and let go.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/model_state.h"
#include "moe/carve.h"

namespace moracle {
namespace {

class Loader {
 public:
  Loader(Model::State& state, const ModelOptions& options, Machine machine)
      : state_(state), options_(options), machine_(std::move(machine)) {}

  Status load(Description&& description, int64_t total_bytes);

 private:
  Result<Selection> choose(std::string part, std::optional<int64_t> layer, LayerSpec spec);
  Result<Linear> linear(std::string part, std::optional<int64_t> layer, DescribedMatrix&& weights);
  Result<Layer> load_layer(LayerDescription&& layer, int64_t index);
  Result<Buffer> upload(const std::vector<float>& values);
  Progress progress();
  Status load_embedding(const Description& description);
  Status allocate_activations(const std::vector<LayerSpec>& mlps);

  Model::State& state_;
  const ModelOptions& options_;
  Machine machine_;
  int64_t done_ = 0;
  int64_t total_ = 0;
  // Bytes of the running conversion that are already in done_.
  int64_t counted_ = 0;
};

Progress Loader::progress() {
  counted_ = 0;
  if (!options_.progress) return {};
  return [this](int64_t done, int64_t) {
    done_ += done - counted_;
    counted_ = done;
    return options_.progress(done_, total_);
  };
}

// Selects, and files the choice with those of the equal layers before it.
Result<Selection> Loader::choose(std::string part, std::optional<int64_t> layer, LayerSpec spec) {
  Request request;
  request.layer = std::move(spec);
  request.max_num_tokens = state_.max_num_tokens;
  request.backend = options_.backend;
  request.platform = state_.workspace->device().platform();
  Selection selection = select(request, machine_);
  MORACLE_CHECK(selection.chosen());
  for (Choice& choice : state_.choices) {
    if (choice.part == part && choice.selection.request.layer.same_but_name(request.layer)) {
      if (layer) choice.layers.push_back(*layer);
      return selection;
    }
  }
  std::vector<int64_t> layers;
  if (layer) layers.push_back(*layer);
  state_.choices.push_back({std::move(part), std::move(layers), selection});
  return selection;
}

Result<Linear> Loader::linear(std::string part, std::optional<int64_t> layer,
                              DescribedMatrix&& weights) {
  MORACLE_TRY(const Selection selection,
              choose(std::move(part), layer, linear_spec(weights.tensors().front(), weights)));
  MORACLE_TRY(Linear made,
              Linear::make(std::move(weights), selection, state_.workspace, progress()));
  state_.weight_bytes += made.weight_bytes();
  return made;
}

Result<Buffer> Loader::upload(const std::vector<float>& values) {
  Device& device = state_.workspace->device();
  MORACLE_TRY(Buffer buffer, device.allocate(values.size() * sizeof(float)));
  MORACLE_CHECK(device.upload(buffer.data(), values.data(), values.size() * sizeof(float)));
  return buffer;
}

Result<Layer> Loader::load_layer(LayerDescription&& from, int64_t index) {
  MORACLE_TRY(Buffer input_norm, upload(from.input_norm));
  MORACLE_TRY(Buffer post_norm, upload(from.post_norm));
  MORACLE_TRY(Buffer q_norm, upload(from.q_norm));
  MORACLE_TRY(Buffer k_norm, upload(from.k_norm));
  MORACLE_TRY(Linear qkv, linear("attention qkv", index, std::move(from.qkv)));
  MORACLE_TRY(Linear o, linear("attention output", index, std::move(from.o)));
  std::optional<Linear> router;
  if (from.router) {
    MORACLE_TRY(router, linear("router", index, std::move(*from.router)));
  }
  MORACLE_TRY(const Selection selection, choose(router ? "experts" : "mlp", index, from.mlp.spec));
  MORACLE_TRY(FusedMoe mlp,
              FusedMoe::make(std::move(from.mlp), selection, state_.workspace, progress()));
  state_.weight_bytes += mlp.weight_bytes();
  return Layer{std::move(input_norm), std::move(post_norm), std::move(q_norm), std::move(k_norm),
               std::move(qkv),        std::move(o),         std::move(router), std::move(mlp)};
}

Status Loader::load_embedding(const Description& description) {
  Device& device = state_.workspace->device();
  state_.embedding = description.embedding;
  state_.weight_bytes += static_cast<int64_t>(description.embedding.num_bytes());
  if (device.host_visible()) return {};  // rows are looked up in the file's own memory
  MORACLE_TRY(state_.embedding_buffer, device.allocate(description.embedding.num_bytes()));
  state_.embedding.data = state_.embedding_buffer.as<std::byte>();
  return device.upload(state_.embedding_buffer.data(), description.embedding.data,
                       description.embedding.num_bytes());
}

Status Loader::allocate_activations(const std::vector<LayerSpec>& mlps) {
  Model::State& m = state_;
  Device& device = m.workspace->device();
  const DecoderSpec& spec = m.spec;
  const int64_t tokens = m.max_num_tokens, q_size = spec.num_heads * spec.head_dim;
  int64_t num_experts = 1, top_k = 1;
  for (const LayerSpec& mlp : mlps) {
    num_experts = std::max(num_experts, mlp.num_experts);
    top_k = std::max(top_k, mlp.top_k);
  }
  auto carve = [&](std::byte* base) {
    Carver carver(base);
    const DType dtype = device.activation_dtype();
    m.hidden = carver.take_matrix(dtype, tokens, spec.hidden_size);
    m.normed = carver.take_matrix(dtype, tokens, spec.hidden_size);
    m.qkv = carver.take_matrix(dtype, tokens, q_size + 2 * spec.num_kv_heads * spec.head_dim);
    m.attended = carver.take_matrix(dtype, tokens, q_size);
    m.added = carver.take_matrix(dtype, tokens, spec.hidden_size);
    m.router_logits = carver.take_matrix(dtype, tokens, num_experts);
    return carver.bytes();
  };
  MORACLE_TRY(m.activations, device.allocate(carve(nullptr)));
  carve(m.activations.as<std::byte>());
  MORACLE_TRY(m.topk_ids, device.allocate(tokens * top_k * sizeof(int32_t)));
  MORACLE_TRY(m.topk_weights, device.allocate(tokens * top_k * sizeof(float)));
  MORACLE_TRY(m.one_expert_ids, device.allocate(tokens * sizeof(int32_t)));  // zeroed: expert 0
  MORACLE_TRY(m.one_expert_weights, upload(std::vector<float>(tokens, 1.0f)));
  const int64_t rows = Model::kMaxLogitRows;
  MORACLE_TRY(m.logits_buffer, device.allocate(rows * spec.vocab_size * sizeof(float)));
  m.logits = Matrix::f32(m.logits_buffer.as<float>(), rows, spec.vocab_size);
  return {};
}

Status Loader::load(Description&& description, int64_t total_bytes) {
  Model::State& m = state_;
  m.spec = description.spec;
  total_ = total_bytes;
  std::vector<float> frequencies(m.spec.head_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(m.spec.head_dim);
    frequencies[i] = static_cast<float>(1.0 / std::pow(m.spec.rope_theta, exponent));
  }
  MORACLE_TRY(m.frequencies, upload(frequencies));
  MORACLE_TRY(m.final_norm, upload(description.final_norm));
  MORACLE_CHECK(load_embedding(description));
  std::vector<LayerSpec> mlps;
  for (const LayerDescription& layer : description.layers) mlps.push_back(layer.mlp.spec);
  MORACLE_CHECK(allocate_activations(mlps));
  for (size_t l = 0; l < description.layers.size(); ++l) {
    MORACLE_TRY(Layer layer, load_layer(std::move(description.layers[l]), static_cast<int64_t>(l)));
    m.layers.push_back(std::move(layer));
  }
  MORACLE_TRY(m.output, linear("output", {}, std::move(description.output)));
  if (options_.progress && !options_.progress(total_, total_)) {
    return Error{ErrorKind::kCancelled, "", "loading", "", "stopped on request"};
  }
  return {};
}

}  // namespace

Result<Model> Model::load(const Checkpoint& checkpoint, const ModelOptions& options) {
  if (options.max_num_tokens < 1) {
    return Error{ErrorKind::kInvalidArgument, "", "max_num_tokens", "at least 1",
                 str("it is ", options.max_num_tokens)};
  }
  MORACLE_TRY(std::shared_ptr<Device> device, open_device(options.device, options.threads));
  MORACLE_TRY(Description description, describe(checkpoint));
  auto state = std::make_unique<State>();
  state->workspace = std::make_shared<Workspace>(std::move(device));
  state->max_num_tokens = options.max_num_tokens;
  state->owner = checkpoint.files();
  Loader loader(*state, options, Machine::here());
  MORACLE_CHECK(loader.load(std::move(description), checkpoint.total_bytes()));
  return Model(std::move(state));
}

}  // namespace moracle
