#include "checkpoint/gguf/write/gguf_writer.h"

#include <cstdint>
#include <cstring>
#include <limits>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/gguf/ggml_type.h"
#include "checkpoint/gguf/gguf_file.h"

namespace moracle {
namespace gguf_writer {
namespace {

using nlohmann::json;

constexpr uint32_t kVersion = 3;
constexpr uint64_t kAlignment = 32;  // the default, so the file needs no general.alignment

// The types of values, as numbered in the file.
enum class Type : uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kText = 8, kArray = 9 };

class Header {
 public:
  template <class Number>
  void number(Number value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    text_.append(bytes, sizeof value);
  }
  void string(std::string_view value) {
    number(uint64_t{value.size()});
    text_ += value;
  }
  Status pair(const std::string& key, const json& value) {
    string(key);
    if (!value.is_array()) {
      const Type type = type_of(value, Type::kU32);
      number(type);
      return put(key, value, type);
    }
    number(Type::kArray);
    const Type type = value.empty() ? Type::kText : type_of(value[0], Type::kI32);
    number(type);
    number(uint64_t{value.size()});
    for (const json& one : value) MORACLE_CHECK(put(key, one, type));
    return {};
  }
  const std::string& bytes() const { return text_; }

 private:
  static Type type_of(const json& value, Type of_integers) {
    if (value.is_boolean()) return Type::kBool;
    if (value.is_string()) return Type::kText;
    if (value.is_number_float()) return Type::kF32;
    const bool negative = value.is_number_integer() && value.get<int64_t>() < 0;
    return negative ? Type::kI32 : of_integers;
  }

  Status put(const std::string& key, const json& value, Type type) {
    const bool same = type == Type::kBool   ? value.is_boolean()
                      : type == Type::kText ? value.is_string()
                      : type == Type::kF32  ? value.is_number()
                                            : value.is_number_integer();
    if (!same) return refused(key, "values of one type, without null", value);
    switch (type) {
      case Type::kBool:
        number(static_cast<uint8_t>(value.get<bool>()));
        return {};
      case Type::kText:
        string(value.get_ref<const std::string&>());
        return {};
      case Type::kF32:
        number(value.get<float>());
        return {};
      default:
        break;
    }
    const auto whole = value.get<int64_t>();
    const bool is_signed = type == Type::kI32;
    const int64_t least = is_signed ? std::numeric_limits<int32_t>::min() : 0;
    const int64_t most = is_signed ? std::numeric_limits<int32_t>::max()
                                   : int64_t{std::numeric_limits<uint32_t>::max()};
    if (whole < least || whole > most) return refused(key, "an integer of 32 bits", value);
    number(static_cast<uint32_t>(whole));
    return {};
  }

  static Error refused(const std::string& key, std::string need, const json& value) {
    return {ErrorKind::kUnsupported, "", str("metadata '", key, "'"), std::move(need),
            str("it is ", value.dump(-1, ' ', false, json::error_handler_t::replace))};
  }

  std::string text_;
};

uint64_t aligned(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Status check(const GgufEntry& entry) {
  const TensorView view{nullptr, entry.dtype, entry.shape};
  const auto refused = [&](std::string need) {
    return Error{ErrorKind::kUnsupported, "", tensor_place(entry.name), std::move(need),
                 str("it is ", to_string(view))};
  };
  constexpr size_t kLongestName = 63;  // ggml's own bound
  if (entry.name.size() > kLongestName) return refused("a name of at most 63 bytes");
  if (entry.shape.empty() || entry.shape.size() > GgufFile::kMaxRank)
    return refused("1 to 4 dimensions");
  const int unit = block(entry.dtype).elements;
  if (entry.shape.back() % unit != 0)
    return refused(str("a multiple of ", unit, " columns for ", name(entry.dtype)));
  return {};
}

Result<RangedFile> create(const std::string& path, const nlohmann::json& metadata,
                          const std::vector<GgufEntry>& entries) {
  Header header;
  header.number(uint32_t{0x46554747});  // "GGUF"
  header.number(kVersion);
  header.number(uint64_t{entries.size()});
  header.number(uint64_t{metadata.size()});
  for (const auto& [key, value] : metadata.items()) MORACLE_CHECK(header.pair(key, value));
  std::map<std::string, RangedFile::Range> ranges;
  uint64_t end = 0;  // counted from the first byte of the data
  for (const GgufEntry& entry : entries) {
    MORACLE_CHECK(check(entry));
    MORACLE_TRY(const uint32_t type, ggml_number(entry.dtype));
    header.string(entry.name);
    header.number(static_cast<uint32_t>(entry.shape.size()));
    for (auto size = entry.shape.rbegin(); size != entry.shape.rend(); ++size)
      header.number(static_cast<uint64_t>(*size));
    header.number(type);
    header.number(end);
    const uint64_t bytes = TensorView{nullptr, entry.dtype, entry.shape}.num_bytes();
    const bool is_new = ranges
                            .try_emplace(entry.name, RangedFile::Range{static_cast<int64_t>(end),
                                                                       static_cast<int64_t>(bytes)})
                            .second;
    if (!is_new) {
      return Error{ErrorKind::kUnsupported, path, tensor_place(entry.name), "each name once",
                   "two tensors would have it"};
    }
    end = aligned(end + bytes);
  }
  const uint64_t start = aligned(header.bytes().size());
  for (auto& [name, range] : ranges) range.begin += static_cast<int64_t>(start);
  return RangedFile::create(path, header.bytes(), std::move(ranges),
                            static_cast<int64_t>(start + end));
}

}  // namespace
}  // namespace gguf_writer

Result<RangedFile> create_gguf(const std::string& path, const nlohmann::json& metadata,
                               const std::vector<GgufEntry>& entries) {
  auto created = gguf_writer::create(path, metadata, entries);
  if (created || !created.error().file.empty()) return created;
  Error error = created.error();
  error.file = path;
  return error;
}

}  // namespace moracle
