// GPTQ as AutoGPTQ and GPTQModel write it: codes packed along K into words, zero points along N.
//   qweight i32 [K·b/32, N]   word r of a column holds codes r·32/b …, low bits first
//   qzeros  i32 [G, N·b/32]   "gptq" (v1) stores zero - 1, "gptq_v2" stores zero
//   scales  f16 [G, N]
//   g_idx   i32 [K]           the group of each column; k / group_size unless desc_act
// value = (code - zero) · scale; code and zero are unsigned here and signed, less 2^(b-1), in
// canonical form.
#include <cstring>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producer.h"

namespace moracle {
namespace {

struct Options {
  int bits = 4;
  int64_t group_size = 128;  // -1: one group
  bool symmetric = true;
  bool desc_act = false;
  bool v2 = false;
  std::vector<std::string> listed;  // modules_in_block_to_quantize, where given
};

class GptqReader : public Reader {
 public:
  explicit GptqReader(Options options) : options_(std::move(options)) {}

  Says says(const std::string& module) const override {
    if (options_.listed.empty()) return Says::kNothing;
    for (const std::string& name : options_.listed) {
      if (module.ends_with("." + name)) return Says::kQuantized;
    }
    return Says::kPlain;
  }
  bool stores(const Tensors& tensors, const std::string& module) const override {
    return tensors.find(module + ".qweight") != nullptr;
  }
  std::string expected(const std::string& module) const override {
    return module + ".{qweight,qzeros,scales,g_idx}";
  }
  Result<DescribedLinear> describe(const Tensors& tensors, const std::string& module) const override;

 private:
  Options options_;
};

uint32_t word_at(const TensorView& view, int64_t index) {
  uint32_t word;
  std::memcpy(&word, view.data + 4 * index, sizeof word);
  return word;
}

// Transposes the packed words [K·b/32, N] into rows of codes, offset binary to two's complement.
void unpack_codes(const TensorView& qweight, int bits, CanonicalMatrix& matrix) {
  const int per_word = 32 / bits;
  const uint32_t flip = bits == 4 ? 0x88888888u : 0x80808080u;
  const int64_t row_bytes = matrix.row_bytes();
  matrix.storage.resize(matrix.n * row_bytes);
  for (int64_t r = 0; r < matrix.k / per_word; ++r) {
    for (int64_t c = 0; c < matrix.n; ++c) {
      const uint32_t word = word_at(qweight, r * matrix.n + c) ^ flip;
      std::memcpy(matrix.storage.data() + c * row_bytes + 4 * r, &word, sizeof word);
    }
  }
  matrix.codes = matrix.storage;
}

Result<CanonicalMatrix> read(const Tensors& tensors, const std::string& module, const Options& options,
                             const MatrixShape& shape) {
  CanonicalMatrix matrix;
  matrix.n = shape.n;
  matrix.k = shape.k;
  matrix.key = shape.key;
  unpack_codes(*tensors.find(module + ".qweight"), options.bits, matrix);

  const int64_t groups = matrix.scale_cols();
  MORACLE_TRY(const std::vector<float> scales, read_scales(tensors, module + ".scales"));
  matrix.scales.resize(scales.size());
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t c = 0; c < matrix.n; ++c) matrix.scales[c * groups + g] = scales[g * matrix.n + c];
  }

  const TensorView& qzeros = *tensors.find(module + ".qzeros");
  const int per_word = 32 / options.bits;
  const uint32_t mask = (1u << options.bits) - 1;
  const int middle = 1 << (options.bits - 1);
  if (!shape.key.symmetric) matrix.zero_points.resize(scales.size());
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t c = 0; c < matrix.n; ++c) {
      const uint32_t word = word_at(qzeros, (g * matrix.n + c) / per_word);
      const uint32_t stored = word >> (options.bits * (c % per_word));
      // v1 stores zero - 1 in b bits, so a true zero of 0 wraps around.
      const int zero = static_cast<int>((stored + (options.v2 ? 0 : 1)) & mask) - middle;
      if (!shape.key.symmetric) {
        matrix.zero_points[c * groups + g] = static_cast<int8_t>(zero);
      } else if (zero != 0) {
        return tensors.wrong(module + ".qzeros",
                             str("the zero point ", middle, " everywhere, since the config says sym"),
                             str("group ", g, ", column ", c, " has ", zero + middle));
      }
    }
  }

  const TensorView& g_idx = *tensors.find(module + ".g_idx");
  if (shape.group_index) matrix.group_index.resize(matrix.k);
  for (int64_t i = 0; i < matrix.k; ++i) {
    const auto group = static_cast<int32_t>(word_at(g_idx, i));
    if (group < 0 || group >= groups) {
      return tensors.wrong(module + ".g_idx", str("groups from 0 to ", groups - 1),
                           str("element ", i, " is ", group));
    }
    if (shape.group_index) {
      matrix.group_index[i] = group;
    } else if (group != i / matrix.group_cols()) {
      return tensors.wrong(module + ".g_idx", "groups from left to right, since desc_act is false",
                           str("element ", i, " is ", group));
    }
  }
  if (shape.bias) {
    MORACLE_TRY(matrix.bias, read_scales(tensors, module + ".bias"));
  }
  return matrix;
}

Result<DescribedLinear> GptqReader::describe(const Tensors& tensors, const std::string& module) const {
  const std::string qweight = module + ".qweight";
  MORACLE_TRY(const TensorView codes, tensors.get(qweight));
  const int64_t per_word = 32 / options_.bits;
  if (codes.dtype != DType::kI32 || codes.shape.size() != 2 || codes.shape[1] % per_word != 0) {
    return tensors.wrong(qweight, str("i32 [K/", per_word, ", N] with N a multiple of ", per_word),
                         "it is " + to_string(codes));
  }
  DescribedLinear linear;
  MatrixShape& shape = linear.shape;
  shape.k = codes.shape[0] * per_word;
  shape.n = codes.shape[1];
  shape.key = options_.bits == 4 ? int4_static_group(options_.group_size)
                                 : int8_static_group(options_.group_size);
  shape.key.symmetric = options_.symmetric;
  shape.group_index = options_.desc_act && options_.group_size != GroupShape::kAll;
  const int64_t group = options_.group_size == GroupShape::kAll ? shape.k : options_.group_size;
  const int64_t groups = group == 0 ? 0 : (shape.k + group - 1) / group;

  std::vector<std::string> names = {qweight, module + ".qzeros", module + ".scales", module + ".g_idx"};
  MORACLE_CHECK(tensors.get(names[1], DType::kI32, {groups, shape.n / per_word}));
  MORACLE_TRY(const TensorView scales, get_floats(tensors, names[2]));
  if (scales.shape != std::vector<int64_t>{groups, shape.n}) {
    return tensors.wrong(names[2], str("shape [", groups, ", ", shape.n, "] (groups of ", group, ")"),
                         "it is " + to_string(scales));
  }
  MORACLE_TRY(const TensorView g_idx, tensors.get(names[3], DType::kI32, {shape.k}));
  if (shape.group_index) linear.column_groups = {g_idx.data, g_idx.num_bytes()};
  MORACLE_TRY(shape.bias, add_bias(tensors, module, shape.n, names));
  linear.scheme.weight = shape.key;
  linear.part = part_of(tensors, shape.n, std::move(names));
  linear.part.read = [&tensors, module, options = options_, shape] {
    return read(tensors, module, options, shape);
  };
  return linear;
}

}  // namespace

Result<std::unique_ptr<Reader>> open_gptq(const Config& config) {
  Options options;
  MORACLE_TRY(const int64_t bits, config.integer({"bits"}, 2, 8));
  if (bits != 4 && bits != 8) {
    return config.unsupported({"bits"}, "4 or 8", str("it is ", bits));
  }
  options.bits = static_cast<int>(bits);
  MORACLE_TRY(options.group_size, config.integer_or(128, {"group_size"}, -1));
  if (options.group_size == 0) {
    return config.wrong({"group_size"}, "-1 or a positive size", "it is 0");
  }
  MORACLE_TRY(options.symmetric, config.boolean_or(true, {"sym"}));
  MORACLE_TRY(options.desc_act, config.boolean_or(false, {"desc_act"}));
  MORACLE_TRY(const std::string format, config.text_or("gptq", {"checkpoint_format", "format"}));
  if (format != "gptq" && format != "gptq_v2") {
    return config.unsupported({"checkpoint_format", "format"}, "gptq or gptq_v2", "it is " + format);
  }
  options.v2 = format == "gptq_v2";
  if (config.has({"dynamic"}) && !config.find({"dynamic"})->empty()) {
    return config.unsupported({"dynamic"}, "no per-module overrides", "it has some");
  }
  if (const auto* listed = config.find({"modules_in_block_to_quantize"})) {
    // A list of lists of module names, as AutoGPTQ groups them for its calibration order.
    for (const auto& group : *listed) {
      for (const auto& module : group.is_array() ? group : nlohmann::json::array({group})) {
        if (!module.is_string()) {
          return config.wrong({"modules_in_block_to_quantize"}, "lists of module names",
                              "it holds " + Config::shown(module));
        }
        options.listed.push_back(module.get<std::string>());
      }
    }
  }
  return std::unique_ptr<Reader>(new GptqReader(std::move(options)));
}

}  // namespace moracle
