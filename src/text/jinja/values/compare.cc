#include "text/jinja/values/compare.h"

#include "base/try.h"

namespace moracle::jinja {

namespace {

Result<bool> equal_sequences(Budget& budget, const Sequence& left, const Sequence& right) {
  if (&left == &right) return true;
  if (left.kind != right.kind || !left.indexable()) return false;
  if (left.items.size() != right.items.size()) return false;
  for (size_t i = 0; i < left.items.size(); ++i) {
    MORACLE_TRY(const bool same, equal(budget, left.items[i], right.items[i]));
    if (!same) return false;
  }
  return true;
}

Result<bool> equal_mappings(Budget& budget, const Mapping& left, const Mapping& right) {
  if (left.entries.size() != right.entries.size()) return false;
  for (const auto& [key, value] : left.entries) {
    MORACLE_TRY(const Value* other, find(budget, right, key));
    if (!other) return false;
    MORACLE_TRY(const bool same, equal(budget, value, *other));
    if (!same) return false;
  }
  return true;
}

template <class T>
bool holds(Order order, const T& left, const T& right) {
  switch (order) {
    case Order::kLess:
      return left < right;
    case Order::kLessEqual:
      return left <= right;
    case Order::kGreater:
      return left > right;
    case Order::kGreaterEqual:
      return left >= right;
  }
  return false;
}

// Orders lists as Python does: by the first elements that differ, then by length.
Result<bool> ordered_items(Budget& budget, Order order, const Values& left, const Values& right) {
  for (size_t i = 0; i < left.size() && i < right.size(); ++i) {
    MORACLE_TRY(const bool same, equal(budget, left[i], right[i]));
    if (!same) return ordered(budget, order, left[i], right[i]);
  }
  return holds(order, left.size(), right.size());
}

Status hashable(Budget& budget, const Value& key) {
  MORACLE_CHECK(budget.spend(1));
  if (key.mapping()) return type_error("unhashable type: 'dict'");
  const Sequence* s = key.sequence();
  if (s && s->kind == SequenceKind::kList) return type_error("unhashable type: 'list'");
  if (s && s->kind == SequenceKind::kTuple) {
    for (const Value& item : s->items) MORACLE_CHECK(hashable(budget, item));
  }
  return {};
}

}  // namespace

Result<bool> equal(Budget& budget, const Value& left, const Value& right) {
  MORACLE_CHECK(budget.spend(1));
  if (left.is_text() || right.is_text()) {
    if (!left.is_text() || !right.is_text()) return false;
    if (left.text().size() != right.text().size()) return false;
    MORACLE_CHECK(budget.read(left.text().size()));
    return left.text() == right.text();
  }
  if (left.integer() && right.integer()) return *left.integer() == *right.integer();
  if (left.number() && right.number()) return *left.number() == *right.number();
  if (left.is_undefined() || left.is_none()) {
    return left.is_undefined() ? right.is_undefined() : right.is_none();
  }
  if (left.sequence() && right.sequence()) {
    return equal_sequences(budget, *left.sequence(), *right.sequence());
  }
  if (left.mapping() && right.mapping()) {
    return equal_mappings(budget, *left.mapping(), *right.mapping());
  }
  if (const auto* p = left.as<Namespace*>()) {
    const auto* q = right.as<Namespace*>();
    return q && *p == *q;
  }
  if (const auto* p = left.as<const Macro*>()) {
    const auto* q = right.as<const Macro*>();
    return q && *p == *q;
  }
  if (const auto* p = left.as<const Function*>()) {
    const auto* q = right.as<const Function*>();
    return q && *p == *q;
  }
  return false;
}

Result<bool> ordered(Budget& budget, Order order, const Value& left, const Value& right) {
  MORACLE_CHECK(budget.spend(1));
  if (left.is_undefined()) return undefined_error(left);
  if (right.is_undefined()) return undefined_error(right);
  if (left.is_text() && right.is_text()) {
    // The byte order of UTF-8 equals the code point order.
    MORACLE_CHECK(budget.read(left.text().size()));
    return holds(order, left.text(), right.text());
  }
  if (left.integer() && right.integer()) return holds(order, *left.integer(), *right.integer());
  if (left.number() && right.number()) return holds(order, *left.number(), *right.number());
  const Sequence* a = left.sequence();
  const Sequence* b = right.sequence();
  if (a && b && a->kind == b->kind && a->kind <= SequenceKind::kTuple) {
    return ordered_items(budget, order, a->items, b->items);
  }
  return type_error(
      str("a '", type_name(left), "' is compared with a '", type_name(right), "' by order"));
}

Result<bool> contains(Budget& budget, const Value& container, const Value& item) {
  if (container.is_text()) {
    if (item.is_undefined()) return undefined_error(item);
    if (!item.is_text()) return type_error(str("'in <str>' with a '", type_name(item), "' left"));
    MORACLE_TRY(const size_t at, find_text(budget, container.text(), item.text()));
    return at != std::string_view::npos;
  }
  if (const Mapping* mapping = container.mapping()) {
    MORACLE_TRY(const Value* value, find(budget, *mapping, item));
    return value != nullptr;
  }
  if (container.is_undefined()) return false;
  const Sequence* sequence = container.sequence();
  if (!sequence) return type_error(str("'in' with a '", type_name(container), "' right"));
  if (sequence->spent) return false;
  for (const Value& candidate : sequence->items) {
    MORACLE_TRY(const bool same, equal(budget, candidate, item));
    if (same) return true;
  }
  return false;
}

Result<const Value*> find(Budget& budget, const Mapping& mapping, const Value& key) {
  MORACLE_CHECK(hashable(budget, key));
  MORACLE_CHECK(budget.spend(static_cast<int64_t>(mapping.entries.size() / 8)));
  for (const auto& [candidate, value] : mapping.entries) {
    if (key.is_text() && candidate.is_text()) {
      if (key.text() == candidate.text()) return &value;
      continue;
    }
    MORACLE_TRY(const bool same, equal(budget, candidate, key));
    if (same) return &value;
  }
  return nullptr;
}

Result<size_t> find_text(Budget& budget, std::string_view text, std::string_view part,
                         size_t from) {
  // Charge for the worst case: every byte of `part` compared at every byte of `text`.
  const size_t rest = text.size() - from;
  MORACLE_CHECK(budget.spend(1 + static_cast<int64_t>(rest / 64 * (1 + part.size() / 64))));
  return text.find(part, from);
}

}  // namespace moracle::jinja
