#include "text/jinja/values/text_operations.h"

#include <algorithm>

#include "base/try.h"
#include "text/jinja/values/compare.h"

namespace moracle::jinja {

namespace {

Error needs_case_tables() {
  return unsupported("a case mapping of one character to several");
}

// Splits at runs of white space.
Result<Values> split_words(Heap& heap, Source source, int64_t limit, bool from_right) {
  std::string_view rest = source.text;
  Values parts;
  const auto take = [&](std::string_view part) -> Status {
    MORACLE_TRY(Value value, heap.text(std::string(part), source.markup));
    parts.push_back(std::move(value));
    return {};
  };
  while (true) {
    rest = strip(rest, from_right ? Side::kRight : Side::kLeft);
    if (rest.empty()) break;
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      MORACLE_CHECK(take(rest));
      break;
    }
    size_t begin = 0, end = rest.size(), last_space_end = 0;
    for (size_t at = 0; at < rest.size();) {
      const CodePoint c = code_point(rest, at);
      if (is_space(c.value)) {
        if (!from_right) {
          end = at;
          break;
        }
        last_space_end = at + c.bytes;
      }
      at += c.bytes;
    }
    if (from_right) begin = last_space_end;
    MORACLE_CHECK(heap.budget().read(rest.size() * (from_right ? 1 : 0) + end - begin));
    MORACLE_CHECK(take(rest.substr(begin, end - begin)));
    rest = from_right ? rest.substr(0, begin) : rest.substr(end);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

Result<Value> cased(Heap& heap, Source source, Case to) {
  auto text = change_case(source.text, to);
  if (!text) return needs_case_tables();
  return heap.text(std::move(*text), source.markup);
}

Result<Value> capitalized(Heap& heap, Source source) {
  const size_t first = bytes_of_code_points(source.text, 1);
  const auto head = change_case(source.text.substr(0, first), Case::kTitle);
  const auto tail = change_case(source.text.substr(first), Case::kLower);
  if (!head || !tail) return needs_case_tables();
  return heap.text(*head + *tail, source.markup);
}

Result<Value> titled(Heap& heap, Source source) {
  std::string out;
  bool inside = false;
  for (size_t at = 0; at < source.text.size();) {
    const CodePoint c = code_point(source.text, at);
    const auto changed =
        change_case(source.text.substr(at, c.bytes), inside ? Case::kLower : Case::kTitle);
    if (!changed) return needs_case_tables();
    out += *changed;
    inside = is_cased(c.value);
    at += c.bytes;
  }
  return heap.text(std::move(out), source.markup);
}

Result<Value> replaced(Heap& heap, std::string_view text, std::string_view from,
                       std::string_view to, int64_t count) {
  Writer out;
  size_t at = 0;
  MORACLE_TRY(size_t hit, find_text(heap.budget(), text, from));
  while (count != 0 && hit != text.npos && !out.full()) {
    if (count > 0) --count;
    out.add(text.substr(at, hit - at));
    out.add(to);
    at = hit + from.size();
    if (!from.empty()) {
      MORACLE_CHECK(heap.budget().spend(1));
      hit = text.find(from, at);
    } else if (at == text.size()) {
      break;
    } else {
      // An empty pattern matches before every character and at the end.
      const size_t bytes = code_point(text, at).bytes;
      out.add(text.substr(at, bytes));
      hit = at += bytes;
    }
  }
  out.add(text.substr(at));
  MORACLE_TRY(std::string result, std::move(out).take());
  return heap.text(std::move(result));
}

Result<Values> split_lines(Heap& heap, Source source, bool keep_ends) {
  Values lines;
  const std::string_view text = source.text;
  for (size_t start = 0; start < text.size();) {
    size_t end = start;
    CodePoint c;
    while (end < text.size()) {
      c = code_point(text, end);
      if (is_line_break(c.value)) break;
      end += c.bytes;
    }
    size_t next = std::min(end + (end < text.size() ? c.bytes : 0), text.size());
    if (end < text.size() && text[end] == '\r' && next < text.size() && text[next] == '\n') ++next;
    const std::string_view line = text.substr(start, (keep_ends ? next : end) - start);
    MORACLE_TRY(Value value, heap.text(std::string(line), source.markup));
    lines.push_back(std::move(value));
    start = next;
  }
  return lines;
}

Result<Values> split_text(Heap& heap, Source source, std::optional<std::string_view> separator,
                          int64_t limit, bool from_right) {
  if (!separator) return split_words(heap, source, limit, from_right);
  if (separator->empty()) return type_error("an empty separator");
  std::string_view rest = source.text;
  MORACLE_CHECK(find_text(heap.budget(), rest, *separator));
  Values parts;
  bool more = true;
  while (more) {
    size_t hit = rest.npos;
    if (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
      hit = from_right ? rest.rfind(*separator) : rest.find(*separator);
    }
    more = hit != rest.npos;
    std::string_view part = rest;
    if (more && from_right) {
      part = rest.substr(hit + separator->size());
      rest = rest.substr(0, hit);
    } else if (more) {
      part = rest.substr(0, hit);
      rest = rest.substr(hit + separator->size());
    }
    MORACLE_TRY(Value value, heap.text(std::string(part), source.markup));
    parts.push_back(std::move(value));
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace moracle::jinja
