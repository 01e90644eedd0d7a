// Modules and configs of compressed-tensors for tests, and the published formulas of their
// elements.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/reader_fixture.h"
#include "modelopt_synthetic.h"

namespace moracle::testing {

/// One config group and the contents of its modules' tensors.
struct CtModule {
  std::string format = "pack-quantized";
  int bits = 4;
  std::string strategy = "group";
  int64_t group_size = 8;
  int64_t block_rows = 8, block_cols = 16;
  bool symmetric = true;
  nlohmann::json actorder = nullptr;
  std::string activations;      ///< "", "token", "group" or "tensor" (static)
  std::string activation_type;  ///< "int" or "float"; empty: as the weights
  std::string scheme;           ///< the name that the layer gets

  bool is_float() const { return format == "float-quantized"; }
  bool packed() const { return format == "pack-quantized"; }
  int64_t per_word() const { return 32 / bits; }
  int64_t group_of(int64_t k) const { return strategy == "group" ? k / group_size : 0; }
  int64_t groups(int64_t k) const { return group_of(k - 1) + 1; }
  bool act_order(int64_t k) const { return actorder == "group" && groups(k) > 1; }
  std::string activations_are() const {
    if (!activation_type.empty()) return activation_type;
    return is_float() ? "float" : "int";
  }
};

inline std::ostream& operator<<(std::ostream& out, const CtModule& module) {
  out << module.format.substr(0, module.format.find('-')) << module.bits << "_" << module.strategy;
  if (module.strategy == "group") out << module.group_size;
  if (module.strategy == "block") out << module.block_rows << "x" << module.block_cols;
  if (!module.symmetric) out << "_asym";
  if (module.actorder.is_string()) out << "_" << module.actorder.get<std::string>();
  if (!module.activations.empty())
    out << "_" << module.activations_are() << "_" << module.activations;
  return out;
}

inline CtModule ct_packed() {
  return {};
}
inline CtModule ct_asymmetric() {
  return {.symmetric = false};
}
inline CtModule ct_act_order() {
  return {.actorder = "group"};
}
inline CtModule ct_fp8(const char* strategy, const char* activations) {
  return {.format = "float-quantized", .bits = 8, .strategy = strategy, .activations = activations};
}
inline CtModule ct_int8(const char* strategy, const char* activations) {
  return {.format = "int-quantized", .bits = 8, .strategy = strategy, .activations = activations};
}

/// The config group of modules in this format.
inline nlohmann::json ct_group(const CtModule& module, const std::vector<std::string>& targets) {
  const std::string type = module.is_float() ? "float" : "int";
  nlohmann::json weights = {
      {"num_bits", module.bits},       {"type", type},         {"strategy", module.strategy},
      {"symmetric", module.symmetric}, {"dynamic", false},     {"actorder", module.actorder},
      {"block_structure", nullptr},    {"group_size", nullptr}};
  if (module.strategy == "group") weights["group_size"] = module.group_size;
  if (module.strategy == "block") {
    weights["block_structure"] = {module.block_rows, module.block_cols};
  }
  nlohmann::json activations;
  if (!module.activations.empty()) {
    activations = {{"num_bits", 8},         {"type", module.activations_are()},
                   {"symmetric", true},     {"strategy", module.activations},
                   {"group_size", nullptr}, {"dynamic", module.activations != "tensor"}};
    if (module.activations == "group") activations["group_size"] = module.block_cols;
  }
  return {{"targets", targets},
          {"weights", weights},
          {"input_activations", activations},
          {"output_activations", nullptr}};
}

/// Replaces the tensors of one module by random tensors.
class CtWriter {
 public:
  explicit CtWriter(SyntheticCheckpoint& checkpoint) : checkpoint_(checkpoint) {}

  void add(const std::string& module, int64_t n, int64_t k, const CtModule& format) {
    checkpoint_.tensors.erase(module + ".weight");
    checkpoint_.tensors.erase(module + ".weight_scale");
    if (format.packed()) {
      add_packed(module, n, k, format);
    } else {
      std::vector<uint8_t> codes(n * k);
      for (uint8_t& code : codes) code = static_cast<uint8_t>(random_());
      // 0x7f and 0xff are NaN in e4m3.
      for (uint8_t& code : codes) code ^= format.is_float() && (code & 127) == 127 ? 1 : 0;
      if (format.bits == 4) {
        for (uint8_t& code : codes) code = static_cast<uint8_t>(code % 16 - 8);
      }
      const DType dtype = format.is_float() ? DType::kF8E4M3 : DType::kI8;
      checkpoint_.add(module + ".weight", dtype, {n, k}, codes);
      if (!format.symmetric) add_zeros(module, n, format.groups(k), format.bits);
    }
    if (format.actorder == "group") add_order(module, k, format);
    add_scales(module, n, k, format);
    if (format.activations == "tensor") {
      checkpoint_.add(module + ".input_scale", DType::kF32, {1}, std::vector<float>{uniform()});
    }
  }

 private:
  void add_packed(const std::string& module, int64_t n, int64_t k, const CtModule& format) {
    // The unused bits of the last word are random: readers must ignore them.
    const int64_t per_word = format.per_word(), width = (k + per_word - 1) / per_word;
    checkpoint_.add(module + ".weight_packed", DType::kI32, {n, width}, words(n * width));
    checkpoint_.add(module + ".weight_shape", DType::kI64, {2}, std::vector<int64_t>{n, k});
    if (!format.symmetric) {
      const int64_t height = (n + per_word - 1) / per_word, groups = format.groups(k);
      checkpoint_.add(module + ".weight_zero_point", DType::kI32, {height, groups},
                      words(height * groups));
    }
  }
  void add_zeros(const std::string& module, int64_t n, int64_t groups, int bits) {
    std::vector<int8_t> zeros(n * groups);
    for (int8_t& zero : zeros)
      zero = static_cast<int8_t>(static_cast<int>(random_() % (1 << bits)) - (1 << (bits - 1)));
    checkpoint_.add(module + ".weight_zero_point", DType::kI8, {n, groups}, zeros);
  }
  void add_order(const std::string& module, int64_t k, const CtModule& format) {
    std::vector<int32_t> order(k);
    // Modules with the same input share one column order.
    for (int64_t i = 0; i < k; ++i)
      order[i] = static_cast<int32_t>(format.group_of((i * 5 + 3) % k));
    checkpoint_.add(module + ".weight_g_idx", DType::kI32, {k}, order);
  }
  void add_scales(const std::string& module, int64_t n, int64_t k, const CtModule& format) {
    std::vector<int64_t> shape = {n, format.groups(k)};
    if (format.strategy == "tensor") shape = {1};
    if (format.strategy == "block") {
      shape = {(n + format.block_rows - 1) / format.block_rows,
               (k + format.block_cols - 1) / format.block_cols};
    }
    std::vector<uint16_t> scales(TensorView{nullptr, DType::kBF16, shape}.num_elements());
    for (uint16_t& scale : scales) scale = float_to_bf16(uniform());
    checkpoint_.add(module + ".weight_scale", DType::kBF16, shape, scales);
  }
  std::vector<uint32_t> words(int64_t count) {
    std::vector<uint32_t> words(count);
    for (uint32_t& word : words) word = static_cast<uint32_t>(random_());
    return words;
  }
  float uniform() { return 0.01f + static_cast<float>(random_() >> 8) * 0x1p-28f; }

  SyntheticCheckpoint& checkpoint_;
  std::mt19937 random_{7};
};

/// A checkpoint with expert and attention matrices in this format, in sizes that no block divides.
inline SyntheticCheckpoint ct_checkpoint(const CtModule& format) {
  const SyntheticSize size{.layers = 1, .experts = 2, .hidden = 32, .intermediate = 13};
  auto checkpoint = SyntheticCheckpoint::plain(size);
  CtWriter writer(checkpoint);
  for (int64_t e = 0; e < size.experts; ++e) {
    for (const char* part : {"gate_proj", "up_proj"}) {
      writer.add(SyntheticCheckpoint::expert(0, e, part), 13, 32, format);
    }
    writer.add(SyntheticCheckpoint::expert(0, e, "down_proj"), 32, 13, format);
  }
  const std::string attention = "model.layers.0.self_attn.";
  writer.add(attention + "q_proj", 32, 32, format);
  writer.add(attention + "k_proj", 16, 32, format);
  writer.add(attention + "v_proj", 16, 32, format);
  writer.add(attention + "o_proj", 32, 32, format);
  checkpoint.config["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"format", format.format},
      {"ignore", {"lm_head", "re:.*mlp\\.gate$"}},
      {"kv_cache_scheme", nullptr},
      {"sparsity_config", nlohmann::json::object()},
      {"config_groups", {{"group_0", ct_group(format, {"Linear"})}}}};
  return checkpoint;
}

/// The same in format "mxfp8-quantized": matrices are [side, side], and `side` is a multiple of 32.
inline SyntheticCheckpoint ct_mxfp8_checkpoint(int64_t side, bool quantized_activations = true) {
  SyntheticCheckpoint checkpoint = modelopt("MXFP8", side);  // stores its tensors alike
  const nlohmann::json args = {
      {"num_bits", 8},     {"type", "float"},  {"strategy", "group"},         {"group_size", 32},
      {"symmetric", true}, {"dynamic", false}, {"scale_dtype", "torch.uint8"}};
  nlohmann::json activations;
  if (quantized_activations) {
    activations = args;
    activations["dynamic"] = true;
  }
  checkpoint.quantization() = {
      {"quant_method", "compressed-tensors"},
      {"format", "mxfp8-quantized"},
      {"ignore", {"lm_head", "re:.*mlp\\.gate$"}},
      {"config_groups",
       {{"group_0",
         {{"targets", {"Linear"}}, {"weights", args}, {"input_activations", activations}}}}}};
  return checkpoint;
}

/// Element [n, k] of a module by the published formula.
inline double ct_value(const SyntheticCheckpoint& checkpoint, const std::string& module,
                       const CtModule& format, int64_t n, int64_t k) {
  const TensorBytes& scales = checkpoint.tensors.at(module + ".weight_scale");
  int64_t group = format.group_of(k), index = 0;
  if (format.actorder == "group") group = checkpoint.get<int32_t>(module + ".weight_g_idx", k);
  if (format.strategy == "block") {
    index = n / format.block_rows * scales.shape[1] + k / format.block_cols;
  } else if (format.strategy != "tensor") {
    index = n * scales.shape[1] + group;
  }
  const double scale = bf16_to_float(checkpoint.get<uint16_t>(scales.name, index));
  if (!format.packed()) {
    const int64_t width = checkpoint.tensors.at(module + ".weight").shape[1];
    const auto byte = checkpoint.get<uint8_t>(module + ".weight", n * width + k);
    if (format.is_float()) return scale * e4m3_to_float(byte);
    const int zero = format.symmetric ? 0
                                      : checkpoint.get<int8_t>(module + ".weight_zero_point",
                                                               n * format.groups(width) + group);
    return scale * (static_cast<int8_t>(byte) - zero);
  }
  const int64_t width = checkpoint.tensors.at(module + ".weight_packed").shape[1];
  const int64_t per_word = format.per_word();
  const int mask = (1 << format.bits) - 1;
  const auto word = checkpoint.get<uint32_t>(module + ".weight_packed", n * width + k / per_word);
  const int code = static_cast<int>(word >> (k % per_word * format.bits)) & mask;
  int zero = 1 << (format.bits - 1);
  if (!format.symmetric) {
    const int64_t groups = checkpoint.tensors.at(module + ".weight_zero_point").shape[1];
    const auto zeros =
        checkpoint.get<uint32_t>(module + ".weight_zero_point", n / per_word * groups + group);
    zero = static_cast<int>(zeros >> (n % per_word * format.bits)) & mask;
  }
  return (code - zero) * scale;
}

/// The same for expect_values().
inline Value published(const SyntheticCheckpoint& checkpoint, const CtModule& format) {
  return [&checkpoint, format](const std::string& module, int64_t n, int64_t k) {
    return ct_value(checkpoint, module, format, n, k);
  };
}

}  // namespace moracle::testing
