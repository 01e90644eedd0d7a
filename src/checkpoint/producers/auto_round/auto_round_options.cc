#include "checkpoint/producers/auto_round/auto_round_options.h"

#include <optional>
#include <sstream>

#include "base/text.h"
#include "base/try.h"

namespace moracle::auto_round {
namespace {

constexpr const char* kPacking = "packing_format";

// The form of integers. Names of kernels may follow: "auto_round:gptq:exllamav2".
std::optional<Form> parse_form(std::string_view text) {
  const auto has = [&](std::string_view word) { return text.find(word) != text.npos; };
  if (has("awq")) return Form::kAwq;
  if (has("gptqmodel") || has("gptq_v2")) return Form::kGptqV2;
  if (has("gptq") || text == "auto") return Form::kGptq;
  for (const std::string_view own : {"auto_round", "auto_round:exllamav2", "auto_round:triton",
                                     "auto_round:tritonv2", "auto_round:torch"}) {
    if (text == own) return Form::kGptqV2;
  }
  return std::nullopt;
}

std::optional<Type> parse_type(std::string_view text) {
  if (text == "int") return Type::kInt;
  if (text == "nv_fp" || text == "nv_fp4" || text == "nv_fp4_with_static_gs") return Type::kNv;
  // Variants differ in how they round a group's largest value, which the stored scales hold.
  for (const std::string_view mx : {"mx_fp", "mx_fp4", "mx_fp8", "mx_fp4e2m1", "mx_fp8e4m3",
                                    "mx_fp_rceil", "mx_fp4_rceil", "mx_fp8_rceil"}) {
    if (text == mx) return Type::kMx;
  }
  if (text == "fp" || text == "fp8" || text == "fp8_e4m3") return Type::kFp;
  return std::nullopt;
}

Status read_form(const Config& config, Options& options) {
  // In newer files "backend" may name a kernel to run, beside packing_format.
  const Config::Keys keys =
      config.has({kPacking}) ? Config::Keys{kPacking} : Config::Keys{"backend"};
  MORACLE_TRY(const std::string text, config.text_or("", keys));
  if (text.empty()) return {};
  if (options.type == Type::kInt) {
    const std::optional<Form> form = parse_form(text);
    if (!form) {
      return config.unsupported(keys,
                                "auto_round, auto_round:auto_gptq, auto_round:gptqmodel or "
                                "auto_round:auto_awq with data_type int",
                                "it is " + text);
    }
    options.form = *form;
    return {};
  }
  const bool is_fp = options.type == Type::kFp;
  const bool known = is_fp ? text == "auto_round:fp8_static" || text == "auto_round:fp8"
                           : text == "auto_round:llm_compressor";
  if (known) return {};
  return config.unsupported(
      keys, is_fp ? "auto_round:fp8_static or auto_round:fp8" : "auto_round:llm_compressor",
      "it is " + text);
}

Status check_bits(const Config& config, const Options& options) {
  const auto is = [&](const char* key, const char* need, const auto& fact) {
    return config.unsupported({key}, need, str("it is ", fact));
  };
  const int64_t bits = options.bits;
  switch (options.type) {
    case Type::kInt:
      if (options.form == Form::kAwq && bits != 4) return is("bits", "4 in AWQ's form", bits);
      if (bits != 4 && bits != 8) return is("bits", "4, 8 or 16", bits);
      if (options.act_bits < 16)
        return is("act_bits", "16, because integer weights have float activations",
                  options.act_bits);
      return {};
    case Type::kMx:
      if (bits != 4 && bits != 8) return is("bits", "4 or 8 with data_type mx_fp", bits);
      return {};
    case Type::kNv:
      if (bits != 4) return is("bits", "4 with data_type nv_fp", bits);
      return {};
    case Type::kFp:
      if (bits != 8) return is("bits", "8 with data_type fp", bits);
      return {};
  }
  return {};
}

Status check_group(const Config& config, const Options& options) {
  const std::vector<int64_t>& group = options.group;
  const int64_t size = group.empty() ? 0 : group[0];
  const bool one = group.size() == 1;
  const auto wrong = [&](const char* need) {
    return config.unsupported({"group_size"}, need, "it is " + join(group, " x "));
  };
  switch (options.type) {
    case Type::kInt:
      return one && (size == -1 || size > 0) ? Status() : wrong("-1 or a positive size");
    case Type::kMx:
      return one && size == 32 ? Status() : wrong("32 with data_type mx_fp");
    case Type::kNv:
      return one && size == 16 ? Status() : wrong("16 with data_type nv_fp");
    case Type::kFp:
      break;
  }
  const bool block = group.size() == 2 && group[0] > 0 && group[1] > 0;
  if (!block && !(one && (size == -1 || size == 0)))
    return wrong("-1 (per channel), 0 (per tensor) or [rows, columns] with data_type fp");
  return {};
}

// Static scales belong to a tensor, dynamic ones to a block's columns of each token.
Status check_activations(const Config& config, const Options& options) {
  if (options.type != Type::kFp || options.act_bits > 8) return {};
  const bool blocks = options.group.size() == 2;
  MORACLE_TRY(const bool dynamic, config.boolean_or(blocks, {"act_dynamic"}));
  if (dynamic == blocks) return {};
  return config.unsupported({"act_dynamic"},
                            blocks ? "true with scales in blocks" : "false with group_size -1 or 0",
                            dynamic ? "it is true" : "it is false");
}

}  // namespace

Status read_options(const Config& config, Options& options) {
  // Modules of 16 bits have a data type of their own: "float", "fp".
  const bool first = options.bits == 0;
  MORACLE_TRY(options.bits, first ? config.integer({"bits"}, 1, 32)
                                  : config.integer_or(options.bits, {"bits"}, 1, 32));
  if (options.plain() && !first) return {};
  MORACLE_TRY(const std::string type, config.text_or("", {"data_type"}));
  if (!type.empty()) {
    const std::optional<Type> known = parse_type(type);
    if (!known)
      return config.unsupported({"data_type"}, "int, mx_fp, nv_fp or fp", "it is " + type);
    options.type = *known;
  }
  MORACLE_CHECK(read_form(config, options));
  MORACLE_TRY(std::vector<int64_t> group, config.integers({"group_size"}));
  if (!group.empty()) options.group = std::move(group);
  MORACLE_TRY(options.symmetric, config.boolean_or(options.symmetric, {"sym"}));
  MORACLE_TRY(options.act_bits, config.integer_or(options.act_bits, {"act_bits"}, 1, 32));
  if (options.plain()) return {};
  MORACLE_CHECK(check_bits(config, options));
  MORACLE_CHECK(check_group(config, options));
  return check_activations(config, options);
}

namespace {

Status add_blocks(const Config& config, const nlohmann::json& value,
                  std::vector<std::string>& blocks) {
  if (value.is_array()) {
    for (const nlohmann::json& one : value) MORACLE_CHECK(add_blocks(config, one, blocks));
    return {};
  }
  if (!value.is_string()) {
    return config.wrong({"block_name_to_quantize", "to_quant_block_names"},
                        "block names, as a string or in lists",
                        "it has " + JsonField::shown(value));
  }
  std::istringstream names(value.get<std::string>());
  for (std::string name; std::getline(names >> std::ws, name, ',');) {
    name.erase(name.find_last_not_of(' ') + 1);
    if (!name.empty()) blocks.push_back(name);
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> read_blocks(const Config& config) {
  std::vector<std::string> blocks;
  const nlohmann::json* value = config.find({"block_name_to_quantize", "to_quant_block_names"});
  if (value != nullptr) MORACLE_CHECK(add_blocks(config, *value, blocks));
  return blocks;
}

}  // namespace moracle::auto_round
