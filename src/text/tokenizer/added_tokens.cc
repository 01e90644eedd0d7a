#include "text/tokenizer/added_tokens.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "text/tokenizer/utf8.h"

namespace moracle {
Result<AddedTokens> AddedTokens::parse(const JsonField& field, const Vocabulary& vocabulary,
                                       const Normalizer& normalizer,
                                       std::span<const ConfigToken> config) {
  // `\w` as Hugging Face tokenizers defines it here (Rust's regex crate, not Oniguruma).
  MORACLE_TRY(Regex word,
              Regex::compile(R"([\w\x{200c}\x{200d}&&[^\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}]])",
                             RegexSyntax::kOniguruma));
  AddedTokens added(std::move(word));
  if (!field.is_null()) {
    MORACLE_TRY(const auto items, field.items());
    for (const JsonField& item : items) MORACLE_CHECK(added.add(item, vocabulary));
  }
  for (const ConfigToken& more : config) added.add(more, vocabulary);
  MORACLE_CHECK(added.index(normalizer));
  return added;
}

int32_t AddedTokens::next_id(const std::string& content, const Vocabulary& vocabulary) const {
  const int64_t next = std::max(static_cast<int64_t>(vocabulary.size()), largest_id_ + 1);
  return vocabulary.id(content).value_or(static_cast<int32_t>(next));
}

Status AddedTokens::add(const JsonField& field, const Vocabulary& vocabulary) {
  AddedToken token;
  MORACLE_TRY(token.content, field["content"].text());
  MORACLE_TRY(token.id, token_id(field["id"]));
  MORACLE_TRY(token.single_word, field["single_word"].flag());
  MORACLE_TRY(token.lstrip, field["lstrip"].flag());
  MORACLE_TRY(token.rstrip, field["rstrip"].flag());
  MORACLE_TRY(token.normalized, field["normalized"].flag());
  MORACLE_TRY(token.special, field["special"].flag());
  if (token.content.empty()) return field["content"].bad("a non-empty string");
  if (token.content.size() > kLongestContent) {
    return field["content"].unsupported(str("at most ", kLongestContent, " bytes"));
  }
  const auto [known, is_new] = by_content_.try_emplace(token.content, tokens_.size());
  if (!is_new) {
    if (tokens_[known->second] == token) return {};
    return field["content"].bad("a content that no other added token has");
  }
  const int32_t expected = next_id(token.content, vocabulary);
  if (token.id != expected) {
    return field["id"].bad(str(expected, " (the id in the vocabulary, else the next free id)"));
  }
  largest_id_ = std::max<int64_t>(largest_id_, token.id);
  tokens_.push_back(std::move(token));
  return {};
}

void AddedTokens::add(const ConfigToken& more, const Vocabulary& vocabulary) {
  const auto [known, is_new] = by_content_.try_emplace(more.token.content, tokens_.size());
  if (is_new) {
    tokens_.push_back(more.token);
    tokens_.back().id = next_id(more.token.content, vocabulary);
    largest_id_ = std::max<int64_t>(largest_id_, tokens_.back().id);
    return;
  }
  AddedToken& token = tokens_[known->second];
  // A token is special if either file marks it as special.
  const bool special = token.special || (more.token.special && more.kind != ConfigToken::kMore);
  const int32_t id = token.id;
  if (more.kind == ConfigToken::kListed) token = more.token;
  token.id = id;
  token.special = special;
}

Status AddedTokens::index(const Normalizer& normalizer) {
  for (size_t number = 0; number < tokens_.size(); ++number) {
    AddedToken& token = tokens_[number];
    token.text = token.content;
    if (token.normalized) {
      MORACLE_TRY(token.text, normalizer.apply(token.content));
    }
    TokenTrie& trie = token.normalized ? normalized_ : raw_;
    trie.add(token.text, number);
  }
  return {};
}

std::optional<int32_t> AddedTokens::id(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  if (found == by_content_.end()) return std::nullopt;
  return tokens_[found->second].id;
}

std::vector<AddedTokens::Segment> AddedTokens::cut(const TokenTrie& trie,
                                                   std::string_view text) const {
  std::vector<Segment> segments;
  size_t done = 0;
  for (size_t from = 0;;) {
    const auto match = trie.find(text, from);
    if (!match) break;
    from = match->end;
    const AddedToken& token = tokens_[match->number];
    if (token.single_word && touches_word(text, match->begin, match->end)) continue;
    size_t begin = match->begin;
    if (token.lstrip) begin = std::max(done, without_space_at_end(text, begin));
    if (begin > done) segments.push_back({{done, begin}, std::nullopt});
    // White space consumed by rstrip may still begin the next token.
    done = token.rstrip ? behind_space_at_start(text, match->end) : match->end;
    segments.push_back({{begin, done}, token.id});
  }
  if (done < text.size()) segments.push_back({{done, text.size()}, std::nullopt});
  return segments;
}

/// True if a word character is directly before `begin` or at `end`.
bool AddedTokens::touches_word(std::string_view text, size_t begin, size_t end) const {
  RegexScratch scratch(word_);
  std::vector<RegexSpan> spans;
  const auto is_word = [&](size_t at) {
    const std::string_view one = text.substr(at, first_char(text.substr(at)).length);
    return scratch.cut(one, spans) && spans[0].matched;
  };
  return (begin > 0 && is_word(last_char(text.substr(0, begin)))) ||
         (end < text.size() && is_word(end));
}

}  // namespace moracle
