#include "models/gguf/gguf_plan.h"

#include <algorithm>
#include <set>

#include "base/named_patterns.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/gguf/translate_tensors.h"
#include "checkpoint/gguf/write/draft_metadata.h"
#include "checkpoint/state.h"
#include "models/attention/rotary.h"
#include "models/gguf/gguf_types.h"

namespace moracle {
namespace gguf_plan {
namespace {

constexpr std::string_view kWeight = ".weight";

std::string_view without_weight(std::string_view name) {
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  return name;
}

// llama.cpp reads these only as f32: norms, biases, routers, gates of shared experts, convolutions.
bool is_always_f32(const GgufEntry& entry) {
  constexpr std::string_view kPatterns[] = {"_norm.", ".ffn_gate_inp", "conv1d",
                                            ".shortconv.conv."};
  const std::string& name = entry.name;
  return entry.shape.size() == 1 || !name.ends_with(kWeight) ||
         std::any_of(std::begin(kPatterns), std::end(kPatterns),
                     [&](std::string_view pattern) { return name.find(pattern) != name.npos; });
}

bool is_vocabulary(std::string_view stored) {
  return stored == "token_embd.weight" || stored == "output.weight";
}

class Planner {
 public:
  Planner(const Checkpoint& from, const Description& description, const GgufTypes& types)
      : state_(from.state()), description_(description), types_(types) {}

  Result<GgufPlan> run() {
    MORACLE_CHECK(find_convention());
    MORACLE_TRY(auto rope, rotary_settings(state_.config));
    plan_.metadata = draft_gguf_metadata(state_.config, rope, *state_.convention, *plan_.gguf,
                                         state_.num_layers);
    plan_.metadata[str(plan_.gguf->architecture, ".vocab_size")] = description_.spec.vocab_size;
    MORACLE_CHECK(take_sources());
    if (plan_.gguf->write != nullptr) {
      GgufDraft draft{state_.config,     std::move(rope), plan_.gguf->architecture,
                      state_.num_layers, plan_.metadata,  plan_.sources};
      MORACLE_CHECK(plan_.gguf->write(draft));
    }
    MORACLE_CHECK(require_gguf_keys(plan_.metadata, state_.config, *plan_.gguf));
    for (const auto& [name, entry] : plan_.sources) MORACLE_CHECK(add(name, entry.view));
    for (size_t layer = 0; layer < description_.layers.size(); ++layer)
      add_experts(static_cast<int64_t>(layer));
    for (GgufTensorPlan& tensor : plan_.tensors) MORACLE_CHECK(choose_type(tensor));
    MORACLE_CHECK(check_patterns());
    finish_report();
    return std::move(plan_);
  }

 private:
  Status find_convention() {
    const Config& config = state_.wrapper ? *state_.wrapper : state_.config;
    if (state_.convention == nullptr || state_.convention->gguf.empty()) {
      std::vector<std::string_view> known;
      for (const NamedConvention& family : conventions()) {
        if (!family.convention->gguf.empty()) known.push_back(family.model_class);
      }
      return config.unsupported({"architectures"}, "a family with a table of GGUF: " + join(known),
                                "it is " + state_.architecture);
    }
    plan_.gguf = &state_.convention->gguf.front();
    plan_.report.architecture = plan_.gguf->architecture;
    return {};
  }

  // The checkpoint's tensors outside the experts, by the names of the tables.
  Status take_sources() {
    std::set<std::string> experts;
    for (const LayerDescription& layer : description_.layers) {
      if (!layer.router) continue;
      for (const DescribedMatrix* matrix : {&layer.mlp->w13, &layer.mlp->w2}) {
        for (std::string& tensor : matrix->tensors()) {
          plan_.report.bytes_before +=
              experts.contains(tensor)
                  ? 0
                  : static_cast<int64_t>(state_.tensors.find(tensor)->num_bytes());
          experts.insert(std::move(tensor));
        }
      }
    }
    std::map<std::string, int64_t> left_out;
    const auto ignored = [&](const std::string& name) {
      // Keep a tensor that GGUF has, even if this library does not use it: an indexer.
      if (find_gguf_name(*plan_.gguf, table_name(name)) && !is_behind(name)) return false;
      for (const IgnoredTensors& tensors : description_.ignored) {
        for (const std::string& prefix : tensors.prefixes) {
          if (name.starts_with(prefix)) return ++left_out[tensors.what] > 0;
        }
      }
      return name.ends_with("rotary_emb.inv_freq");
    };
    for (const auto& [name, entry] : state_.tensors.all()) {
      if (experts.contains(name) || ignored(name) || entry.view.num_elements() == 0) continue;
      Tensors::Entry source = entry;
      if (source.stored.empty()) source.stored = name;
      plan_.report.bytes_before += static_cast<int64_t>(entry.view.num_bytes());
      plan_.sources.insert_or_assign(table_name(name), std::move(source));
    }
    for (const auto& [what, count] : left_out)
      plan_.report.left_out.push_back(str(what, " (", count, " tensors)"));
    return {};
  }

  // True for a tensor of a layer behind the last one.
  bool is_behind(const std::string& name) const {
    const std::string start = state_.root + "layers.";
    if (!name.starts_with(start)) return false;
    const size_t digits = name.find_first_not_of("0123456789", start.size());
    return digits != name.npos && digits > start.size() && digits < start.size() + 6 &&
           std::stoll(name.substr(start.size())) >= state_.num_layers;
  }

  std::string table_name(const std::string& name) const {
    if (name.starts_with(state_.root)) return "model." + name.substr(state_.root.size());
    const std::string output = state_.output + ".";
    return name.starts_with(output) ? "lm_head." + name.substr(output.size()) : name;
  }

  Status add(const std::string& name, const TensorView& view) {
    GgufEntry entry{name, DType::kF32, view.shape};
    const bool stands_for_itself = name.starts_with("blk.") || name.starts_with("rope_");
    if (!stands_for_itself) {
      const std::optional<GgufName> match = find_gguf_name(*plan_.gguf, name);
      if (!match) {
        return Error{ErrorKind::kUnsupported, file_of(name), "tensor '" + name + "'",
                     str("a name in the GGUF table of ", plan_.gguf->architecture),
                     "no table has it"};
      }
      entry.name = match->stored;
      // GGUF drops most dimensions of 1 inside a shape.
      auto& shape = entry.shape;
      if (!match->table_entry->keeps_ones)
        shape.erase(std::remove(shape.begin(), shape.end(), 1), shape.end());
      if (shape.empty()) shape.push_back(1);
      if (!match->table_entry->second.empty()) shape[0] *= 2;
    }
    for (GgufTensorPlan& tensor : plan_.tensors) {
      if (tensor.entry.name != entry.name) continue;
      tensor.sources.push_back(name);
      return {};
    }
    plan_.tensors.push_back({std::move(entry), {name}});
    return {};
  }

  std::string file_of(const std::string& name) const {
    const auto source = plan_.sources.find(name);
    const bool stored = source != plan_.sources.end() && !source->second.stored.empty();
    return state_.tensors.file_of(stored ? source->second.stored : name);
  }

  void add_experts(int64_t layer) {
    const LayerDescription& described = description_.layers[static_cast<size_t>(layer)];
    if (!described.router) return;
    const DescribedWeights& mlp = *described.mlp;
    const LayerSpec& spec = mlp.spec;
    const std::string block = str("blk.", layer, ".");
    const auto put = [&](const char* name, ExpertRole role, const DescribedMatrix& matrix,
                         int64_t n) {
      const std::vector<int64_t> shape = {spec.num_experts, n, matrix.shape().k};
      plan_.tensors.push_back({{str(block, name, ".weight"), DType::kF32, shape},
                               {},
                               GgufTensorPlan::Experts{layer, role, false}});
      if (!matrix.shape().bias) return;
      plan_.tensors.push_back({{str(block, name, ".bias"), DType::kF32, {spec.num_experts, n}},
                               {},
                               GgufTensorPlan::Experts{layer, role, true}});
    };
    if (is_gated(spec.activation.function))
      put("ffn_gate_exps", ExpertRole::kGate, mlp.w13, spec.intermediate_size);
    put("ffn_up_exps", ExpertRole::kUp, mlp.w13, spec.intermediate_size);
    put("ffn_down_exps", ExpertRole::kDown, mlp.w2, mlp.w2.shape().n);
  }

  // The modules of a tensor, as the family's table names them.
  std::vector<std::string> modules_of(const GgufTensorPlan& tensor) const {
    std::vector<std::string> modules;
    for (const std::string& source : tensor.sources) modules.emplace_back(without_weight(source));
    if (!tensor.experts) return modules;
    const std::string pattern = expert_pattern(tensor);
    const size_t at = pattern.find("{E}");
    for (int64_t e = 0; at != pattern.npos && e < tensor.entry.shape[0]; ++e)
      modules.push_back(str(pattern.substr(0, at), e, pattern.substr(at + 3)));
    if (modules.empty()) modules.emplace_back(without_weight(tensor.entry.name));
    return modules;
  }
  std::string expert_pattern(const GgufTensorPlan& tensor) const {
    const std::string layer = std::to_string(tensor.experts->layer);
    const std::string_view stored = without_weight(tensor.entry.name);
    for (const std::span<const GgufTensor> table :
         {plan_.gguf->tensors, std::span<const GgufTensor>(kGgufDecoderTensors)}) {
      for (const GgufTensor& table_entry : table) {
        const std::string from = with_layer(table_entry.from, layer);
        if (from == stored) return with_layer(table_entry.to, layer);
      }
    }
    return "";
  }
  static std::string with_layer(std::string_view pattern, const std::string& layer) {
    std::string text(pattern);
    if (const size_t at = text.find("{L}"); at != text.npos) text.replace(at, 3, layer);
    return text;
  }

  DType source_type(const GgufTensorPlan& tensor) const {
    if (!tensor.experts) return plan_.sources.at(tensor.sources[0]).view.dtype;
    const DescribedWeights& mlp =
        *description_.layers[static_cast<size_t>(tensor.experts->layer)].mlp;
    const bool down = tensor.experts->role == ExpertRole::kDown;
    return (down ? mlp.w2 : mlp.w13).shape().key.dtype;
  }

  Status choose_type(GgufTensorPlan& tensor) {
    GgufEntry& entry = tensor.entry;
    if (is_always_f32(entry)) return {};
    const std::string stored(without_weight(entry.name));
    const DType own = source_type(tensor);
    std::string first;
    for (const std::string& module : modules_of(tensor)) {
      const GgufTypes::Entry* const found = find_gguf_type(types_, stored, module);
      if (found != nullptr) used_.insert(found);
      DType type = found == nullptr ? own : found->type.value_or(own);
      const bool by_default = found != nullptr && found->pattern.empty();
      if (by_default && is_gguf_block(type) && is_vocabulary(entry.name)) type = DType::kQ8_0;
      if (first.empty()) {
        first = module;
        entry.dtype = type;
      } else if (entry.dtype != type) {
        return Error{ErrorKind::kInvalidArgument, "", "scheme",
                     str("one type for '", first, "' and '", module, "', which are one tensor, '",
                         stored, "'"),
                     str("they would be ", name(entry.dtype), " and ", name(type))};
      }
    }
    const int64_t columns = entry.shape.back();
    if (columns % block(entry.dtype).elements == 0) return {};
    const DType requested = entry.dtype;
    const bool fits = columns % block(DType::kQ8_0).elements == 0;
    entry.dtype = fits ? DType::kQ8_0 : DType::kBF16;
    plan_.report.fallbacks.push_back({stored, requested, entry.dtype, columns});
    return {};
  }

  Status check_patterns() const {
    for (const GgufTypes::Entry& entry : types_.entries()) {
      if (entry.pattern.empty() || used_.contains(&entry)) continue;
      const auto example =
          std::find_if(plan_.tensors.begin(), plan_.tensors.end(),
                       [](const GgufTensorPlan& one) { return !is_always_f32(one.entry); });
      const std::vector<std::string> modules = modules_of(*example);
      return Error{ErrorKind::kInvalidArgument, "", "scheme",
                   str("patterns that decide for a matrix outside of norms and routers, such as '",
                       modules.empty() ? "" : modules[0], "' or '",
                       without_weight(example->entry.name), "'"),
                   str("'", entry.pattern, "' decides for none")};
    }
    return {};
  }

  void finish_report() {
    std::map<DType, GgufReport::Type> types;
    for (const GgufTensorPlan& tensor : plan_.tensors) {
      const TensorView view{nullptr, tensor.entry.dtype, tensor.entry.shape};
      GgufReport::Type& type = types[view.dtype];
      type.type = view.dtype;
      ++type.num_tensors;
      type.num_weights += view.num_elements();
      type.bytes += static_cast<int64_t>(view.num_bytes());
    }
    for (const auto& [dtype, type] : types) plan_.report.types.push_back(type);
    std::sort(plan_.report.types.begin(), plan_.report.types.end(),
              [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  }

  const Checkpoint::State& state_;
  const Description& description_;
  const GgufTypes& types_;
  std::set<const GgufTypes::Entry*> used_;
  GgufPlan plan_;
};

}  // namespace
}  // namespace gguf_plan

Result<GgufPlan> plan_gguf(const Checkpoint& from, const Description& description,
                           const GgufTypes& types) {
  return gguf_plan::Planner(from, description, types).run();
}

}  // namespace moracle
