#include "moracle/checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/experts/stack.h"
#include "checkpoint/gguf/gguf_splits.h"
#include "checkpoint/gguf/open_gguf.h"
#include "checkpoint/kv_scales.h"
#include "checkpoint/producers/module_tensors.h"
#include "checkpoint/safetensors/safetensors_folder.h"
#include "checkpoint/state.h"
#include "quant/blocks/gguf_blocks.h"

namespace moracle {

namespace {

// The quantization config and its producer's name.
struct Quantization {
  Config config;
  std::string method;
};

// The quantization config is in config.json, or in a separate file of the tool that wrote it. Older
// tools name no method in their own file: the file then identifies the tool.
Result<std::optional<Quantization>> find_quantization(const std::string& folder,
                                                      const Config& config) {
  MORACLE_TRY(auto inside, config.object({"quantization_config"}));
  if (!inside) {
    MORACLE_TRY(const auto text_config, config.object({"text_config"}));
    if (text_config) {
      MORACLE_TRY(inside, text_config->object({"quantization_config"}));
    }
  }
  if (inside) {
    // ModelOpt's own keys identify it, too.
    const bool has_method = inside->has({"quant_method"}) || !inside->has({"quant_algo"});
    MORACLE_TRY(std::string method,
                has_method ? inside->text({"quant_method"}) : std::string(kModelOptProducer.name));
    return std::optional(Quantization{std::move(*inside), std::move(method)});
  }
  // The key of compressed-tensors before version 0.6.
  MORACLE_TRY(auto older, config.object({"compression_config"}));
  if (older) {
    MORACLE_TRY(std::string method, older->text_or("compressed-tensors", {"quant_method"}));
    return std::optional(Quantization{std::move(*older), std::move(method)});
  }
  for (const Producer* producer : producers()) {
    const std::string path = str(folder, "/", producer->config_file);
    if (producer->config_file.empty() || is_absent(path)) continue;
    MORACLE_TRY(Config beside, Config::open(path));
    MORACLE_TRY(std::string method, beside.text_or(std::string(producer->name), {"quant_method"}));
    return std::optional(Quantization{std::move(beside), std::move(method)});
  }
  return std::optional<Quantization>();
}

Status open_reader(Checkpoint::State& state) {
  const Config& whole = state.wrapper ? *state.wrapper : state.config;
  MORACLE_TRY(const auto quantization, find_quantization(state.folder, whole));
  if (!quantization) {
    state.not_used = unused_kv_cache(state.tensors, nullptr);
    return {};
  }
  const auto& [config, method] = *quantization;
  // ModelOpt's own file has its keys one level deeper.
  MORACLE_TRY(const auto nested, config.object({"quantization"}));
  state.not_used = unused_kv_cache(state.tensors, nested ? &*nested : &config);
  std::vector<std::string_view> known;
  for (const Producer* producer : producers()) {
    known.push_back(producer->name);
    known.insert(known.end(), producer->also.begin(), producer->also.end());
    if (!producer->is(method)) continue;
    state.producer = producer->name;
    MORACLE_TRY(state.reader, producer->open(config));
    return {};
  }
  return config.unsupported({"quant_method"}, "one of " + join(known), "it is '" + method + "'");
}

// MLX stores quantized weights in u32 words beside .scales and .biases. No producer's reader
// applies, and the header's dtype alone would not tell the reason.
Status refuse_mlx(const Config& config) {
  MORACLE_TRY(const auto mlx, config.object({"quantization"}));
  if (!mlx || !mlx->has({"group_size"}) || !mlx->has({"bits"})) return {};
  return config.unsupported(
      {"quantization"}, "the model in another form, such as the original or GPTQ, AWQ or NVFP4",
      str("this folder is quantized for MLX (bits ", JsonField::shown(*mlx->find({"bits"})),
          ", group_size ", JsonField::shown(*mlx->find({"group_size"})), ")"));
}

bool has_prefix(const Tensors& tensors, const std::string& prefix) {
  const auto at = tensors.all().lower_bound(prefix);
  return at != tensors.all().end() && at->first.starts_with(prefix);
}

// Finds the language model's tensors. The names decide: both kinds of files may wrap its config.
void find_root(Checkpoint::State& state) {
  if (has_prefix(state.tensors, "model.language_model.")) {
    state.root = "model.language_model.";
  } else if (has_prefix(state.tensors, "language_model.model.")) {
    state.root = "language_model.model.";
    state.output = "language_model.lm_head";
  } else if (has_prefix(state.tensors, "backbone.")) {
    state.root = "backbone.";
  }
}

Result<int64_t> count_layers(const Config& config, const ExpertConvention* convention) {
  const ConfigKeys lists = convention == nullptr ? ConfigKeys() : convention->layer_lists;
  const Config::Keys keys(lists.begin(), lists.end());
  const nlohmann::json* const list = lists.empty() ? nullptr : config.find(keys);
  if (list == nullptr) {
    const ConfigKeys numbers =
        convention == nullptr ? ConfigKeys(kNumLayersKeys) : convention->num_layers;
    return config.integer({numbers.begin(), numbers.end()}, 1, 10'000);
  }
  const size_t layers = list->is_string()  ? list->get_ref<const std::string&>().size()
                        : list->is_array() ? list->size()
                                           : 0;
  if (layers >= 1 && layers <= 10'000) return static_cast<int64_t>(layers);
  return config.wrong(keys, "1 to 10,000 layers", "it is " + JsonField::shown(*list));
}

// No reader: the types of the tensors tell their numbers.
Result<std::shared_ptr<Checkpoint::State>> open_gguf_state(const std::string& path) {
  MORACLE_TRY(GgufCheckpoint gguf, open_gguf(path));
  MORACLE_TRY(const int64_t num_layers, gguf.config.integer({"num_hidden_layers"}, 1, 10'000));
  auto state = std::make_shared<Checkpoint::State>(
      Checkpoint::State{.folder = path,
                        .config = std::move(gguf.config),
                        .tensors = std::move(gguf.tensors),
                        .producer = "gguf",
                        .architecture = std::move(gguf.model_class),
                        .convention = gguf.convention,
                        .num_layers = num_layers,
                        .gguf = std::move(gguf.metadata)});
  for (const std::string& name : gguf.left_out)
    state->not_used.push_back(name + ": its encoder of images is not run");
  find_root(*state);
  return state;
}

}  // namespace

Checkpoint::Checkpoint(std::shared_ptr<const State> state)
    : state_(std::move(state)), claims_(std::make_unique<Claims>()) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint Checkpoint::unclaimed_copy() const {
  return Checkpoint(state_);
}

Checkpoint Checkpoint::next_tokens_copy() const {
  Checkpoint copy(state_);
  copy.claims_->next_tokens = true;
  return copy;
}

bool Checkpoint::describes_next_tokens() const {
  return claims_->next_tokens;
}

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  if (is_gguf_path(folder)) {
    MORACLE_TRY(std::shared_ptr<State> state, open_gguf_state(folder));
    return Checkpoint(std::move(state));
  }
  std::error_code ignored;
  if (std::filesystem::exists(folder, ignored) && !std::filesystem::is_directory(folder, ignored)) {
    return Error{ErrorKind::kBadFile, folder, "", "the folder of a checkpoint, or a GGUF file",
                 "it is another file"};
  }
  if (!std::filesystem::is_directory(folder, ignored)) {
    const bool file = folder.ends_with(".gguf");
    return Error{ErrorKind::kBadFile, folder, "",
                 file ? "a GGUF file" : "the folder of a checkpoint",
                 str("the ", file ? "file" : "folder", " does not exist")};
  }
  if (is_absent(folder + "/config.json")) {
    return Error{ErrorKind::kBadFile, folder, "", "config.json", "the folder has none"};
  }
  MORACLE_TRY(Config config, Config::open(folder + "/config.json"));
  MORACLE_CHECK(refuse_mlx(config));
  MORACLE_TRY(const std::vector<std::string> architectures, config.texts({"architectures"}));
  if (architectures.size() != 1) {
    return config.wrong({"architectures"}, "one architecture",
                        str("there are ", architectures.size()));
  }
  std::optional<Config> wrapper;
  MORACLE_TRY(auto text_config, config.object({"text_config"}));
  if (text_config) {
    wrapper = std::move(config);
    config = std::move(*text_config);
  }
  const nlohmann::json type = config.value().value("model_type", nlohmann::json());
  const std::string model_class =
      model_class_of(architectures[0], type.is_string() ? type.get<std::string>() : "");
  const ExpertConvention* const convention = find_convention(model_class);
  if (convention != nullptr) MORACLE_CHECK(config.set_defaults(convention->defaults));
  if (convention == nullptr && !config.has({"num_hidden_layers"})) {
    return config.unsupported(
        {"architectures"}, "a known architecture, or num_hidden_layers",
        str("it is '", architectures[0], "', and num_hidden_layers is missing"));
  }
  MORACLE_TRY(const int64_t num_layers, count_layers(config, convention));
  MORACLE_TRY(Tensors tensors, open_safetensors(folder));
  if (convention != nullptr && convention->tensor_name != nullptr) {
    MORACLE_TRY(tensors, Tensors::renamed(std::move(tensors), convention->tensor_name));
  }
  auto state = std::make_shared<State>(State{.folder = folder,
                                             .config = std::move(config),
                                             .tensors = std::move(tensors),
                                             .architecture = model_class,
                                             .convention = convention,
                                             .num_layers = num_layers,
                                             .wrapper = std::move(wrapper)});
  find_root(*state);
  MORACLE_CHECK(open_reader(*state));
  return Checkpoint(std::move(state));
}

const std::string& Checkpoint::folder() const {
  return state_->folder;
}
const std::string& Checkpoint::architecture() const {
  return state_->architecture;
}
std::string_view Checkpoint::producer() const {
  return state_->producer;
}
int64_t Checkpoint::num_layers() const {
  return state_->num_layers;
}

std::vector<int64_t> Checkpoint::moe_layers() const {
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < state_->num_layers; ++layer) {
    if (expert_names(*state_, layer) != nullptr) layers.push_back(layer);
  }
  return layers;
}

Result<DescribedMatrix> Checkpoint::linear(const std::vector<std::string>& modules) const {
  MORACLE_TRY(Stack stack, describe_stack(*state_, modules));
  std::vector<std::vector<DescribedMatrix::Source>> sources;
  sources.push_back(std::move(stack.sources));
  DescribedMatrix matrix(stack.shape, stack.scheme, std::move(sources), state_);
  const std::vector<std::string> names = matrix.tensors();
  claims_->add({names.begin(), names.end()});
  if (stack.input_scale > 0) matrix.set_input_scales({stack.input_scale});
  return matrix;
}

Result<DescribedMatrix> Checkpoint::router(const std::string& module) const {
  return linear({module});
}

Result<DescribedMatrix> Checkpoint::table(const std::string& module) const {
  const TensorView* const weight = state_->tensors.find(module + ".weight");
  if (weight == nullptr || !is_gguf_block(weight->dtype)) return linear({module});
  MORACLE_TRY(DescribedLinear rows, describe_plain_table(state_->tensors, module));
  rows.source.module = module;
  claims_->add({rows.source.tensors.begin(), rows.source.tensors.end()});
  return DescribedMatrix(rows.shape, rows.scheme, {{std::move(rows.source)}}, state_);
}

Result<TensorView> Checkpoint::tensor(const std::string& name) const {
  MORACLE_TRY(TensorView view, state_->tensors.get(name));
  claims_->add({name});
  return view;
}

Result<std::vector<float>> Checkpoint::vector(const std::string& name, int64_t size) const {
  return floats(name, {size});
}

Result<std::vector<float>> Checkpoint::floats(const std::string& name,
                                              const std::vector<int64_t>& shape) const {
  MORACLE_TRY(const TensorView view, tensor(name));
  if (view.shape != shape) {
    return state_->tensors.wrong(name, str("shape [", join(shape), "]"),
                                 "it is " + to_string(view));
  }
  if (!is_gguf_block(view.dtype)) return read_scales(state_->tensors, name);
  MORACLE_TRY(const TensorData data, state_->tensors.read(name));
  std::vector<float> values(static_cast<size_t>(view.num_elements()));
  decode_blocks(view.dtype, data.view.data, view.num_elements() / block(view.dtype).elements,
                values.data());
  return values;
}

Result<std::vector<std::byte>> Checkpoint::read(const std::string& name) const {
  MORACLE_CHECK(tensor(name));
  MORACLE_TRY(const TensorData data, state_->tensors.read(name));
  return std::vector<std::byte>(data.view.data, data.view.data + data.view.num_bytes());
}

bool Checkpoint::has_tensor(const std::string& name) const {
  return state_->tensors.find(name) != nullptr;
}

std::vector<std::string> Checkpoint::unclaimed() const {
  std::vector<std::string> names;
  const std::lock_guard lock(claims_->mutex);
  for (const auto& [name, entry] : state_->tensors.all()) {
    // Old files store the rotary frequencies, which config.json determines. transformers stores
    // shared experts with 0 rows if config.json has none.
    const bool ignored = name.ends_with("rotary_emb.inv_freq") || entry.view.num_elements() == 0;
    if (!ignored && !claims_->claimed.contains(name)) names.push_back(name);
  }
  return names;
}

std::vector<std::string> Checkpoint::not_used() const {
  std::vector<std::string> all = state_->not_used;
  if (!state_->reader) return all;
  const std::vector<std::string> more = state_->reader->not_used();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

int64_t Checkpoint::total_bytes() const {
  int64_t total = 0;
  for (const auto& [name, entry] : state_->tensors.all()) {
    total += static_cast<int64_t>(entry.view.num_bytes());
  }
  return total;
}

}  // namespace moracle
