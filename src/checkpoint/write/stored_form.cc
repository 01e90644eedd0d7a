#include "checkpoint/write/stored_form.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/producer.h"

namespace moracle {
namespace {

// In the order of the enumerators.
const Producer* const kFormats[] = {&kCompressedTensorsProducer, &kFp8Producer, &kModelOptProducer};

bool is_exponents(const Scheme& scheme) {
  return scheme.weight.scale_dtype == DType::kF8E8M0;
}
bool is_packed(const Scheme& scheme) {
  return scheme.weight.dtype == DType::kI8 && !scheme.activation;
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// E8M0 exponents of powers of two from 2^-127 to 2^127. Only 2^-127 is subnormal in f32.
std::vector<std::byte> exponents_of(const std::vector<float>& scales) {
  std::vector<std::byte> exponents(scales.size());
  for (size_t i = 0; i < scales.size(); ++i)
    exponents[i] = static_cast<std::byte>(std::bit_cast<uint32_t>(scales[i]) >> 23);
  return exponents;
}

// Offset binary, four codes per word from the low bits. The last word of a row is padded with 0.
std::vector<std::byte> packed_codes(const CanonicalMatrix& matrix) {
  const int64_t width = (matrix.k + 3) / 4 * 4;
  std::vector<std::byte> packed(matrix.n * width);
  for (int64_t r = 0; r < matrix.n; ++r) {
    for (int64_t c = 0; c < matrix.k; ++c)
      packed[r * width + c] = matrix.codes[r * matrix.k + c] ^ std::byte{0x80};
  }
  return packed;
}

}  // namespace

std::string_view name(WriteFormat format) {
  return kFormats[static_cast<int>(format)]->name;
}

Result<WriteFormat> parse_write_format(std::string_view text) {
  std::vector<std::string_view> known;
  for (const Producer* format : kFormats) {
    if (format->name == text) return static_cast<WriteFormat>(known.size());
    known.push_back(format->name);
  }
  return Error{ErrorKind::kInvalidArgument, "", "format", "one of " + join(known),
               str("it is '", text, "'")};
}

Status check_stores(WriteFormat format, const Scheme& scheme) {
  const auto refuse = [&](const Scheme& only) {
    return Error{ErrorKind::kUnsupported, "", str("format ", name(format)),
                 str(name(only), " for every module, because it cannot describe other schemes"),
                 "the request is for " + name(scheme)};
  };
  const Scheme block{kFp8Static128BlockSym, kFp8Dynamic128Sym};
  const Scheme mxfp8{kMxfp8Static, kMxfp8Dynamic};
  if (format == WriteFormat::kFp8 && scheme != block) return refuse(block);
  if (format == WriteFormat::kModelOpt && scheme != mxfp8) return refuse(mxfp8);
  return {};
}

Result<std::vector<SafetensorsEntry>> stored_entries(WriteFormat format, const Scheme& scheme,
                                                     const std::string& module, int64_t n,
                                                     int64_t k) {
  const QuantKey& key = scheme.weight;
  if (is_packed(scheme)) {
    return std::vector<SafetensorsEntry>{{module + ".weight_packed", DType::kI32, {n, (k + 3) / 4}},
                                         {module + ".weight_scale", DType::kF32, {n, 1}},
                                         {module + ".weight_shape", DType::kI64, {2}}};
  }
  std::vector<int64_t> shape = {1};
  if (key.group == kPerRow) {
    shape = {n, 1};
  } else if (key.group != GroupShape{}) {
    shape = {(n + key.group.rows - 1) / key.group.rows, (k + key.group.cols - 1) / key.group.cols};
  }
  if (is_exponents(scheme) && k % key.group.cols != 0) {
    return Error{ErrorKind::kUnsupported, "", "module '" + module + "'",
                 str("a multiple of ", key.group.cols,
                     " columns, which every reader of mxfp8 checkpoints needs"),
                 str("it has ", k)};
  }
  const std::string scale = format == WriteFormat::kFp8 ? ".weight_scale_inv" : ".weight_scale";
  return std::vector<SafetensorsEntry>{
      {module + ".weight", key.dtype, {n, k}},
      {module + scale, is_exponents(scheme) ? DType::kU8 : DType::kF32, std::move(shape)}};
}

std::vector<std::vector<std::byte>> stored_bytes(const Scheme& scheme, CanonicalMatrix&& matrix) {
  // For a per-tensor scale, canonical form repeats the same scale in every row.
  if (scheme.weight.group == GroupShape{}) matrix.scales.resize(1);
  std::vector<std::vector<std::byte>> bytes;
  if (is_packed(scheme)) {
    bytes.push_back(packed_codes(matrix));
    bytes.push_back(bytes_of(matrix.scales));
    bytes.push_back(bytes_of(std::vector<int64_t>{matrix.n, matrix.k}));
    return bytes;
  }
  bytes.push_back(std::move(matrix.storage));
  bytes.push_back(is_exponents(scheme) ? exponents_of(matrix.scales) : bytes_of(matrix.scales));
  return bytes;
}

}  // namespace moracle
