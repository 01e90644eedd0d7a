#include "checkpoint/gguf/gguf_metadata.h"

#include <charconv>
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/gguf/gguf_file.h"

namespace moracle {
namespace metadata_reader {
namespace {

using nlohmann::json;

// The types of values, as numbered in the file.
enum Type : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64,
  kNumTypes
};

// Bytes of a value; for a string, the minimum.
constexpr uint64_t kLeastBytes[kNumTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

// The double with the same shortest decimal text: 0.1f becomes 0.1, as in config.json.
double as_written(float value) {
  if (!std::isfinite(value)) return value;
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double number = value;
  std::from_chars(text, end, number);
  return number;
}

template <class T>
Result<json> number(GgufReader& reader) {
  MORACLE_TRY(const T value, reader.number<T>("a value"));
  if constexpr (std::is_same_v<T, float>) return json(as_written(value));
  return json(value);
}

Result<json> read_value(GgufReader& reader, uint32_t type) {
  switch (type) {
    case kU8:
      return number<uint8_t>(reader);
    case kI8:
      return number<int8_t>(reader);
    case kU16:
      return number<uint16_t>(reader);
    case kI16:
      return number<int16_t>(reader);
    case kU32:
      return number<uint32_t>(reader);
    case kI32:
      return number<int32_t>(reader);
    case kU64:
      return number<uint64_t>(reader);
    case kI64:
      return number<int64_t>(reader);
    case kF32:
      return number<float>(reader);
    case kF64:
      return number<double>(reader);
    case kBool: {
      MORACLE_TRY(const uint8_t value, reader.number<uint8_t>("a value"));
      if (value > 1) return reader.wrong("a boolean, 0 or 1", str("it is ", int{value}));
      return json(value == 1);
    }
    case kText: {
      MORACLE_TRY(std::string text, reader.text("a string", GgufFile::kMaxHeaderBytes));
      return json(std::move(text));
    }
    default:
      return reader.wrong(str("a type of values from 0 to ", kNumTypes - 1), str("it is ", type));
  }
}

// `values_left`: how many values the arrays of the file may still have.
Result<json> read_array(GgufReader& reader, uint64_t& values_left) {
  MORACLE_TRY(const uint32_t type, reader.number<uint32_t>("the type of an array"));
  MORACLE_TRY(const uint64_t count, reader.number<uint64_t>("the length of an array"));
  if (type == kArray)
    return reader.unsupported("an array of numbers, booleans or strings", "it has arrays inside");
  if (type >= kNumTypes)
    return reader.wrong(str("a type of values from 0 to ", kNumTypes - 1), str("it is ", type));
  if (count > reader.left() / kLeastBytes[type]) {
    return reader.wrong(
        str("at most ", reader.left() / kLeastBytes[type], " values in the rest of the file"),
        str("the length of the array is ", count));
  }
  if (count > values_left) {
    return reader.wrong(str("at most ", GgufFile::kMaxValues, " values in all arrays"),
                        str("the length of the array is ", count));
  }
  values_left -= count;
  json::array_t values;
  values.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    MORACLE_TRY(json value, read_value(reader, type));
    values.push_back(std::move(value));
  }
  return json(std::move(values));
}

}  // namespace
}  // namespace metadata_reader

Result<nlohmann::json> read_gguf_metadata(GgufReader& reader, uint64_t count) {
  using namespace metadata_reader;
  // Bytes of the shortest pair: a key with its length, a type and a value of one byte.
  constexpr uint64_t kLeastPair = 8 + 4 + 1;
  reader.set_place("header");
  if (count > reader.left() / kLeastPair) {
    return reader.wrong(str("at most ", reader.left() / kLeastPair, " metadata pairs"),
                        str("it has ", count, "; the file may be cut short"));
  }
  constexpr uint64_t kMaxKey = 65535;  // bound of the format
  uint64_t values_left = GgufFile::kMaxValues;
  json::object_t metadata;
  for (uint64_t i = 0; i < count; ++i) {
    reader.set_place(str("metadata pair ", i));
    MORACLE_TRY(std::string key, reader.text("a key", kMaxKey));
    reader.set_place("metadata " + quoted_ascii(key));
    if (key.empty()) return reader.wrong("a key of at least one byte", "it is empty");
    MORACLE_TRY(const uint32_t type, reader.number<uint32_t>("the type of a value"));
    MORACLE_TRY(json value,
                type == kArray ? read_array(reader, values_left) : read_value(reader, type));
    if (!metadata.emplace(std::move(key), std::move(value)).second)
      return reader.wrong("each key once", "it occurs twice");
  }
  return json(std::move(metadata));
}

}  // namespace moracle
