#include <charconv>

#include "base/text.h"
#include "moracle/quant.h"

namespace moracle {
namespace {

// A scheme's name has parts: <format>[-<widths>[-<granularity>[-asym]]].
std::string_view format_name(const QuantKey& key) {
  switch (key.dtype) {
    case DType::kI4: return "int4";
    case DType::kI8: return "int8";
    default: return name(key.dtype);
  }
}

std::string granularity(const QuantKey& key) {
  if (key.group.rows == 1 && key.group.cols == GroupShape::kAll) return "channel";
  if (key.group.rows == 1) return str("g", key.group.cols);
  if (key.group == GroupShape{}) return "tensor";
  return str("block", key.group.rows, "x", key.group.cols);
}

Error unknown(std::string_view text) {
  return {ErrorKind::kInvalidArgument, "", str("scheme '", text, "'"),
          "bf16, f16, f32, int8-w8a8, int8-w8a16-channel, int8-w8a16-g<size> or "
          "int4-w4a16-<channel|g<size>>, integers with -asym where there are zero points",
          "it is none of these"};
}

}  // namespace

std::string name(const Scheme& scheme) {
  const QuantKey& weight = scheme.weight;
  if (!weight.quantized()) return std::string(name(weight.dtype));
  const int activation_bits = scheme.activation ? bits(scheme.activation->dtype) : 16;
  std::string text = str(format_name(weight), "-w", bits(weight.dtype), "a", activation_bits);
  // Channel weights with token activations are what int8-w8a8 means.
  const bool usual = scheme.activation && weight.group == kPerRow;
  if (!usual) text += "-" + granularity(weight);
  if (!weight.symmetric) text += "-asym";
  return text;
}

std::string describe(const Scheme& scheme) {
  const QuantKey& weight = scheme.weight;
  if (!weight.quantized()) return str(name(weight.dtype), " weights, not quantized");
  std::string where = granularity(weight);
  if (where[0] == 'g') where = str("group of ", weight.group.cols);
  std::string text = str(format_name(weight), " weights per ", where,
                         weight.symmetric ? "" : " with zero points");
  if (!scheme.activation) return text + ", floating-point activations";
  return str(text, ", ", format_name(*scheme.activation), " activations per token, ",
             scheme.activation->dynamic ? "dynamic" : "static");
}

Result<Scheme> parse_scheme(std::string_view text) {
  if (text == "bf16") return Scheme{kBF16Weight, {}};
  if (text == "f16") return Scheme{kF16Weight, {}};
  if (text == "f32") return Scheme{kF32Weight, {}};
  if (text == "int8-w8a8" || text == "w8a8-int8") {
    return Scheme{kInt8StaticChannelSym, kInt8DynamicTokenSym};
  }
  std::string_view rest = text;
  Scheme scheme;
  if (rest.starts_with("int4-w4a16-")) {
    scheme.weight.dtype = DType::kI4;
  } else if (rest.starts_with("int8-w8a16-")) {
    scheme.weight.dtype = DType::kI8;
  } else {
    return unknown(text);
  }
  rest.remove_prefix(rest.find('-', 5) + 1);
  if (rest.ends_with("-asym")) {
    scheme.weight.symmetric = false;
    rest.remove_suffix(5);
  }
  if (rest == "channel") {
    scheme.weight.group = kPerRow;
    return scheme;
  }
  if (!rest.starts_with('g')) return unknown(text);
  rest.remove_prefix(1);
  int64_t size = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), size);
  if (error != std::errc() || end != rest.data() + rest.size() || size < 1) return unknown(text);
  scheme.weight.group = per_group(size);
  return scheme;
}

}  // namespace moracle
