// From a Description to a Model: choose for every layer, then read, pack and let go.
#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "checkpoint/state.h"
#include "models/model_state.h"
#include "models/plan.h"

namespace moracle {
namespace {

class Loader {
 public:
  Loader(Model::State& state, const ModelOptions& options, std::vector<ModuleChoice> modules)
      : state_(state), options_(options), modules_(std::move(modules)) {}

  Status load(Description&& description, int64_t total_bytes);

 private:
  /// The choices come in the order in which the modules are loaded.
  const Selection& next() { return modules_[at_++].selection; }
  Result<Linear> linear(DescribedMatrix&& weights);
  Result<Layer> load_layer(LayerDescription&& layer);
  Result<Buffer> upload(const std::vector<float>& values);
  Progress progress();
  Status load_embedding(const Description& description);
  Status allocate_activations(const Description& description);

  Model::State& state_;
  const ModelOptions& options_;
  std::vector<ModuleChoice> modules_;
  size_t at_ = 0;
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

Result<Linear> Loader::linear(DescribedMatrix&& weights) {
  MORACLE_TRY(Linear made, Linear::make(std::move(weights), next(), state_.workspace, progress()));
  state_.weight_bytes += made.weight_bytes();
  return made;
}

Result<Buffer> Loader::upload(const std::vector<float>& values) {
  Device& device = state_.workspace->device();
  MORACLE_TRY(Buffer buffer, device.allocate(values.size() * sizeof(float)));
  MORACLE_CHECK(device.upload(buffer.data(), values.data(), values.size() * sizeof(float)));
  return buffer;
}

Result<Layer> Loader::load_layer(LayerDescription&& from) {
  MORACLE_TRY(Buffer input_norm, upload(from.input_norm));
  MORACLE_TRY(Buffer post_norm, upload(from.post_norm));
  MORACLE_TRY(Buffer q_norm, upload(from.q_norm));
  MORACLE_TRY(Buffer k_norm, upload(from.k_norm));
  MORACLE_TRY(Linear qkv, linear(std::move(from.qkv)));
  MORACLE_TRY(Linear o, linear(std::move(from.o)));
  std::optional<Linear> router;
  if (from.router) {
    MORACLE_TRY(router, linear(std::move(*from.router)));
  }
  MORACLE_TRY(FusedMoe mlp,
              FusedMoe::make(std::move(from.mlp), next(), state_.workspace, progress()));
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

Status Loader::allocate_activations(const Description& description) {
  Model::State& m = state_;
  Device& device = m.workspace->device();
  const int64_t tokens = m.max_num_tokens;
  const DType dtype = device.activation_dtype();
  int64_t top_k = 1;
  for (const LayerDescription& layer : description.layers)
    top_k = std::max(top_k, layer.mlp.spec.top_k);
  MORACLE_TRY(m.activations_buffer,
              device.allocate(carve_activations(description, tokens, dtype, nullptr).bytes));
  m.activations =
      carve_activations(description, tokens, dtype, m.activations_buffer.as<std::byte>());
  MORACLE_TRY(m.topk_ids, device.allocate(tokens * top_k * sizeof(int32_t)));
  MORACLE_TRY(m.topk_weights, device.allocate(tokens * top_k * sizeof(float)));
  MORACLE_TRY(m.one_expert_ids, device.allocate(tokens * sizeof(int32_t)));  // zeroed: expert 0
  MORACLE_TRY(m.one_expert_weights, upload(std::vector<float>(tokens, 1.0f)));
  const int64_t rows = Model::kMaxLogitRows;
  MORACLE_TRY(m.logits_buffer, device.allocate(rows * m.spec.vocab_size * sizeof(float)));
  m.logits = Matrix::f32(m.logits_buffer.as<float>(), rows, m.spec.vocab_size);
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
  MORACLE_CHECK(allocate_activations(description));
  for (LayerDescription& from : description.layers) {
    MORACLE_TRY(Layer layer, load_layer(std::move(from)));
    m.layers.push_back(std::move(layer));
  }
  MORACLE_TRY(m.output, linear(std::move(description.output)));
  m.choices = grouped(std::move(modules_));
  if (options_.progress && !options_.progress(total_, total_)) {
    return Error{ErrorKind::kCancelled, "", "loading", "", "stopped on request"};
  }
  return {};
}

}  // namespace

Result<Model> Model::load(const Checkpoint& checkpoint, const ModelOptions& options) {
  MORACLE_TRY(std::shared_ptr<Device> device, open_device(options.device, options.threads));
  MORACLE_TRY(Description description, describe(checkpoint, options.quantization));
  MORACLE_TRY(std::vector<ModuleChoice> modules, choose(description, options, Machine::here()));
  auto state = std::make_unique<State>();
  state->workspace = std::make_shared<Workspace>(std::move(device));
  state->max_num_tokens = options.max_num_tokens;
  state->owner = checkpoint.files();
  Loader loader(*state, options, std::move(modules));
  MORACLE_CHECK(loader.load(std::move(description), checkpoint.total_bytes()));
  return Model(std::move(state));
}

}  // namespace moracle
