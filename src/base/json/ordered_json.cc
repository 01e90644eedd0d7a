#include "base/json/ordered_json.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "base/json/json_text.h"
#include "base/printable.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

using Json = nlohmann::ordered_json;
// Collects members with mutable keys. The keys of Json::object_t are const, so growing a vector of
// those would copy every value.
using Members = std::vector<std::pair<std::string, Json>>;

// Moves the members into an object. Sorting finds equal keys.
Json object_of(Members&& members) {
  std::vector<size_t> order(members.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t left, size_t right) {
    const int compared = members[left].first.compare(members[right].first);
    return compared != 0 ? compared < 0 : left < right;
  });
  std::vector<bool> is_repeated(members.size());
  for (size_t i = 1, first = 0; i < order.size(); ++i) {
    if (members[order[i]].first != members[order[first]].first) {
      first = i;
      continue;
    }
    members[order[first]].second = std::move(members[order[i]].second);
    is_repeated[order[i]] = true;
  }
  Json object = Json::object();
  auto& kept = object.get_ref<Json::object_t&>();
  kept.reserve(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    if (!is_repeated[i])
      kept.emplace_back(std::move(members[i].first), std::move(members[i].second));
  }
  return object;
}

// Receives the events of nlohmann's parser, which demands these names.
class Builder {
 public:
  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(size_t) { return open(true); }
  bool start_array(size_t) { return open(false); }
  bool key(std::string& name) {
    Members& members = levels_.back().members;
    if (members.size() == kMaxJsonMembers) {
      error_ = Error{ErrorKind::kBadFile, "", path(),
                     str("objects of at most ", kMaxJsonMembers, " members"), "it has more"};
      return false;
    }
    members.emplace_back(std::move(name), nullptr);
    return true;
  }
  bool end_object() {
    Json object = object_of(std::move(levels_.back().members));
    levels_.pop_back();
    return add(std::move(object));
  }
  bool end_array() {
    Json array = std::move(levels_.back().items);
    levels_.pop_back();
    return add(std::move(array));
  }
  bool parse_error(size_t byte, const std::string&, const Json::exception& exception) {
    constexpr int kNumberOutOfRange = 406;
    error_ = exception.id == kNumberOutOfRange
                 ? Error{ErrorKind::kBadFile, "", "", "numbers in the range of doubles",
                         "a number is larger"}
                 : Error{ErrorKind::kBadFile, "", "", "valid JSON in UTF-8",
                         str("byte ", byte, " is invalid")};
    return false;
  }
  Result<Json> take(bool parsed) && {
    if (!parsed) return std::move(error_);
    return std::move(root_);
  }

 private:
  struct Level {
    bool is_object;
    Members members;
    Json::array_t items;
  };
  bool open(bool is_object) {
    if (++containers_ > kMaxJsonContainers) {
      error_ =
          Error{ErrorKind::kBadFile, "", "",
                str("JSON of at most ", kMaxJsonContainers, " arrays and objects"), "it has more"};
      return false;
    }
    levels_.push_back({is_object, {}, {}});
    return true;
  }
  bool add(Json value) {
    if (levels_.empty())
      root_ = std::move(value);
    else if (levels_.back().is_object)
      levels_.back().members.back().second = std::move(value);
    else
      levels_.back().items.push_back(std::move(value));
    return true;
  }
  // The path of the innermost open object, for errors.
  std::string path() const {
    std::string path;
    for (size_t i = 0; i + 1 < levels_.size(); ++i) {
      const Level& level = levels_[i];
      if (!level.is_object)
        path += str('[', level.items.size(), ']');
      else
        path += (path.empty() ? "" : ".") + printable(level.members.back().first, 60);
    }
    return path;
  }

  std::vector<Level> levels_;
  size_t containers_ = 0;
  Json root_;
  Error error_;
};

}  // namespace

Result<Json> parse_ordered_json(std::string_view text) {
  MORACLE_CHECK(check_json_text(text, ""));
  Builder builder;
  const bool parsed = Json::sax_parse(text.begin(), text.end(), &builder);
  return std::move(builder).take(parsed);
}

}  // namespace moracle
