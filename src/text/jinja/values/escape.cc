#include "text/jinja/values/escape.h"

#include <string>

#include "base/try.h"

namespace moracle::jinja {

namespace {

void append_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
}

}  // namespace

Result<Value> add_texts(Heap& heap, Source left, Source right) {
  const bool markup = left.markup || right.markup;
  const size_t size = left.text.size() + right.text.size();
  if (size > kMaxTextBytes) return limit_error("a str that is too long");
  MORACLE_CHECK(heap.budget().read(size));
  std::string text;
  text.reserve(size);
  for (const Source& part : {left, right}) {
    if (markup && !part.markup) {
      append_escaped(text, part.text);
    } else {
      text += part.text;
    }
  }
  if (text.size() > kMaxTextBytes) return limit_error("a str that is too long");  // once escaped
  return heap.text(std::move(text), markup);
}

}  // namespace moracle::jinja
