#include <charconv>

#include "base/text.h"
#include "moracle/quant.h"

namespace moracle {
namespace {

// The parts of a scheme's name:
// <format>[-<widths>[-<granularity>[-asym][-min][-s16|-s8][-6bit|…][-static|-token]]].
std::string_view format_name(const QuantKey& key) {
  const bool mx = key.scale_dtype == DType::kF8E8M0;
  switch (key.dtype) {
    case DType::kI4:
      return "int4";
    case DType::kI8:
      return "int8";
    case DType::kF8E4M3:
      return mx ? "mxfp8" : "fp8";
    case DType::kF4E2M1:
      return mx ? "mxfp4" : key == kNvfp4Static ? "nvfp4" : "fp4";
    default:
      return name(key.dtype);
  }
}

std::string granularity(const QuantKey& key) {
  if (key.group.rows == 1 && key.group.cols == GroupShape::kAll) return "channel";
  if (key.group.rows == 1) return str("g", key.group.cols);
  if (key.group == GroupShape{}) return "tensor";
  return str("block", key.group.rows, "x", key.group.cols);
}

Error unknown(std::string_view text) {
  return {
      ErrorKind::kInvalidArgument, "", str("scheme '", text, "'"),
      "bf16, f16, f32, int8-w8a8, mxfp8-w8a8, mxfp8-w8a16, mxfp4-w4a16, mxfp4-w4a8, "
      "mxfp4-w4afp8, nvfp4-w4a16, nvfp4-w4a8, nvfp4-w4afp8, or "
      "int4-w4a16-, int4-w4a8-, int4-w4afp8-, int8-w8a16-, int8-w8a8-, int8-w8afp8-, fp8-w8a8- "
      "or fp8-w8a16- with channel, g<size>, tensor or block<rows>x<cols>, then of integers -asym "
      "for zero points, -min for minimums, -s16 or -s8 for scales in f16 or in 8-bit integers and "
      "-6bit, -5bit, -u5bit or -iq4 for codes of so many bits, "
      "then -static for stored activation scales, or -token for those of whole tokens beside fp8 "
      "weights in groups or blocks",
      "it is unknown"};
}

// The width names the activation format, except for fp8 activations with integer weights: there
// int8 is the default.
std::string activation_name(const Scheme& scheme) {
  if (!scheme.activation) return "16";
  const bool unlike =
      scheme.activation->dtype == DType::kF8E4M3 && scheme.weight.dtype != DType::kF8E4M3;
  return unlike ? "fp8" : std::to_string(bits(scheme.activation->dtype));
}

// In the order of the enumerators.
struct CodeSetName {
  std::string_view suffix, description;
};
constexpr CodeSetName kCodeSets[] = {{"", ""},
                                     {"-6bit", ", codes of 6 bits"},
                                     {"-5bit", ", codes of 5 bits"},
                                     {"-u5bit", ", codes of 5 bits without sign"},
                                     {"-iq4", ", codes of 4 bits in a code book"},
                                     {"-iq3s", ", odd codes of 4 bits"},
                                     {"-iq3xxs", ", codes of 3 bits and a sign in a code book"},
                                     {"-iq2", ", 3 codes and a sign"},
                                     {"-iq1", ", 3 small codes and a sign"}};

// The properties that a format and its widths determine, without the granularity.
struct Family {
  std::string_view prefix;
  QuantKey weight;
  std::optional<QuantKey> activation;
  bool has_granularity;
};
constexpr Family kFamilies[] = {
    {"int8-w8a8", kInt8StaticChannelSym, kInt8DynamicTokenSym, false},
    {"w8a8-int8", kInt8StaticChannelSym, kInt8DynamicTokenSym, false},
    {"mxfp8-w8a8", kMxfp8Static, kMxfp8Dynamic, false},
    {"mxfp8-w8a16", kMxfp8Static, {}, false},
    {"mxfp4-w4a16", kMxfp4Static, {}, false},
    {"mxfp4-w4a8", kMxfp4Static, kInt8DynamicTokenSym, false},
    {"mxfp4-w4afp8", kMxfp4Static, kFp8DynamicTokenSym, false},
    {"nvfp4-w4a16", kNvfp4Static, {}, false},
    {"nvfp4-w4a8", kNvfp4Static, kInt8DynamicTokenSym, false},
    {"nvfp4-w4afp8", kNvfp4Static, kFp8DynamicTokenSym, false},
    {"int4-w4a8", kInt4StaticGroupScale, kInt8DynamicTokenSym, true},
    {"int4-w4afp8", kInt4StaticGroupScale, kFp8DynamicTokenSym, true},
    {"int8-w8afp8", kInt8StaticGroupScale, kFp8DynamicTokenSym, true},
    {"int8-w8a8", kInt8StaticGroupScale, kInt8DynamicTokenSym, true},
    {"int4-w4a16", kInt4StaticGroupScale, {}, true},
    {"int8-w8a16", kInt8StaticGroupScale, {}, true},
    {"fp8-w8a8", kFp8StaticChannelSym, kFp8DynamicTokenSym, true},
    {"fp8-w8a16", kFp8StaticChannelSym, {}, true},
};

// "128" → 128: only digits, at least 1. The upper limit is that of checkpoints, so sums with a
// matrix size cannot overflow 64 bits.
bool parse_size(std::string_view text, int64_t& size) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  return error == std::errc() && end == text.data() + text.size() && size >= 1 && size <= INT32_MAX;
}

bool parse_granularity(std::string_view text, GroupShape& group) {
  if (text == "channel") return group = kPerRow, true;
  if (text == "tensor") return group = GroupShape{}, true;
  if (text.starts_with('g')) return group.rows = 1, parse_size(text.substr(1), group.cols);
  const size_t by = text.find('x');
  if (!text.starts_with("block") || by == std::string_view::npos) return false;
  return parse_size(text.substr(5, by - 5), group.rows) &&
         parse_size(text.substr(by + 1), group.cols);
}

bool has_granularity(const QuantKey& weight, const Scheme& scheme) {
  if (weight.scale_dtype == DType::kF8E8M0 || weight == kNvfp4Static) return false;
  return !(weight == kInt8StaticChannelSym && scheme.activation == kInt8DynamicTokenSym);
}

// Blocks and groups of fp8 weights.
bool is_fp8_in_groups(const QuantKey& weight) {
  return weight.dtype == DType::kF8E4M3 && weight.group.cols != GroupShape::kAll &&
         weight.scale_dtype == DType::kF32;
}

}  // namespace

std::string name(const Scheme& scheme) {
  const QuantKey& weight = scheme.weight;
  if (!weight.quantized()) return std::string(name(weight.dtype));
  std::string text =
      str(format_name(weight), "-w", bits(weight.dtype), "a", activation_name(scheme));
  if (has_granularity(weight, scheme)) text += "-" + granularity(weight);
  if (!weight.symmetric) text += "-asym";
  if (weight.minimums) text += "-min";
  if (weight.scale_dtype == DType::kF16) text += "-s16";
  if (weight.scale_dtype == DType::kI8) text += "-s8";
  text += kCodeSets[static_cast<size_t>(weight.codes)].suffix;
  if (scheme.activation && !scheme.activation->dynamic) text += "-static";
  if (is_fp8_in_groups(weight) && scheme.activation == kFp8DynamicTokenSym) text += "-token";
  return text;
}

std::string describe(const Scheme& scheme) {
  const QuantKey& weight = scheme.weight;
  if (!weight.quantized()) return str(name(weight.dtype), " weights, not quantized");
  auto where = [](const QuantKey& key, const char* row) {
    if (key.group == GroupShape{}) return std::string("per tensor");
    if (key.group == kPerRow) return std::string("per ") + row;
    if (key.group.rows == 1) return str("per group of ", key.group.cols);
    return str("per block of ", key.group.rows, " x ", key.group.cols);
  };
  std::string text = str(format_name(weight), " weights ", where(weight, "channel"),
                         weight.symmetric ? "" : " with zero points",
                         weight.minimums ? (weight.symmetric ? " with" : " and") : "",
                         weight.minimums ? " minimums" : "");
  if (weight.scale_dtype == DType::kF16) text += ", scales in f16";
  if (weight.scale_dtype == DType::kI8) text += ", scales in 8-bit integers";
  text += kCodeSets[static_cast<size_t>(weight.codes)].description;
  if (!scheme.activation) return text + ", floating-point activations";
  const QuantKey& activation = *scheme.activation;
  return str(text, ", ", format_name(activation), " activations ", where(activation, "token"), ", ",
             activation.dynamic ? "dynamic" : "static");
}

Result<Scheme> parse_scheme(std::string_view text) {
  if (text == "bf16") return Scheme{kBF16Weight, {}};
  if (text == "f16") return Scheme{kF16Weight, {}};
  if (text == "f32") return Scheme{kF32Weight, {}};
  for (const Family& family : kFamilies) {
    if (!text.starts_with(family.prefix)) continue;
    Scheme scheme{family.weight, family.activation};
    std::string_view rest = text.substr(family.prefix.size());
    if (!family.has_granularity && rest.empty()) return scheme;
    if (!family.has_granularity || !rest.starts_with('-')) continue;
    rest.remove_prefix(1);
    const bool fp8 = scheme.activation && scheme.activation->dtype == DType::kF8E4M3;
    const bool int8 =
        scheme.activation == kInt8DynamicTokenSym && scheme.weight.dtype == DType::kI8;
    if (rest.ends_with("-static") && (fp8 || int8)) {
      scheme.activation = fp8 ? kFp8StaticTensorSym : kInt8StaticTensorSym;
      rest.remove_suffix(7);
    }
    const bool by_token = fp8 && rest.ends_with("-token");
    if (by_token) rest.remove_suffix(6);
    const bool integers = scheme.weight.dtype != DType::kF8E4M3;
    for (size_t i = 1; i < std::size(kCodeSets) && scheme.weight.dtype == DType::kI8; ++i) {
      if (!rest.ends_with(kCodeSets[i].suffix)) continue;
      scheme.weight.codes = static_cast<CodeSet>(i);
      rest.remove_suffix(kCodeSets[i].suffix.size());
      break;
    }
    if (rest.ends_with("-s16") && integers) {
      scheme.weight.scale_dtype = DType::kF16;
      rest.remove_suffix(4);
    } else if (rest.ends_with("-s8") && integers) {
      scheme.weight.scale_dtype = DType::kI8;
      rest.remove_suffix(3);
    }
    if (rest.ends_with("-min") && integers) {
      scheme.weight.minimums = true;
      rest.remove_suffix(4);
    }
    if (rest.ends_with("-asym") && integers) {
      scheme.weight.symmetric = false;
      rest.remove_suffix(5);
    }
    if (!parse_granularity(rest, scheme.weight.group)) continue;
    if (!has_granularity(scheme.weight, scheme)) continue;  // it has a name without granularity
    const bool in_groups = is_fp8_in_groups(scheme.weight);
    if (by_token && !(in_groups && scheme.activation->dynamic)) continue;
    // Blocks and groups of fp8 weights use activation groups of the same width.
    if (in_groups && !by_token && scheme.activation && scheme.activation->dynamic) {
      scheme.activation = fp8_dynamic_group(scheme.weight.group.cols);
    }
    return scheme;
  }
  return unknown(text);
}

}  // namespace moracle
