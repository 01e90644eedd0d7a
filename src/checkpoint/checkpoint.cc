#include "moracle/checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"

namespace moracle {

#define X(name, open) Result<std::unique_ptr<Reader>> open(const Config&);
#include "checkpoint/readers.inc"
#undef X

namespace {

constexpr Producer kProducers[] = {
#define X(name, open) {name, open},
#include "checkpoint/readers.inc"
#undef X
};

// The quantization config lies in config.json, or beside it in the file of the tool that wrote it.
Result<std::optional<Config>> quantization_config(const std::string& folder, const Config& config) {
  MORACLE_TRY(auto inside, config.object({"quantization_config"}));
  if (inside) return inside;
  for (const char* file : {"quantize_config.json", "hf_quant_config.json"}) {
    const std::string path = folder + "/" + file;
    if (is_absent(path)) continue;
    MORACLE_TRY(Config beside, Config::open(path));
    return std::optional<Config>(std::move(beside));
  }
  return std::optional<Config>();
}

Result<std::string> quant_method(const Config& quantization) {
  // quantize_config.json of older AutoGPTQ names no method: the file itself is the mark.
  const bool gptq_file = quantization.path().ends_with("quantize_config.json");
  if (gptq_file && !quantization.has({"quant_method"})) return std::string("gptq");
  if (quantization.path().ends_with("hf_quant_config.json")) return std::string("modelopt");
  return quantization.text({"quant_method"});
}

Status open_reader(Checkpoint::State& state) {
  MORACLE_TRY(const auto quantization, quantization_config(state.folder, state.config));
  if (!quantization) return {};
  MORACLE_TRY(const std::string method, quant_method(*quantization));
  std::vector<std::string_view> known;
  for (const Producer& producer : kProducers) {
    known.push_back(producer.name);
    if (producer.name != method) continue;
    state.producer = method;
    MORACLE_TRY(state.reader, producer.open(*quantization));
    return {};
  }
  return quantization->unsupported({"quant_method"}, "one of " + join(known), "it is '" + method + "'");
}

// The module as the file holds it; the config only narrows.
Result<DescribedLinear> describe(const Checkpoint::State& state, const std::string& module) {
  const Tensors& tensors = state.tensors;
  const bool quantized = state.reader && state.reader->stores(tensors, module);
  if (quantized) {
    if (state.reader->says(module) == Says::kPlain) {
      return Error{ErrorKind::kBadFile, tensors.file_of(module + ".weight"), "module '" + module + "'",
                   "to be stored unquantized, since the quantization config leaves it out",
                   "the file holds it quantized"};
    }
    return state.reader->describe(tensors, module);
  }
  if (tensors.find(module + ".weight") != nullptr) return describe_plain(tensors, module);
  const std::string expected = state.reader ? " or " + state.reader->expected(module) : "";
  return Error{ErrorKind::kBadFile, tensors.file_of(module + ".weight"), "module '" + module + "'",
               module + ".weight" + expected, "the file has neither"};
}

std::string show(const MatrixShape& shape, const Scheme& scheme) {
  return str(name(scheme), " [", shape.n, ", ", shape.k, "]", shape.group_index ? " in act-order" : "",
             shape.bias ? " with bias" : "");
}

// Describes `modules` as one matrix of stacked rows, checked against what is expected of each.
struct Stack {
  MatrixShape shape;
  Scheme scheme;
  std::span<const std::byte> column_groups;
  std::vector<DescribedMatrix::Part> parts;
};
Result<Stack> describe_stack(const Checkpoint::State& state, const std::vector<std::string>& modules) {
  Stack stack;
  for (const std::string& module : modules) {
    MORACLE_TRY(DescribedLinear linear, describe(state, module));
    const int64_t rows_before = stack.shape.n;
    MatrixShape same = linear.shape;
    same.n = stack.shape.n;
    if (!stack.parts.empty() && (same != stack.shape || linear.scheme != stack.scheme)) {
      return Error{ErrorKind::kBadFile, state.tensors.file_of(linear.part.tensors[0]),
                   "module '" + module + "'",
                   "the same scheme and input size as '" + modules[0] + "', " +
                       show(stack.shape, stack.scheme),
                   "it is " + show(linear.shape, linear.scheme)};
    }
    if (!stack.parts.empty() && !std::ranges::equal(linear.column_groups, stack.column_groups)) {
      return Error{ErrorKind::kUnsupported, state.tensors.file_of(linear.part.tensors[0]),
                   "module '" + module + "'",
                   "columns in the same groups as '" + modules[0] + "', since both read one input",
                   "they are in others"};
    }
    stack.shape = linear.shape;
    stack.shape.n += rows_before;
    stack.scheme = linear.scheme;
    stack.column_groups = linear.column_groups;
    stack.parts.push_back(std::move(linear.part));
  }
  return stack;
}

void claim(const Checkpoint::State& state, const std::vector<DescribedMatrix::Part>& parts) {
  for (const auto& part : parts) state.claimed.insert(part.tensors.begin(), part.tensors.end());
}

}  // namespace

Checkpoint::Checkpoint(std::shared_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    return Error{ErrorKind::kBadFile, folder, "", "a checkpoint's folder",
                 std::filesystem::exists(folder, ignored) ? "it is a file" : "there is no such folder"};
  }
  if (is_absent(folder + "/config.json")) {
    return Error{ErrorKind::kBadFile, folder, "", "config.json", "there is none"};
  }
  MORACLE_TRY(Config config, Config::open(folder + "/config.json"));
  MORACLE_TRY(const std::vector<std::string> architectures, config.texts({"architectures"}));
  if (architectures.size() != 1) {
    return config.wrong({"architectures"}, "one architecture", str("there are ", architectures.size()));
  }
  MORACLE_TRY(const int64_t num_layers, config.integer({"num_hidden_layers"}, 1, 10'000));
  MORACLE_TRY(Tensors tensors, Tensors::open(folder));
  auto state = std::make_shared<State>(State{.folder = folder,
                                             .config = std::move(config),
                                             .tensors = std::move(tensors),
                                             .architecture = architectures[0],
                                             .num_layers = num_layers});
  MORACLE_CHECK(open_reader(*state));
  return Checkpoint(std::move(state));
}

const std::string& Checkpoint::folder() const { return state_->folder; }
const std::string& Checkpoint::architecture() const { return state_->architecture; }
std::string_view Checkpoint::producer() const { return state_->producer; }
int64_t Checkpoint::num_layers() const { return state_->num_layers; }

std::vector<int64_t> Checkpoint::moe_layers() const {
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < state_->num_layers; ++layer) {
    if (expert_names(state_->tensors, layer) != nullptr) layers.push_back(layer);
  }
  return layers;
}

Result<DescribedWeights> Checkpoint::moe_layer(int64_t layer) const {
  const Config& config = state_->config;
  const Tensors& tensors = state_->tensors;
  const ExpertNames* names = expert_names(tensors, layer);
  if (names == nullptr) {
    return Error{ErrorKind::kInvalidArgument, state_->folder, str("layer ", layer),
                 "a layer with experts, one of " + join(moe_layers()), "it has none"};
  }
  LayerSpec spec;
  spec.name = experts_prefix(*names, layer);
  MORACLE_TRY(spec.num_experts, config.integer({"num_experts", "num_local_experts"}, 1, 1 << 20));
  MORACLE_TRY(spec.top_k, config.integer({"num_experts_per_tok"}, 1, spec.num_experts));
  MORACLE_TRY(spec.hidden_size, config.integer({"hidden_size"}, 1, 1 << 24));
  MORACLE_TRY(spec.intermediate_size, config.integer({"moe_intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(spec.routing.renormalize, config.boolean_or(false, {"norm_topk_prob"}));
  MORACLE_TRY(const std::string activation, config.text_or("silu", {"hidden_act"}));
  if (activation != "silu") {
    return config.unsupported({"hidden_act"}, "silu", "it is " + activation);
  }

  std::vector<std::vector<DescribedMatrix::Part>> w13, w2;
  std::optional<Stack> first13, first2;
  for (int64_t e = 0; e < spec.num_experts; ++e) {
    const std::string expert = str(spec.name, ".", e, ".");
    MORACLE_TRY(Stack gate_up, describe_stack(*state_, {expert + std::string(names->gate),
                                                        expert + std::string(names->up)}));
    MORACLE_TRY(Stack down, describe_stack(*state_, {expert + std::string(names->down)}));
    // Each part by itself: gate and up may not make up for each other's rows.
    auto check = [&](const Stack& stack, const std::optional<Stack>& first, int64_t n,
                     int64_t k) -> Status {
      for (const auto& part : stack.parts) {
        if (part.n == n && stack.shape.k == k) continue;
        MatrixShape shape = stack.shape;
        shape.n = part.n;
        return tensors.wrong(part.tensors[0], str("[", n, ", ", k, "] (from config.json)"),
                             "it is " + show(shape, stack.scheme));
      }
      if (!first || (first->shape == stack.shape && first->scheme == stack.scheme)) return {};
      return tensors.wrong(stack.parts[0].tensors[0],
                           "the scheme of expert 0, " + show(first->shape, first->scheme),
                           "it is " + show(stack.shape, stack.scheme));
    };
    MORACLE_CHECK(check(gate_up, first13, spec.intermediate_size, spec.hidden_size));
    MORACLE_CHECK(check(down, first2, spec.hidden_size, spec.intermediate_size));
    claim(*state_, gate_up.parts);
    claim(*state_, down.parts);
    w13.push_back(gate_up.parts);
    w2.push_back(down.parts);
    if (!first13) first13 = std::move(gate_up);
    if (!first2) first2 = std::move(down);
  }
  if (first13->scheme != first2->scheme) {
    return Error{ErrorKind::kUnsupported, tensors.file_of(first2->parts[0].tensors[0]), spec.name,
                 "one scheme for w13 and w2",
                 str(name(first13->scheme), " and ", name(first2->scheme))};
  }
  // A tensor of this layer's experts that nobody reads would be an expert or a bias forgotten.
  const std::string prefix = spec.name + ".";
  for (auto it = tensors.all().lower_bound(prefix);
       it != tensors.all().end() && it->first.starts_with(prefix); ++it) {
    if (state_->claimed.contains(it->first)) continue;
    return tensors.wrong(it->first,
                         str("to belong to one of ", spec.num_experts, " experts of this scheme"),
                         "nothing reads it");
  }
  spec.scheme = first13->scheme;
  spec.group_index = first13->shape.group_index || first2->shape.group_index;
  spec.bias = first13->shape.bias || first2->shape.bias;
  return DescribedWeights{
      std::move(spec),
      DescribedMatrix(first13->shape, first13->scheme, std::move(w13), state_),
      DescribedMatrix(first2->shape, first2->scheme, std::move(w2), state_)};
}

Result<DescribedMatrix> Checkpoint::linear(const std::vector<std::string>& modules) const {
  MORACLE_TRY(Stack stack, describe_stack(*state_, modules));
  claim(*state_, stack.parts);
  std::vector<std::vector<DescribedMatrix::Part>> parts;
  parts.push_back(std::move(stack.parts));
  return DescribedMatrix(stack.shape, stack.scheme, std::move(parts), state_);
}

Result<DescribedMatrix> Checkpoint::router(const std::string& module) const {
  const bool quantized = state_->reader && state_->reader->stores(state_->tensors, module);
  if (quantized && state_->reader->says(module) != Says::kQuantized) {
    return Error{ErrorKind::kBadFile, state_->tensors.file_of(module + ".weight"),
                 "router '" + module + "'",
                 "to be stored unquantized, since the quantization config does not list it",
                 "the file holds it quantized"};
  }
  return linear({module});
}

Result<TensorView> Checkpoint::tensor(const std::string& name) const {
  MORACLE_TRY(TensorView view, state_->tensors.get(name));
  state_->claimed.insert(name);
  return view;
}

Result<std::vector<float>> Checkpoint::vector(const std::string& name, int64_t size) const {
  MORACLE_TRY(const TensorView view, tensor(name));
  if (view.shape != std::vector<int64_t>{size}) {
    return state_->tensors.wrong(name, str("shape [", size, "]"), "it is " + to_string(view));
  }
  return read_scales(state_->tensors, name);
}

bool Checkpoint::has_tensor(const std::string& name) const {
  return state_->tensors.find(name) != nullptr;
}

std::vector<std::string> Checkpoint::unclaimed() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : state_->tensors.all()) {
    // Old files carry the rotary frequencies, which follow from config.json.
    const bool ignored = name.ends_with("rotary_emb.inv_freq");
    if (!ignored && !state_->claimed.contains(name)) names.push_back(name);
  }
  return names;
}

int64_t Checkpoint::total_bytes() const {
  int64_t total = 0;
  for (const auto& [name, entry] : state_->tensors.all()) {
    total += static_cast<int64_t>(entry.view.num_bytes());
  }
  return total;
}

}  // namespace moracle
