// Writes GGUF files for tests, in the order of the calls. Every number of the header is recorded,
// so that a test can change each of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/safetensors_writer.h"

namespace moracle::testing {

class GgufWriter {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;
  /// By key. Integers are stored as u32, floats as f32; an array has the type of its first value.
  std::vector<std::pair<std::string, nlohmann::json>> metadata;
  std::vector<TensorBytes> tensors;

  /// A number of the header: `bytes` bytes at `offset`.
  struct Field {
    std::string what;
    size_t offset = 0;
    size_t bytes = 0;
  };
  struct Image {
    std::string bytes;
    std::vector<Field> fields;
    size_t data = 0;  ///< offset of the first tensor's data
  };

  void set(const std::string& key, nlohmann::json value) {
    for (auto& [name, old] : metadata) {
      if (name == key) return void(old = std::move(value));
    }
    metadata.emplace_back(key, std::move(value));
  }
  void remove_key(const std::string& key) {
    std::erase_if(metadata, [&](const auto& pair) { return pair.first == key; });
  }
  void remove(const std::string& tensor) {
    std::erase_if(tensors, [&](const TensorBytes& one) { return one.name == tensor; });
  }
  TensorBytes& at(const std::string& tensor) {
    return *std::find_if(tensors.begin(), tensors.end(),
                         [&](const TensorBytes& one) { return one.name == tensor; });
  }

  Image image() const {
    Image to;
    put(to, "magic", uint32_t{0x46554747});
    put(to, "version", version);
    put(to, "number of tensors", uint64_t{tensors.size()});
    put(to, "number of pairs", uint64_t{metadata.size()});
    for (const auto& [key, value] : metadata) {
      put_text(to, "key " + key, key);
      const uint32_t type = type_of(value);
      put(to, "type of " + key, type);
      if (!value.is_array()) {
        put_value(to, "value of " + key, value);
        continue;
      }
      put(to, "array type of " + key, value.empty() ? 4 : type_of(value[0]));
      put(to, "array length of " + key, uint64_t{value.size()});
      for (const nlohmann::json& one : value) put_value(to, "value in " + key, one);
    }
    uint64_t offset = 0;
    for (const TensorBytes& tensor : tensors) {
      put_text(to, "name " + tensor.name, tensor.name);
      put(to, "rank of " + tensor.name, static_cast<uint32_t>(tensor.shape.size()));
      for (size_t i = tensor.shape.size(); i-- > 0;)
        put(to, "dimension of " + tensor.name, static_cast<uint64_t>(tensor.shape[i]));
      put(to, "type of tensor " + tensor.name, number_of(tensor.dtype));
      put(to, "offset of " + tensor.name, offset);
      offset = padded(offset + tensor.bytes.size());
    }
    to.bytes.resize(padded(to.bytes.size()));
    to.data = to.bytes.size();
    for (const TensorBytes& tensor : tensors) {
      to.bytes.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
      to.bytes.resize(to.data + padded(to.bytes.size() - to.data));
    }
    return to;
  }
  void write(const std::string& path) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << image().bytes;
  }

  /// ggml's number of a type.
  static uint32_t number_of(DType type) {
    static const std::map<DType, uint32_t> kNumbers = {
        {DType::kF32, 0},         {DType::kF16, 1},        {DType::kQ4_0, 2},
        {DType::kQ4_1, 3},        {DType::kQ5_0, 6},       {DType::kQ5_1, 7},
        {DType::kQ8_0, 8},        {DType::kQ2K, 10},       {DType::kQ3K, 11},
        {DType::kQ4K, 12},        {DType::kQ5K, 13},       {DType::kQ6K, 14},
        {DType::kIQ2XXS, 16},     {DType::kIQ2XS, 17},     {DType::kIQ3XXS, 18},
        {DType::kIQ1S, 19},       {DType::kIQ4NL, 20},     {DType::kIQ3S, 21},
        {DType::kIQ2S, 22},       {DType::kIQ4XS, 23},     {DType::kI8, 24},
        {DType::kI16, 25},        {DType::kI32, 26},       {DType::kI64, 27},
        {DType::kF64, 28},        {DType::kIQ1M, 29},      {DType::kBF16, 30},
        {DType::kMxfp4Block, 39}, {DType::kNvfp4Block, 40}};
    return kNumbers.at(type);
  }

 private:
  enum : uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kText = 8, kArray = 9, kU64 = 10 };

  static uint32_t type_of(const nlohmann::json& value) {
    if (value.is_array()) return kArray;
    if (value.is_string()) return kText;
    if (value.is_boolean()) return kBool;
    if (value.is_number_float()) return kF32;
    if (value.is_number_integer() && value < 0) return kI32;
    return value > UINT32_MAX ? kU64 : kU32;
  }
  uint64_t padded(uint64_t bytes) const { return (bytes + alignment - 1) / alignment * alignment; }

  template <class T>
  static void put(Image& to, const std::string& what, T value) {
    to.fields.push_back({what, to.bytes.size(), sizeof value});
    to.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void put_text(Image& to, const std::string& what, const std::string& text) {
    put(to, "length of " + what, uint64_t{text.size()});
    to.bytes += text;
  }
  static void put_value(Image& to, const std::string& what, const nlohmann::json& value) {
    switch (type_of(value)) {
      case kText:
        return put_text(to, what, value.get<std::string>());
      case kBool:
        return put(to, what, static_cast<uint8_t>(value.get<bool>()));
      case kF32:
        return put(to, what, value.get<float>());
      case kU64:
        return put(to, what, value.get<uint64_t>());
      case kI32:
        return put(to, what, value.get<int32_t>());
      default:
        return put(to, what, value.get<uint32_t>());
    }
  }
};

}  // namespace moracle::testing
