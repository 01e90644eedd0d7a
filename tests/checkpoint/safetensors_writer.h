// Writes valid safetensors files for tests: small files from memory, large files in chunks. Tensors
// are stored in call order. The header is padded so that data starts at a multiple of 8. Names and
// metadata must be UTF-8 (the JSON library throws otherwise).
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/text.h"
#include "base/try.h"
#include "moracle/base.h"

namespace moracle::testing {

struct TensorBytes {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

/// A tensor whose bytes are generated while it is written. `fill` is called in order with chunks of
/// at most kChunkBytes; `first_byte` counts from the tensor's start and is a multiple of 8.
struct TensorStream {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::function<void(std::span<std::byte> chunk, size_t first_byte)> fill;
};

inline constexpr size_t kChunkBytes = size_t{1} << 22;

using Metadata = std::map<std::string, std::string>;

/// The bytes of trivially copyable values, for TensorBytes::bytes.
template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// Header length and header for tensors that follow each other. The header's own sizes are not
/// checked: kUnsupported for a dtype that safetensors cannot name is the only error.
template <class Tensor>
Result<std::string> safetensors_prefix(const std::vector<Tensor>& tensors,
                                       const Metadata& metadata = {}) {
  std::string header = "{";
  if (!metadata.empty()) header += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  uint64_t begin = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.dtype == DType::kI4) {
      return Error{ErrorKind::kUnsupported, "", "tensor '" + tensor.name + "'",
                   "a dtype of safetensors", "it is i4"};
    }
    std::string dtype(name(tensor.dtype));
    for (char& c : dtype) c = 'a' <= c && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    const uint64_t end = begin + TensorView{nullptr, tensor.dtype, tensor.shape}.num_bytes();
    header += str(header.size() > 1 ? "," : "", nlohmann::json(tensor.name).dump(),
                  ":{\"dtype\":\"", dtype, "\",\"shape\":[", join(tensor.shape, ","),
                  "],\"data_offsets\":[", begin, ",", end, "]}");
    begin = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string prefix(8, '\0');
  for (size_t i = 0; i < 8; ++i) prefix[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  return prefix + header;
}

/// A whole file in memory. kInvalidArgument where bytes do not match a shape.
inline Result<std::vector<std::byte>> safetensors_image(const std::vector<TensorBytes>& tensors,
                                                        const Metadata& metadata = {}) {
  MORACLE_TRY(const std::string prefix, safetensors_prefix(tensors, metadata));
  const auto start = std::as_bytes(std::span(prefix));
  std::vector<std::byte> image(start.begin(), start.end());
  for (const TensorBytes& tensor : tensors) {
    const TensorView view{tensor.bytes.data(), tensor.dtype, tensor.shape};
    if (tensor.bytes.size() != view.num_bytes()) {
      return Error{ErrorKind::kInvalidArgument, "", "tensor '" + tensor.name + "'",
                   str(view.num_bytes(), " bytes for ", to_string(view)),
                   str("there are ", tensor.bytes.size())};
    }
    image.insert(image.end(), tensor.bytes.begin(), tensor.bytes.end());
  }
  return image;
}

/// Writes one tensor after another, never holding more than one chunk.
inline Status write_safetensors(const std::string& path, const std::vector<TensorStream>& tensors,
                                const Metadata& metadata = {}) {
  MORACLE_TRY(const std::string prefix, safetensors_prefix(tensors, metadata));
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(prefix.data(), static_cast<std::streamsize>(prefix.size()));
  std::vector<std::byte> chunk;
  for (const TensorStream& tensor : tensors) {
    const size_t size = TensorView{nullptr, tensor.dtype, tensor.shape}.num_bytes();
    for (size_t first = 0; first < size && out; first += chunk.size()) {
      chunk.assign(std::min(kChunkBytes, size - first), std::byte{0});
      tensor.fill(chunk, first);
      out.write(reinterpret_cast<const char*>(chunk.data()),
                static_cast<std::streamsize>(chunk.size()));
    }
  }
  out.close();
  if (!out)
    return Error{ErrorKind::kIo, path, "", "a file that can be written", std::strerror(errno)};
  return {};
}

/// The same from memory.
inline Status write_safetensors(const std::string& path, const std::vector<TensorBytes>& tensors,
                                const Metadata& metadata = {}) {
  MORACLE_TRY(const auto image, safetensors_image(tensors, metadata));
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(image.data()),
            static_cast<std::streamsize>(image.size()));
  out.close();
  if (!out)
    return Error{ErrorKind::kIo, path, "", "a file that can be written", std::strerror(errno)};
  return {};
}

}  // namespace moracle::testing
