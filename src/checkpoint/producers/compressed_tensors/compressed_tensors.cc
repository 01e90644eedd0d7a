// compressed-tensors, as llm-compressor writes it. Config groups assign a format and a scheme to
// modules. The formats are in compressed_tensors_{int,pack,float,mxfp8,fp4}.cc.
#include "checkpoint/producers/compressed_tensors/compressed_tensors.h"

#include <algorithm>
#include <tuple>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/fp4_matrix.h"
#include "checkpoint/producers/module_tensors.h"
#include "checkpoint/producers/pattern.h"

namespace moracle {

Result<nlohmann::json> one_of(const Config& config, const char* key,
                              std::initializer_list<nlohmann::json> allowed,
                              nlohmann::json fallback) {
  const auto* value = config.find({key});
  if (value == nullptr && !fallback.is_null()) return fallback;
  std::vector<std::string> shown;
  for (const auto& choice : allowed) {
    if (value != nullptr && *value == choice) return choice;
    shown.push_back(choice.dump());
  }
  return config.unsupported({key}, join(shown, " or "),
                            value ? "it is " + JsonField::shown(*value) : "it is missing");
}

Result<Config> weights_of(const Config& group, std::string_view type) {
  MORACLE_TRY(auto weights, group.object({"weights"}));
  if (!weights) {
    return group.unsupported({"weights"}, "a quantization of the weights", "it is missing");
  }
  MORACLE_CHECK(one_of(*weights, "type", {type}));
  MORACLE_CHECK(one_of(*weights, "dynamic", {false}, false));
  return *std::move(weights);
}

Status check_unused(const Config& config, std::initializer_list<const char*> keys,
                    const char* need) {
  for (const char* key : keys) {
    const auto* value = config.find({key});
    if (value == nullptr || value->empty()) continue;
    return config.unsupported({key}, need, "it is " + JsonField::shown(*value));
  }
  return {};
}

Status check_absent(const Tensors& tensors, const std::string& name, const char* reason) {
  const TensorView* found = tensors.find(name);
  if (found == nullptr) return {};
  return tensors.wrong(name, str("to be absent, because ", reason), "it is " + to_string(*found));
}

namespace {

constexpr std::string_view kNaive = "naive-quantized";

struct Group {
  std::string name;
  const CtFormat* format;
  CtScheme scheme;
};

// A module belongs to the group of the first target that matches it. Targets are in the order of
// compressed-tensors: exact names, expressions, classes; alphabetical within each kind.
struct Target {
  std::string text;
  Pattern pattern;
  size_t group;

  auto order() const {
    const int kind = text == "Linear" ? 2 : text.starts_with("re:") ? 1 : 0;
    return std::tuple<int, const std::string&>(kind, text);
  }
};

class CompressedTensorsReader : public Reader {
 public:
  CompressedTensorsReader(std::vector<Group> groups, std::vector<Target> targets,
                          std::vector<Pattern> ignore, std::string status)
      : groups_(std::move(groups)),
        targets_(std::move(targets)),
        ignore_(std::move(ignore)),
        status_(std::move(status)) {}

  bool excludes(const std::string& module) const override {
    const auto matches = [&](const Pattern& pattern) { return pattern.matches(module); };
    return std::any_of(ignore_.begin(), ignore_.end(), matches) || group_of(module) == nullptr;
  }
  bool stores(const Tensors& tensors, const std::string& module) const override {
    const TensorView* weight = tensors.find(module + ".weight");
    return tensors.find(module + ".weight_packed") != nullptr ||
           tensors.find(module + ".weight_scale") != nullptr ||
           (weight != nullptr && (weight->dtype == DType::kI8 || weight->dtype == DType::kF8E4M3));
  }
  std::string expected(const std::string& module) const override {
    const Group* group = group_of(module);
    return str(module, ".", group ? group->format->tensors : groups_[0].format->tensors);
  }
  Result<DescribedLinear> describe(const Tensors& tensors,
                                   const std::string& module) const override {
    MORACLE_CHECK(check_compressed(tensors, module));
    const Group* group = groups_.size() == 1 ? &groups_[0] : group_of(module);
    if (group) return group->format->describe(tensors, module, group->scheme);
    return Error{ErrorKind::kBadFile, tensors.file_of(module), "module '" + module + "'",
                 "to match a target of one of the config's groups", "it matches none"};
  }
  std::vector<std::string> not_used() const override {
    std::vector<std::string> texts;
    for (const Group& group : groups_) {
      if (!group.scheme.drops_activations) continue;
      texts.push_back(
          unused_4bit_activations(str("config_groups.", group.name, ".input_activations")));
    }
    return texts;
  }

 private:
  // A model that was saved before its weights were compressed has floats beside the scales.
  Status check_compressed(const Tensors& tensors, const std::string& module) const {
    const std::string name = module + ".weight";
    if (status_ == "compressed" || !get_floats(tensors, name) ||
        tensors.find(module + ".weight_packed") != nullptr)
      return {};
    return Error{ErrorKind::kUnsupported, tensors.file_of(name), "tensor '" + name + "'",
                 "compressed weights; save the model with save_compressed=True",
                 str("it is ", to_string(*tensors.find(name)),
                     " beside weight_scale: floats that are rounded at run time "
                     "(quantization_status ",
                     status_, ")")};
  }
  // nullptr if no target matches.
  const Group* group_of(const std::string& module) const {
    for (const Target& target : targets_) {
      if (target.pattern.matches(module)) return &groups_[target.group];
    }
    return nullptr;
  }

  std::vector<Group> groups_;
  std::vector<Target> targets_;
  std::vector<Pattern> ignore_;
  std::string status_;  // the config's, for messages: the tensors decide
};

// The format of a group, or else of the whole checkpoint. "naive-quantized" stores each code in its
// own type, like the two 8-bit formats.
Result<const CtFormat*> find_format(const Config& config, const Config& group) {
  const Config& from = group.has({"format"}) ? group : config;
  MORACLE_TRY(const std::string format, from.text({"format"}));
  std::vector<std::string_view> known;
  for (const CtFormat* candidate :
       {&kCtInt, &kCtPack, &kCtFloat, &kCtMxfp8, &kCtMxfp4, &kCtNvfp4}) {
    if (candidate->name == format) return candidate;
    known.push_back(candidate->name);
  }
  if (format == kNaive) {
    MORACLE_TRY(const auto weights, group.object({"weights"}));
    const auto* type = weights ? weights->find({"type"}) : nullptr;
    return type != nullptr && *type == "float" ? &kCtFloat : &kCtInt;
  }
  known.push_back(kNaive);
  return from.unsupported({"format"}, "one of " + join(known), "it is " + format);
}

Result<Group> read_group(const Config& config, const Config& groups, const std::string& name) {
  MORACLE_TRY(const auto group, groups.object({name.c_str()}));
  if (!group) return groups.wrong({name.c_str()}, "an object", "it is null");
  MORACLE_TRY(const CtFormat* format, find_format(config, *group));
  MORACLE_CHECK(check_unused(*group, {"output_activations"}));
  MORACLE_TRY(CtScheme scheme, format->read_scheme(*group));
  return Group{name, format, std::move(scheme)};
}

// Adds the targets of groups[g], in order. Errors: a target that another group has too.
Status add_targets(const Config& groups, const std::vector<Group>& read, size_t g,
                   std::vector<Target>& targets) {
  MORACLE_TRY(const auto group, groups.object({read[g].name.c_str()}));
  MORACLE_TRY(const auto texts, group->texts({"targets"}));
  for (const std::string& text : texts) {
    MORACLE_TRY(Pattern pattern, Pattern::make(text, groups.path()));
    Target target{text, std::move(pattern), g};
    const auto place =
        std::lower_bound(targets.begin(), targets.end(), target,
                         [](const Target& a, const Target& b) { return a.order() < b.order(); });
    if (place != targets.end() && place->text == text) {
      if (place->group == g) continue;
      return groups.wrong({read[g].name.c_str()}, "targets that no other group has",
                          str("'", text, "' is also a target of ", read[place->group].name));
    }
    targets.insert(place, std::move(target));
  }
  return {};
}

// A sparse checkpoint omits zeros; "dense" means that it does not.
Status check_dense(const Config& config) {
  MORACLE_TRY(const auto sparsity, config.object({"sparsity_config"}));
  if (!sparsity || sparsity->value().empty()) return {};
  MORACLE_CHECK(one_of(*sparsity, "format", {"dense"}));
  return {};
}

Result<std::unique_ptr<Reader>> open_compressed_tensors(const Config& config) {
  MORACLE_CHECK(check_unused(config, {"transform_config"}));
  MORACLE_CHECK(check_dense(config));
  MORACLE_TRY(const auto found, config.object({"config_groups"}));
  if (!found || found->value().empty()) {
    return config.unsupported({"config_groups"}, "at least one group", "it has 0");
  }
  std::vector<Group> groups;
  std::vector<Target> targets;
  for (const auto& item : found->value().items()) {
    MORACLE_TRY(Group group, read_group(config, *found, item.key()));
    groups.push_back(std::move(group));
    MORACLE_CHECK(add_targets(*found, groups, groups.size() - 1, targets));
  }
  std::vector<Pattern> ignore;
  MORACLE_TRY(const auto ignored, config.texts({"ignore"}));
  for (const std::string& text : ignored) {
    MORACLE_TRY(Pattern pattern, Pattern::make(text, config.path()));
    ignore.push_back(std::move(pattern));
  }
  MORACLE_TRY(std::string status, config.text_or("compressed", {"quantization_status"}));
  return std::unique_ptr<Reader>(new CompressedTensorsReader(std::move(groups), std::move(targets),
                                                             std::move(ignore), std::move(status)));
}

}  // namespace

constinit const Producer kCompressedTensorsProducer{.name = "compressed-tensors",
                                                    .open = open_compressed_tensors};

}  // namespace moracle
