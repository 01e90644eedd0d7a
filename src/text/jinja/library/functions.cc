#include "text/jinja/library/functions.h"

#include "base/text.h"
#include "base/try.h"
#include "text/jinja/library/format_time.h"
#include "text/jinja/values/python_text.h"

namespace moracle::jinja {

namespace {

Result<Value> range_function(Heap& heap, const Value&, const BoundArguments& arguments) {
  MORACLE_TRY(const int64_t first, arguments.integer(0));
  int64_t start = 0, stop = first, step = 1;
  if (arguments.has(1)) {
    start = first;
    MORACLE_TRY(stop, arguments.integer(1));
  }
  if (arguments.has(2)) {
    MORACLE_TRY(step, arguments.integer(2));
  }
  if (step == 0) return type_error("'range' with step 0");
  Values items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(items.size()) == kMaxRange) {
      return limit_error(str("a range of more than ", kMaxRange));
    }
    items.push_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return heap.sequence(SequenceKind::kRange, std::move(items));
}

// Reads the entries of dict(...) and namespace(...): one mapping or pairs, then named arguments.
Result<std::vector<std::pair<Value, Value>>> entries_of(Heap& heap, const Arguments& arguments) {
  std::vector<std::pair<Value, Value>> entries;
  if (arguments.positional.size() > 1) return type_error("more than one positional argument");
  if (!arguments.positional.empty()) {
    const Value& given = arguments.positional[0];
    if (const Mapping* mapping = given.mapping()) {
      entries = mapping->entries;
    } else {
      MORACLE_TRY(const Values pairs, elements(heap, given));
      for (const Value& pair : pairs) {
        MORACLE_TRY(const Values parts, elements(heap, pair));
        if (parts.size() != 2) return type_error("a dict from items that are not pairs");
        entries.emplace_back(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) {
    MORACLE_TRY(Value key, heap.text(name));
    entries.emplace_back(std::move(key), value);
  }
  return entries;
}

Result<Value> dict_function(Heap& heap, const Value&, const BoundArguments& arguments) {
  MORACLE_TRY(auto entries, entries_of(heap, arguments.raw()));
  return heap.mapping(std::move(entries));
}

Result<Value> namespace_function(Heap& heap, const Value&, const BoundArguments& arguments) {
  MORACLE_TRY(auto entries, entries_of(heap, arguments.raw()));
  MORACLE_TRY(Value made, heap.make_namespace());
  Namespace& space = **made.as<Namespace*>();
  for (auto& [key, value] : entries) {
    if (!key.is_text()) return type_error("a namespace with names that are no str");
    MORACLE_CHECK(check_attribute_name(key.text()));
    space.attributes.insert_or_assign(std::string(key.text()), std::move(value));
  }
  return made;
}

Result<Value> raise_function(Heap&, const Value&, const BoundArguments& arguments) {
  MORACLE_TRY(std::string message, to_text(arguments[0]));
  return Error{ErrorKind::kInvalidArgument, "", "", "a conversation that this template accepts",
               std::move(message)};
}

Result<Value> strftime_function(Heap& heap, const Value&, const BoundArguments& arguments) {
  MORACLE_TRY(const std::string_view format, arguments.text(0));
  MORACLE_TRY(std::string text, format_time(format, local_time_now()));
  return heap.text(std::move(text));
}

constexpr Function kFunctions[] = {
    {"range", 1, "start stop step", &range_function},
    {"dict", 0, "*", &dict_function},
    {"namespace", 0, "*", &namespace_function},
    {"raise_exception", 1, "message", &raise_function},
    {"strftime_now", 1, "format", &strftime_function},
};

}  // namespace

std::span<const Function> global_functions() {
  return kFunctions;
}

Status check_attribute_name(std::string_view name) {
  if (!name.starts_with('_')) return {};
  return type_error(str("the attribute '", name, "' of a namespace starts with an underscore"));
}

}  // namespace moracle::jinja
