// AutoRound stores weights in the forms of other tools. packing_format names the form:
//   absent, auto_round:auto_gptq, auto_round:gptq   GPTQ, zero points minus 1
//   auto_round, auto_round:gptqmodel                GPTQ, zero points as they are
//   auto_round:auto_awq, auto_round:awq             AWQ
//   auto_round:llm_compressor                       mx_fp and nv_fp as compressed-tensors has them
//   absent, auto_round:fp8_static, auto_round:fp8   fp: e4m3 with scales
// Files before version 0.5 have the form in "backend", before a kernel's name:
// auto_round:gptq:exllamav2, or auto_round:exllamav2 with zero points as they are. extra_config
// changes options for single modules, by their name or by an expression that the name contains.
#include <algorithm>
#include <map>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/module_names.h"
#include "checkpoint/producers/auto_round/auto_round_options.h"
#include "checkpoint/producers/awq.h"
#include "checkpoint/producers/compressed_tensors/compressed_tensors.h"
#include "checkpoint/producers/fp4_matrix.h"
#include "checkpoint/producers/fp8_matrix.h"
#include "checkpoint/producers/gptq/gptq_options.h"
#include "checkpoint/producers/pattern.h"

namespace moracle {
namespace auto_round {
namespace {

Result<DescribedLinear> describe_int(const Tensors& tensors, const std::string& module,
                                     const Options& options) {
  if (options.form == Form::kAwq) {
    QuantKey key = int4_static_group(options.group[0]);
    key.symmetric = options.symmetric;
    return describe_awq(tensors, module, key, "sym");
  }
  return describe_gptq(tensors, module,
                       {.bits = static_cast<int>(options.bits),
                        .group_size = options.group[0],
                        .symmetric = options.symmetric,
                        .desc_act = false,
                        .v2 = options.form == Form::kGptqV2});
}

Result<DescribedLinear> describe_fp(const Tensors& tensors, const std::string& module,
                                    const Options& options) {
  const bool quantizes = options.act_bits <= 8, blocks = options.group.size() == 2;
  Fp8Format format;
  format.scheme.weight =
      blocks ? fp8_static_block(options.group[0], options.group[1]) : kFp8StaticTensorSym;
  format.tensor_or_channel = !blocks;
  if (blocks) format.scale = "weight_scale_inv";
  if (quantizes && blocks) format.scheme.activation = fp8_dynamic_group(options.group[1]);
  if (quantizes && !blocks) format.scheme.activation = kFp8StaticTensorSym;
  return describe_fp8(tensors, module, format);
}

Result<DescribedLinear> describe(const Tensors& tensors, const std::string& module,
                                 const Options& options) {
  CtScheme scheme;
  switch (options.type) {
    case Type::kInt:
      return describe_int(tensors, module, options);
    case Type::kFp:
      return describe_fp(tensors, module, options);
    case Type::kNv:
      scheme.scheme.weight = kNvfp4Static;
      return kCtNvfp4.describe(tensors, module, scheme);
    case Type::kMx:
      break;
  }
  scheme.scheme.weight = options.bits == 4 ? kMxfp4Static : kMxfp8Static;
  if (options.bits == 4) return kCtMxfp4.describe(tensors, module, scheme);
  if (options.act_bits <= 8) scheme.scheme.activation = kMxfp8Dynamic;
  return kCtMxfp8.describe(tensors, module, scheme);
}

class AutoRoundReader : public Reader {
 public:
  AutoRoundReader(std::vector<Options> options, std::map<std::string, size_t> named,
                  std::vector<std::pair<Pattern, size_t>> patterns, std::vector<std::string> blocks)
      : options_(std::move(options)),
        named_(std::move(named)),
        patterns_(std::move(patterns)),
        blocks_(std::move(blocks)) {}

  bool excludes(const std::string& module) const override {
    const std::vector<std::string> names = module_names(module);
    if (const Options* own = own_options(names)) return own->plain();
    if (options_[0].plain()) return true;
    if (blocks_.empty()) return false;
    return std::none_of(names.begin(), names.end(), [&](const std::string& name) {
      return std::any_of(blocks_.begin(), blocks_.end(),
                         [&](const std::string& block) { return name.starts_with(block); });
    });
  }
  bool stores(const Tensors& tensors, const std::string& module) const override {
    return tensors.find(module + ".qweight") != nullptr ||
           tensors.find(module + ".weight_packed") != nullptr || stores_fp8(tensors, module);
  }
  std::string expected(const std::string& module) const override {
    switch (options_[0].type) {
      case Type::kInt:
        return module + ".{qweight,qzeros,scales}";
      case Type::kFp:
        return module + ".{weight,weight_scale}";
      default:
        return module + ".{weight_packed,weight_scale}";
    }
  }
  Result<DescribedLinear> describe(const Tensors& tensors,
                                   const std::string& module) const override {
    const Options* own = own_options(module_names(module));
    // A module that is stored quantized although the config excludes it has the default options.
    const Options& options = own != nullptr && !own->plain() ? *own : options_[0];
    if (!options.plain()) return auto_round::describe(tensors, module, options);
    return Error{ErrorKind::kBadFile, tensors.file_of(module + ".qweight"),
                 "module '" + module + "'",
                 "its bits in extra_config, because the other modules are not quantized",
                 "extra_config does not name it"};
  }
  std::vector<std::string> not_used() const override {
    const auto drops = [](const Options& options) {
      return options.bits == 4 && options.type != Type::kInt && options.act_bits <= 4;
    };
    if (std::none_of(options_.begin(), options_.end(), drops)) return {};
    return {unused_4bit_activations("act_bits")};
  }

 private:
  // nullptr if extra_config does not change the module.
  const Options* own_options(const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      const auto found = named_.find(name);
      if (found != named_.end()) return &options_[found->second];
    }
    for (const auto& [pattern, index] : patterns_) {
      for (const std::string& name : names) {
        if (pattern.matches(name)) return &options_[index];
      }
    }
    return nullptr;
  }

  std::vector<Options> options_;  // [0]: of the modules that extra_config does not change
  std::map<std::string, size_t> named_;
  std::vector<std::pair<Pattern, size_t>> patterns_;  // the first match applies
  std::vector<std::string> blocks_;                   // beginnings of names; empty: all modules
};

Result<std::unique_ptr<Reader>> open(const Config& config) {
  // A rotation changes the layer's input; no kernel applies it.
  MORACLE_CHECK(check_unused(config, {"rotation_config", "rotation_configs", "spinquant_config",
                                      "transform_config", "hadamard_config"}));
  std::vector<Options> options(1);
  MORACLE_CHECK(read_options(config, options[0]));
  std::map<std::string, size_t> named;
  std::vector<std::pair<Pattern, size_t>> patterns;
  MORACLE_TRY(const auto extra, config.object({"extra_config"}));
  for (const std::string& key : keys_in_order(config, "extra_config")) {
    MORACLE_TRY(const auto changes, extra->object({key.c_str()}));
    if (!changes) continue;
    options.push_back(options[0]);
    MORACLE_CHECK(read_options(*changes, options.back()));
    // Module names have none of these characters. AutoRound compares all other keys as names.
    if (key.find_first_of("*+?^$()[]{}|\\") == key.npos) {
      named.emplace(key, options.size() - 1);
      continue;
    }
    MORACLE_TRY(Pattern pattern, Pattern::make("re:.*(?:" + key + ")", config.path()));
    patterns.emplace_back(std::move(pattern), options.size() - 1);
  }
  MORACLE_TRY(auto blocks, read_blocks(config));
  return std::unique_ptr<Reader>(new AutoRoundReader(std::move(options), std::move(named),
                                                     std::move(patterns), std::move(blocks)));
}

}  // namespace
}  // namespace auto_round

namespace {
// The method's name before version 0.5, and those that other programs of Intel write.
constexpr std::string_view kOtherNames[] = {"intel/auto-round", "inc"};
}  // namespace

constinit const Producer kAutoRoundProducer{
    .name = "auto-round", .open = auto_round::open, .also = kOtherNames};

}  // namespace moracle
