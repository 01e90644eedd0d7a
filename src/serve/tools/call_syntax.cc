#include "serve/tools/call_syntax.h"

#include <algorithm>

namespace moracle::serve {
namespace {

struct Span {
  size_t begin = 0, end = 0;
};

// The arguments of the call whose name ends at `from`, before `limit`.
std::optional<Span> arguments_after(const ToolFormat& format, std::string_view turn, size_t from,
                                    size_t limit) {
  const std::string_view text = turn.substr(0, limit);
  const size_t begin = text.find(format.arguments_open, from);
  if (begin == text.npos) return {};
  if (format.arguments_open == "{") {
    // Probe arguments hold no brackets.
    const size_t end = text.find('}', begin);
    if (end == text.npos) return {};
    return Span{begin, end + 1};
  }
  const size_t end = text.rfind(format.arguments_close);
  if (end == text.npos || end < begin) return {};
  return Span{begin, end + format.arguments_close.size()};
}

}  // namespace

std::optional<CallSyntax> find_call_syntax(const ToolFormat& format, std::string_view turn,
                                           std::string_view name) {
  if (format.style.empty()) return {};
  const size_t first = turn.find(name, turn.rfind(format.open, turn.find(name)));
  if (first == turn.npos) return {};
  const size_t after_first = first + name.size();
  const size_t second = std::min(turn.find(name, after_first), turn.size());
  const auto one = arguments_after(format, turn, after_first, second);
  if (!one) return {};
  // Text before the calls belongs to the turn's header.
  const size_t open = format.open.empty() ? turn.rfind('{', first) : turn.find(format.open);
  if (open == turn.npos || open > first) return {};
  CallSyntax syntax{.head = std::string(turn.substr(open, first - open)),
                    .middle = std::string(turn.substr(after_first, one->begin - after_first))};
  auto last = one;
  if (second < turn.size()) {
    syntax.between = turn.substr(one->end, second - one->end);
    syntax.repeats = true;
    last = arguments_after(format, turn, second + name.size(), turn.size());
    if (!last) return {};
  }
  std::string_view tail = turn.substr(last->end);
  // The answer ends with the closing tag. Without one the rest of the turn may be its end.
  if (!format.close.empty()) {
    const size_t close = tail.find(format.close);
    if (close == tail.npos) return {};
    tail = tail.substr(0, close + (format.close_ends_answer ? 0 : format.close.size()));
  }
  while (!tail.empty() && (tail.back() == '\n' || tail.back() == ' ')) tail.remove_suffix(1);
  syntax.tail = tail;
  return syntax;
}

}  // namespace moracle::serve
