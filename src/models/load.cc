// From a Description to a Model: choose for every module, then read, pack and let go.
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/model_state.h"

namespace moracle {
namespace {

Status load_embedding(Model::State& m, const TensorView& embedding) {
  Device& device = m.workspace->device();
  m.embedding = embedding;
  m.weight_bytes += static_cast<int64_t>(embedding.num_bytes());
  if (device.host_visible()) return {};  // rows are looked up in the file's own memory
  MORACLE_TRY(m.embedding_buffer, device.allocate(embedding.num_bytes()));
  m.embedding.data = m.embedding_buffer.as<std::byte>();
  return device.upload(m.embedding_buffer.data(), embedding.data, embedding.num_bytes());
}

Status allocate_activations(Model::State& m, const Description& description) {
  Device& device = m.workspace->device();
  const DType dtype = device.activation_dtype();
  const size_t bytes = carve_activations(description, m.max_num_tokens, dtype, nullptr).bytes;
  MORACLE_TRY(m.activations_buffer, device.allocate(bytes));
  m.activations =
      carve_activations(description, m.max_num_tokens, dtype, m.activations_buffer.as<std::byte>());
  // Memory comes zeroed, which is what first_expert has to be.
  const std::vector<float> ones(m.max_num_tokens, 1.0f);
  MORACLE_CHECK(device.upload(m.activations.feed_forward.weight_one, ones.data(),
                              ones.size() * sizeof(float)));
  return device.synchronize();  // before the ones are gone
}

Result<Layer> load_layer(LayerDescription&& from, const Model::State& m, Loader& loader) {
  const DType dtype = loader.device().activation_dtype();
  const AttentionSizes sizes = attention_sizes(from.attention, m.max_num_tokens, dtype);
  MORACLE_TRY(Buffer input_norm, loader.upload(from.input_norm));
  MORACLE_TRY(Buffer post_norm, loader.upload(from.post_norm));
  MORACLE_TRY(auto attention, load_attention(std::move(from.attention), loader));
  MORACLE_TRY(FeedForward feed_forward, FeedForward::load(std::move(from), loader));
  return Layer{std::move(input_norm), std::move(post_norm), sizes, std::move(attention),
               std::move(feed_forward)};
}

}  // namespace

Result<Model> Model::load(const Checkpoint& checkpoint, const ModelOptions& options) {
  MORACLE_TRY(std::shared_ptr<Device> device, open_device(options.device, options.threads));
  MORACLE_TRY(Description description, describe(checkpoint, options.quantization));
  MORACLE_TRY(const std::vector<LoraAdapter> adapters, open_adapters(checkpoint, options));
  MORACLE_TRY(std::vector<ModuleChoice> modules,
              choose(description, options, Machine::here(), adapters));
  auto state = std::make_unique<State>();
  State& m = *state;
  m.workspace = std::make_shared<Workspace>(std::move(device));
  m.spec = description.spec;
  m.max_num_tokens = options.max_num_tokens;
  m.owner = checkpoint.files();
  m.num_adapters = static_cast<int64_t>(adapters.size());
  Loader loader(m.workspace, std::move(modules), adapters, options.progress,
                checkpoint.total_bytes());
  MORACLE_TRY(m.final_norm, loader.upload(description.final_norm));
  MORACLE_CHECK(load_embedding(m, description.embedding));
  MORACLE_CHECK(allocate_activations(m, description));
  for (LayerDescription& from : description.layers) {
    MORACLE_TRY(Layer layer, load_layer(std::move(from), m, loader));
    m.layers.push_back(std::move(layer));
  }
  MORACLE_TRY(m.output, loader.linear(std::move(description.output)));
  m.weight_bytes += loader.weight_bytes();
  MORACLE_TRY(modules, std::move(loader).finish());
  m.choices = grouped(std::move(modules));
  return Model(std::move(state));
}

}  // namespace moracle
