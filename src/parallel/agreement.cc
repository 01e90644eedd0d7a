#include "parallel/agreement.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

constexpr size_t kLongestShown = 200;

std::string packed(const std::vector<Fact>& facts) {
  std::string text;
  for (const Fact& fact : facts) {
    for (const std::string* field : {&fact.what, &fact.value}) {
      const uint64_t size = field->size();
      text.append(reinterpret_cast<const char*>(&size), sizeof size);
      text += *field;
    }
  }
  return text;
}

// Errors: a rank of another version may send anything.
Result<std::vector<Fact>> unpacked(std::string_view text, int64_t rank) {
  std::vector<Fact> facts;
  const auto take = [&](std::string& to) {
    uint64_t size = 0;
    if (text.size() < sizeof size) return false;
    std::memcpy(&size, text.data(), sizeof size);
    text.remove_prefix(sizeof size);
    if (text.size() < size) return false;
    to = text.substr(0, size);
    text.remove_prefix(size);
    return true;
  };
  while (!text.empty()) {
    Fact fact;
    if (!take(fact.what) || !take(fact.value))
      return Error{ErrorKind::kInvalidArgument, "", str("rank ", rank), "the version of this rank",
                   "its facts cannot be read"};
    facts.push_back(std::move(fact));
  }
  return facts;
}

Result<std::vector<std::vector<Fact>>> gather_facts(Group& group, const std::vector<Fact>& facts) {
  const std::string own = packed(facts);
  const uint64_t size = own.size();
  std::vector<uint64_t> sizes(group.size());
  MORACLE_CHECK(group.all_gather(std::as_bytes(std::span(&size, 1)),
                                 std::as_writable_bytes(std::span(sizes))));
  std::vector<std::string> texts;
  std::vector<Group::Block> receive;
  for (const uint64_t one : sizes) texts.emplace_back(one, '\0');
  for (std::string& text : texts)
    receive.push_back({reinterpret_cast<std::byte*>(text.data()), text.size()});
  std::string sent = own;
  const std::vector<Group::Block> send(
      group.size(), Group::Block{reinterpret_cast<std::byte*>(sent.data()), sent.size()});
  MORACLE_CHECK(group.exchange(send, receive));
  std::vector<std::vector<Fact>> all;
  for (int64_t r = 0; r < group.size(); ++r) {
    MORACLE_TRY(std::vector<Fact> of_rank, unpacked(texts[r], r));
    all.push_back(std::move(of_rank));
  }
  return all;
}

// The value that most ranks have; rank 0's if several are as frequent.
std::string usual(const std::vector<std::string>& values) {
  std::map<std::string, int64_t> counts;
  for (const std::string& value : values) ++counts[value];
  std::string best = values[0];
  for (const auto& [value, count] : counts)
    if (count > counts[best]) best = value;
  return best;
}

std::string shown(const std::string& value) {
  return value.size() <= kLongestShown ? value : value.substr(0, kLongestShown) + "…";
}

}  // namespace

Status agree(Group& group, const std::vector<Fact>& facts) {
  if (group.size() == 1) return {};
  MORACLE_TRY(const std::vector<std::vector<Fact>> all, gather_facts(group, facts));
  for (int64_t r = 0; r < group.size(); ++r) {
    const auto same_name = [](const Fact& a, const Fact& b) { return a.what == b.what; };
    if (!std::equal(all[r].begin(), all[r].end(), facts.begin(), facts.end(), same_name))
      return Error{ErrorKind::kInvalidArgument, "", str("rank ", r), "the version of this rank",
                   "it compares other facts"};
  }
  for (size_t i = 0; i < facts.size(); ++i) {
    std::vector<std::string> values;
    for (const std::vector<Fact>& of_rank : all) values.push_back(of_rank[i].value);
    const std::string want = usual(values);
    for (int64_t r = 0; r < group.size(); ++r) {
      if (values[r] == want) continue;
      return Error{ErrorKind::kInvalidArgument, "", str("rank ", r),
                   str(facts[i].what, " as on the other ranks: ", shown(want)),
                   "it has " + shown(values[r])};
    }
  }
  return {};
}

Status all_succeed(Group& group, const Status& own, const std::string& need) {
  MORACLE_TRY(const std::vector<std::vector<Fact>> all,
              gather_facts(group, {{need, own ? "" : own.error().to_string()}}));
  for (int64_t r = 0; r < group.size(); ++r) {
    const auto wrong = [&](std::string wanted, std::string fact) {
      return Error{ErrorKind::kInvalidArgument, "", str("rank ", r), std::move(wanted),
                   std::move(fact)};
    };
    if (all[r].size() != 1 || all[r][0].what != need)
      return wrong("the work of this rank", "it did other work");
    if (!all[r][0].value.empty()) return wrong(need, all[r][0].value);
  }
  return {};
}

}  // namespace moracle
