#include "text/jinja/loop.h"

#include "base/try.h"
#include "text/jinja/values/compare.h"

namespace moracle::jinja {

Status Loop::peek() {
  if (peeking_) return type_error("'loop' used in the condition of that loop");
  while (after_ == kNone && next_ < items_.size()) {
    const size_t candidate = next_++;
    bool keeps = true;
    if (condition_) {
      peeking_ = true;
      auto decided = condition_(items_[candidate]);
      peeking_ = false;
      MORACLE_TRY(keeps, std::move(decided));
    }
    if (keeps) after_ = candidate;
  }
  return {};
}

Result<const Value*> Loop::advance() {
  MORACLE_CHECK(peek());
  if (after_ == kNone) return nullptr;
  before_ = current_;
  current_ = std::exchange(after_, kNone);
  ++index0_;
  return &items_[current_];
}

void Loop::finish() {
  items_.clear();
  condition_ = nullptr;
  next_ = 0;
  before_ = current_ = after_ = kNone;
}

Result<int64_t> Loop::length() {
  if (condition_) {
    // The length needs the condition of every remaining element.
    MORACLE_CHECK(peek());
    Values rest;
    if (before_ != kNone) rest.push_back(items_[before_]);
    const size_t current = rest.size();
    if (current_ != kNone) rest.push_back(items_[current_]);
    const size_t first = rest.size();
    while (after_ != kNone) {
      rest.push_back(items_[after_]);
      after_ = kNone;
      MORACLE_CHECK(peek());
    }
    items_ = std::move(rest);
    before_ = before_ == kNone ? kNone : 0;
    current_ = current;
    next_ = first;
    condition_ = nullptr;
  }
  const auto left = static_cast<int64_t>(items_.size() - next_) + (after_ == kNone ? 0 : 1);
  return index0_ + 1 + left;
}

Result<std::optional<Value>> Loop::attribute(Heap& heap, std::string_view name) {
  using Found = std::optional<Value>;
  if (name == "index") return Found(index0_ + 1);
  if (name == "index0") return Found(index0_);
  if (name == "first") return Found(index0_ == 0);
  // The depth is 1: this renderer lacks recursive loops.
  if (name == "depth") return Found(int64_t{1});
  if (name == "depth0") return Found(int64_t{0});
  if (name == "previtem") {
    return Found(before_ == kNone ? undefined("there is no previous item") : items_[before_]);
  }
  if (name == "last" || name == "nextitem") {
    MORACLE_CHECK(peek());
    if (name == "last") return Found(after_ == kNone);
    return Found(after_ == kNone ? undefined("there is no next item") : items_[after_]);
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    MORACLE_TRY(const int64_t count, length());
    if (name == "length") return Found(count);
    return Found(count - index0_ - (name == "revindex0" ? 1 : 0));
  }
  if (name == "cycle" || name == "changed") {
    MORACLE_TRY(Value method, heap.method(this, name));
    return Found(std::move(method));
  }
  return Found();
}

Result<Value> Loop::call(Heap& heap, std::string_view name, const Arguments& arguments) {
  const Values& values = arguments.positional;
  if (!arguments.named.empty()) return type_error("'loop' with a named argument");
  if (name == "cycle") {
    if (values.empty()) return type_error("'loop.cycle' of nothing");
    return values[static_cast<size_t>(index0_) % values.size()];
  }
  bool changed = !last_changed_ || last_changed_->size() != values.size();
  for (size_t i = 0; !changed && i < values.size(); ++i) {
    MORACLE_TRY(const bool same, equal(heap.budget(), (*last_changed_)[i], values[i]));
    changed = !same;
  }
  last_changed_ = values;
  return Value(changed);
}

}  // namespace moracle::jinja
