#include "text/jinja/values/python_text.h"

#include <charconv>
#include <cmath>

#include "base/try.h"
#include "text/jinja/values/unicode.h"

namespace moracle::jinja {

namespace {

void write_escape(Writer& out, char letter, uint32_t value, int digits) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string escape = {'\\', letter};
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) escape += kHex[value >> shift & 15];
  out.add(escape);
}

void write_quoted(Writer& out, std::string_view text) {
  const bool single = text.find('\'') == text.npos || text.find('"') != text.npos;
  const char quote = single ? '\'' : '"';
  out.add({&quote, 1});
  for (size_t at = 0; at < text.size() && !out.full();) {
    const CodePoint c = code_point(text, at);
    const std::string_view bytes = text.substr(at, c.bytes);
    at += c.bytes;
    if (bytes[0] == quote || bytes[0] == '\\') {
      out.add("\\");
      out.add(bytes);
    } else if (c.value == '\n') {
      out.add("\\n");
    } else if (c.value == '\r') {
      out.add("\\r");
    } else if (c.value == '\t') {
      out.add("\\t");
    } else if (is_printable(c.value)) {
      out.add(bytes);
    } else if (c.value < 0x100) {
      write_escape(out, 'x', c.value, 2);
    } else if (c.value < 0x10000) {
      write_escape(out, 'u', c.value, 4);
    } else {
      write_escape(out, 'U', c.value, 8);
    }
  }
  out.add({&quote, 1});
}

Status write_sequence(Writer& out, const Sequence& sequence) {
  const bool tuple = sequence.kind == SequenceKind::kTuple;
  out.add(tuple ? "(" : "[");
  for (size_t i = 0; i < sequence.items.size() && !out.full(); ++i) {
    if (i > 0) out.add(", ");
    MORACLE_CHECK(write_repr(out, sequence.items[i]));
  }
  if (tuple && sequence.items.size() == 1) out.add(",");
  out.add(tuple ? ")" : "]");
  return {};
}

Status write_mapping(Writer& out, const Mapping& mapping) {
  out.add("{");
  bool first = true;
  for (const auto& [key, value] : mapping.entries) {
    if (out.full()) break;
    if (!first) out.add(", ");
    first = false;
    MORACLE_CHECK(write_repr(out, key));
    out.add(": ");
    MORACLE_CHECK(write_repr(out, value));
  }
  out.add("}");
  return {};
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const double size = std::fabs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof digits, value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(digits, end.ptr);
  if (fixed && text.find('.') == text.npos) text += ".0";
  return text;
}

Result<std::string> to_text(const Value& value) {
  if (value.is_text()) return std::string(value.text());
  if (value.is_undefined()) return std::string();
  Writer out;
  MORACLE_CHECK(write_repr(out, value));
  return std::move(out).take();
}

Status write_repr(Writer& out, const Value& value) {
  if (value.is_text()) {
    if (value.is_markup()) out.add("Markup(");
    write_quoted(out, value.text());
    if (value.is_markup()) out.add(")");
  } else if (value.is_undefined()) {
    out.add("Undefined");
  } else if (value.is_none()) {
    out.add("None");
  } else if (const auto* b = value.as<bool>()) {
    out.add(*b ? "True" : "False");
  } else if (const auto* i = value.as<int64_t>()) {
    out.add(std::to_string(*i));
  } else if (const auto* d = value.as<double>()) {
    out.add(float_repr(*d));
  } else if (value.mapping()) {
    return write_mapping(out, *value.mapping());
  } else if (value.sequence() && value.sequence()->kind <= SequenceKind::kTuple) {
    return write_sequence(out, *value.sequence());
  } else {
    return unsupported(str("printing a ", type_name(value)));
  }
  return {};
}

}  // namespace moracle::jinja
