#include "text/jinja/values/heap.h"

#include <algorithm>

#include "base/try.h"
#include "text/jinja/values/compare.h"

namespace moracle::jinja {

namespace {
// Approximate overhead per element, in bytes.
constexpr size_t kValueBytes = 96;

Error too_long() {
  return limit_error(str("a text of more than ", kMaxTextBytes >> 20, " MiB"));
}
Error too_deep() {
  return limit_error(str("lists nested more than ", kMaxValueDepth, " deep"));
}
}  // namespace

Result<Value> Heap::text(std::string text, bool markup) {
  if (text.size() > kMaxTextBytes) return too_long();
  MORACLE_CHECK(budget_.create(kValueBytes + text.size()));
  return Value(Text{std::make_shared<const std::string>(std::move(text)), markup});
}

Result<Value> Heap::sequence(SequenceKind kind, Values items) {
  MORACLE_CHECK(budget_.create(kValueBytes + items.size() * sizeof(Value)));
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, depth(item));
  if (deepest >= kMaxValueDepth) return too_deep();
  return Value(std::make_shared<Sequence>(Sequence{kind, std::move(items), deepest + 1}));
}

Result<Value> Heap::mapping(std::vector<std::pair<Value, Value>> entries) {
  MORACLE_CHECK(budget_.create(kValueBytes + entries.size() * 2 * sizeof(Value)));
  Mapping made;
  int deepest = 0;
  for (auto& [key, value] : entries) {
    deepest = std::max({deepest, depth(key), depth(value)});
    MORACLE_TRY(const Value* present, find(budget_, made, key));
    if (present) {
      *const_cast<Value*>(present) = std::move(value);  // safe: `made` is not shared yet
    } else {
      made.entries.emplace_back(std::move(key), std::move(value));
    }
  }
  if (deepest >= kMaxValueDepth) return too_deep();
  made.depth = deepest + 1;
  return Value(std::make_shared<const Mapping>(std::move(made)));
}

Result<Value> Heap::method(Value self, std::string_view name) {
  MORACLE_CHECK(budget_.create(kValueBytes));
  if (depth(self) >= kMaxValueDepth) return too_deep();
  return Value(std::make_shared<const Method>(Method{std::move(self), std::string(name)}));
}

Result<Value> Heap::make_namespace() {
  MORACLE_CHECK(budget_.create(2 * kValueBytes));
  return Value(namespaces_.emplace_back(std::make_unique<Namespace>()).get());
}

Result<std::string> Writer::take() && {
  if (full_) return too_long();
  return std::move(text_);
}

}  // namespace moracle::jinja
