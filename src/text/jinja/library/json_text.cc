#include "text/jinja/library/json_text.h"

#include <cmath>

#include "base/try.h"
#include "text/jinja/library/sorting.h"
#include "text/jinja/values/python_text.h"
#include "text/jinja/values/unicode.h"

namespace moracle::jinja {

namespace {

class JsonWriter {
 public:
  JsonWriter(Heap& heap, const JsonStyle& style) : heap_(heap), style_(style) {}

  Status write(const Value& value, int level) {
    MORACLE_CHECK(heap_.budget().spend(1));
    if (value.is_text()) {
      write_string(value.text());
    } else if (value.mapping()) {
      return write_object(*value.mapping(), level);
    } else if (value.sequence() && value.sequence()->kind <= SequenceKind::kTuple) {
      return write_array(value.sequence()->items, level);
    } else if (const auto scalar = scalar_text(value)) {
      out_.add(*scalar);
    } else {
      return type_error(str("'tojson' of a '", type_name(value), "'"));
    }
    return {};
  }

  Result<std::string> take() { return std::move(out_).take(); }

 private:
  static std::optional<std::string> scalar_text(const Value& value) {
    if (value.is_none()) return "null";
    if (const auto* b = value.as<bool>()) return *b ? "true" : "false";
    if (const auto* i = value.as<int64_t>()) return std::to_string(*i);
    if (const auto* d = value.as<double>()) {
      if (std::isnan(*d)) return "NaN";
      if (std::isinf(*d)) return *d < 0 ? "-Infinity" : "Infinity";
      return float_repr(*d);
    }
    return std::nullopt;
  }

  void break_line(int level) {
    if (!style_.indent) return;
    out_.add("\n");
    for (int i = 0; i < level && !out_.full(); ++i) out_.add(*style_.indent);
  }

  Status write_array(const Values& items, int level) {
    if (items.empty()) return out_.add("[]"), Status();
    out_.add("[");
    for (size_t i = 0; i < items.size() && !out_.full(); ++i) {
      if (i > 0) out_.add(style_.item_separator);
      break_line(level + 1);
      MORACLE_CHECK(write(items[i], level + 1));
    }
    break_line(level);
    out_.add("]");
    return {};
  }

  Status write_object(const Mapping& mapping, int level) {
    if (mapping.entries.empty()) return out_.add("{}"), Status();
    std::vector<size_t> indices(mapping.entries.size());
    for (size_t i = 0; i < indices.size(); ++i) indices[i] = i;
    if (style_.sort_keys) {
      Values keys;
      for (const auto& entry : mapping.entries) keys.push_back(entry.first);
      MORACLE_TRY(indices, sorted_indices(heap_.budget(), keys, false));
    }
    out_.add("{");
    for (size_t i = 0; i < indices.size() && !out_.full(); ++i) {
      if (i > 0) out_.add(style_.item_separator);
      break_line(level + 1);
      const auto& [key, value] = mapping.entries[indices[i]];
      const auto scalar = scalar_text(key);
      if (!key.is_text() && !scalar)
        return type_error("'tojson' of a dict with keys of an unsupported type");
      write_string(scalar ? std::string_view(*scalar) : key.text());
      out_.add(style_.key_separator);
      MORACLE_CHECK(write(value, level + 1));
    }
    break_line(level);
    out_.add("}");
    return {};
  }

  void write_string(std::string_view text) {
    out_.add("\"");
    for (size_t at = 0; at < text.size() && !out_.full();) {
      const CodePoint c = code_point(text, at);
      write_character(c.value, text.substr(at, c.bytes));
      at += c.bytes;
    }
    out_.add("\"");
  }

  void write_character(uint32_t c, std::string_view bytes) {
    switch (c) {
      case '"':
        return out_.add("\\\"");
      case '\\':
        return out_.add("\\\\");
      case '\n':
        return out_.add("\\n");
      case '\r':
        return out_.add("\\r");
      case '\t':
        return out_.add("\\t");
      case '\b':
        return out_.add("\\b");
      case '\f':
        return out_.add("\\f");
      default:
        break;
    }
    if (c >= 0x20 && (c < 0x7F || !style_.ensure_ascii)) return out_.add(bytes);
    if (c >= 0x10000) {
      write_unit(0xD800 + ((c - 0x10000) >> 10));
      write_unit(0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      write_unit(c);
    }
  }

  void write_unit(uint32_t unit) {
    constexpr char kHex[] = "0123456789abcdef";
    const char escape[] = {
        '\\',           'u', kHex[unit >> 12 & 15], kHex[unit >> 8 & 15], kHex[unit >> 4 & 15],
        kHex[unit & 15]};
    out_.add({escape, sizeof escape});
  }

  Heap& heap_;
  const JsonStyle& style_;
  Writer out_;
};

}  // namespace

Result<std::string> to_json(Heap& heap, const Value& value, const JsonStyle& style) {
  JsonWriter writer(heap, style);
  MORACLE_CHECK(writer.write(value, 0));
  return writer.take();
}

}  // namespace moracle::jinja
