#include "checkpoint/safetensors/safetensors_header.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/text.h"
#include "checkpoint/tensors/tensor_file.h"

namespace moracle {
namespace {

using HeaderJson = nlohmann::json;

struct NamedDType {
  std::string_view name;
  DType type;
};
constexpr NamedDType kDTypes[] = {
    {"F64", DType::kF64},        {"F32", DType::kF32},        {"F16", DType::kF16},
    {"BF16", DType::kBF16},      {"I64", DType::kI64},        {"I32", DType::kI32},
    {"I16", DType::kI16},        {"I8", DType::kI8},          {"U8", DType::kU8},
    {"BOOL", DType::kBool},      {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2},
    {"F8_E8M0", DType::kF8E8M0},
};

// Handles the parser's events. The SAX interface is used because the DOM silently keeps the last of
// two equal keys. Only the nesting of the format is accepted, which also bounds the depth.
class HeaderReader final : public HeaderJson::json_sax_t {
 public:
  explicit HeaderReader(std::string file) : file_(std::move(file)) {}

  SafetensorsHeader header;
  Error error;

  bool null() override { return misplaced("null"); }
  bool boolean(bool value) override { return misplaced(value ? "true" : "false"); }
  // The parser calls this only for numbers with a minus sign. "-0" is not a valid size either.
  bool number_integer(int64_t value) override {
    return misplaced(value == 0 ? "-0" : std::to_string(value));
  }
  bool number_float(double, const std::string& text) override {
    return misplaced(quoted_ascii(text));
  }
  bool binary(HeaderJson::binary_t&) override { return misplaced("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (level_ == Level::kOffsets) {
      if (offsets_seen_ == 2) return bad("2 numbers in data_offsets", "it has more");
      (offsets_seen_++ == 0 ? extent_.begin : extent_.end) = value;
      return true;
    }
    if (level_ != Level::kShape) return misplaced(std::to_string(value));
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return bad("dimensions below 2^63 in shape", str("found ", value));
    }
    std::vector<int64_t>& shape = extent_.view->shape;
    if (shape.size() == kMaxSafetensorsRank) {
      return bad(str("at most ", kMaxSafetensorsRank, " dimensions in shape"), "it has more");
    }
    shape.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& text) override {
    if (level_ == Level::kMetadata) return true;
    if (level_ != Level::kTensor || field_ != kDType) return misplaced("a string");
    std::vector<std::string_view> names;
    for (const NamedDType& known : kDTypes) {
      if (known.name == text) return extent_.view->dtype = known.type, true;
    }
    for (const NamedDType& known : kDTypes) names.push_back(known.name);
    bad("one of the dtypes " + join(names), "found dtype " + quoted_ascii(text));
    error.kind = ErrorKind::kUnsupported;
    return false;
  }

  bool start_object(size_t) override {
    if (level_ == Level::kOutside) return level_ = Level::kTop, true;
    if (level_ != Level::kTop) return misplaced("an object");
    level_ = in_metadata() ? Level::kMetadata : Level::kTensor;
    fields_seen_ = 0;
    offsets_seen_ = 0;
    return true;
  }

  bool key(std::string& text) override {
    if (level_ == Level::kMetadata) {
      return metadata_keys_.insert(text).second ||
             bad("each key once", quoted_ascii(text) + " occurs twice");
    }
    if (level_ == Level::kTensor) return tensor_key(text);
    key_ = text;
    bool is_new = true;
    if (in_metadata()) {
      is_new = !std::exchange(metadata_seen_, true);
    } else {
      const auto [entry, inserted] = header.tensors.try_emplace(std::move(text));
      extent_ = {0, 0, &entry->first, &entry->second};
      is_new = inserted;
    }
    return is_new || bad("each name once", "it occurs twice");
  }

  bool end_object() override {
    const Level ended =
        std::exchange(level_, level_ == Level::kTop ? Level::kOutside : Level::kTop);
    if (ended != Level::kTensor) return true;
    header.extents.push_back(extent_);
    const char* missing = !(fields_seen_ & kDType)   ? "dtype is missing"
                          : !(fields_seen_ & kShape) ? "shape is missing"
                                                     : "data_offsets is missing";
    return fields_seen_ == (kDType | kShape | kOffsets) ||
           bad("dtype, shape and data_offsets", missing);
  }

  bool start_array(size_t) override {
    if (level_ != Level::kTensor || field_ == kDType) return misplaced("an array");
    level_ = field_ == kShape ? Level::kShape : Level::kOffsets;
    return true;
  }

  bool end_array() override {
    if (std::exchange(level_, Level::kTensor) == Level::kShape || offsets_seen_ == 2) return true;
    return bad("2 numbers in data_offsets", str("it has ", offsets_seen_));
  }

  bool parse_error(size_t position, const std::string&,
                   const HeaderJson::exception& exception) override {
    std::string_view what = exception.what();
    what.remove_prefix(what.find("] ") + 2);  // "[json.exception.parse_error.101] "
    error = {ErrorKind::kBadFile, file_,
             str("header, byte ", 8 + position - (position > 0 ? 1 : 0)), "valid JSON",
             "the parser says " + quoted_ascii(what)};
    return false;
  }

 private:
  enum class Level { kOutside, kTop, kMetadata, kTensor, kShape, kOffsets };
  enum Field : unsigned { kDType = 1, kShape = 2, kOffsets = 4 };

  bool in_metadata() const { return key_ == "__metadata__"; }

  bool bad(std::string need, std::string fact) {
    error = {ErrorKind::kBadFile, file_,
             in_metadata() ? "header, __metadata__" : tensor_place(key_), std::move(need),
             std::move(fact)};
    return false;
  }

  // Reports a value whose type is not allowed at this position.
  bool misplaced(const std::string& what) {
    const char* need = in_metadata() ? "an object" : "an object with dtype, shape and data_offsets";
    if (level_ == Level::kMetadata) need = "strings only";
    if (level_ == Level::kShape) need = "non-negative integers in shape";
    if (level_ == Level::kOffsets) need = "non-negative integers in data_offsets";
    if (level_ == Level::kTensor) {
      need = field_ == kDType   ? "a string as dtype"
             : field_ == kShape ? "an array as shape"
                                : "an array as data_offsets";
    }
    return bad(need, "found " + what);
  }

  bool tensor_key(const std::string& text) {
    if (text != "dtype" && text != "shape" && text != "data_offsets") {
      return bad("dtype, shape and data_offsets only", "found " + quoted_ascii(text));
    }
    field_ = text == "dtype" ? kDType : text == "shape" ? kShape : kOffsets;
    if (fields_seen_ & field_) return bad("each key once", quoted_ascii(text) + " occurs twice");
    fields_seen_ |= field_;
    return true;
  }

  std::string file_;
  Level level_ = Level::kOutside;
  std::string key_;  // the latest key of the header's top-level object
  SafetensorsExtent extent_;
  Field field_ = kDType;
  unsigned fields_seen_ = 0;
  int offsets_seen_ = 0;
  bool metadata_seen_ = false;
  std::set<std::string> metadata_keys_;
};

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, const std::string& file) {
  // The parser alone would skip a byte order mark and treat a NUL as the end of the text.
  if (json.empty() || json.front() != '{') {
    return Error{ErrorKind::kBadFile, file, "header, byte 8", "'{', which starts a JSON object",
                 json.empty() ? "the header is empty" : "found " + quoted_ascii(json.substr(0, 1))};
  }
  if (const size_t nul = json.find('\0'); nul != json.npos) {
    return Error{ErrorKind::kBadFile, file, str("header, byte ", 8 + nul), "valid JSON",
                 "found a NUL byte"};
  }
  HeaderReader reader(file);
  if (!HeaderJson::sax_parse(json.begin(), json.end(), &reader)) return std::move(reader.error);
  return std::move(reader.header);
}

}  // namespace moracle
