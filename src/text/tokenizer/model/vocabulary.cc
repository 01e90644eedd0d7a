#include "text/tokenizer/model/vocabulary.h"

#include <vector>

#include "base/text.h"
#include "base/try.h"

namespace moracle {

Result<int32_t> token_id(const JsonField& field) {
  const Result<int64_t> id = field.integer(0, kLargestTokenId);
  if (!id) return field.bad(str("a token id from 0 to ", kLargestTokenId));
  return static_cast<int32_t>(*id);
}

Result<Vocabulary> Vocabulary::parse(const JsonField& field) {
  if (!field.is_object()) return field.bad("an object of token ids");
  Vocabulary vocabulary;
  vocabulary.ids_.reserve(field.value().size());
  std::vector<bool> taken;
  for (const auto& [token, value] : field.value().items()) {
    const auto id = token_id(JsonField(value, field.file()));
    if (!id) return field[token].bad(id.error().need);
    const auto index = static_cast<size_t>(*id);
    if (index >= taken.size()) taken.resize(index + index / 2 + 1);
    if (taken[index]) return field[token].bad("an id that no other token has");
    taken[index] = true;
    vocabulary.ids_.emplace(token, *id);
  }
  return vocabulary;
}

void Vocabulary::add(const std::string& token, int32_t id) {
  const auto [known, is_new] = ids_.try_emplace(token, id);
  if (is_new) return;
  shadowed_.emplace_back(token, known->second);
  known->second = id;
}

std::optional<int32_t> Vocabulary::id(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

}  // namespace moracle
